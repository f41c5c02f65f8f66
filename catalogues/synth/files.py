"""The catalogue's folder, and the ads as Parquet: a row for each ad, a column for each rule.

An advertiser is a brand. The ads without any rule belong to no campaign.

A title reads `Hokari trail running shoes, waterproof` or `Tanesen pizzeria, Lisbon`.
"""

from collections.abc import Iterator
from functools import partial
from itertools import chain, product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from grace.catalogues import folder
from grace.catalogues.arrays import Int64Array, offsets_of
from grace.catalogues.synth.campaign_rules import OPEN
from grace.catalogues.synth.catalogue import Catalogue, make_catalogue
from grace.catalogues.synth.log_file import make_log, write_log
from grace.catalogues.synth.rules import OPEN_CAMPAIGN, REACHES, TOPIC_REACH, ValueLists
from grace.catalogues.synth.spec import RULE_COLUMNS, SCHEMA, CatalogueSpec
from grace.catalogues.synth.topics import PRODUCTS_PER_TOPIC, TOPICS
from grace.catalogues.synth.users import make_requests

ROWS_PER_GROUP = 2**17
TIME = pa.timestamp("ms", "UTC")

# Syllables of brand names that no real brand has claimed.
_FIRST = "Ho Na Ta Ve Lu Mi Sa Ko Bre Fa Gri Ja Ke Li Mo Ne O Pa Ri Sti Ul Va Yo Za"
_MIDDLE = "ka lo mi ne ra so ti va ber da fi gu ja ko lan mo nu pe ri sta"
_LAST = "ri da no mar ko len sa va tis ra lund by na rum ta dal vik go mi net"
BRAND_NAMES = tuple(map("".join, product(_FIRST.split(), _MIDDLE.split(), _LAST.split())))
_BRAND_STRIDE = 3571  # prime and coprime to their number: neighbours share no syllables


def write_folder(
    spec: CatalogueSpec, out: Path, *, force: bool = False, progress: folder.Progress | None = None
) -> folder.Written:
    """Make the catalogue and its files."""
    folder.require_room(out, force=force)
    catalogue = make_catalogue(spec)
    requests = list(make_requests(catalogue))
    log = make_log(catalogue) if spec.log_users else None
    size = folder.write_files(
        out,
        folder.targeting_yaml(SCHEMA),
        requests,
        lambda path: write_ads(catalogue, path, progress),
        None if log is None else partial(write_log, catalogue, log),
    )
    events = 0 if log is None else len(log.items)
    sids, ads = catalogue.num_sids, catalogue.num_ads
    return folder.Written(spec.sid_space, sids, ads, len(requests), events, size)


def write_ads(
    catalogue: Catalogue,
    path: Path,
    progress: folder.Progress | None = None,
    rows_per_group: int = ROWS_PER_GROUP,
) -> None:
    """Write the ads by ascending id, row group by row group: memory does not grow with the file."""
    done = 0
    with pq.ParquetWriter(path, _schema(catalogue.spec)) as writer:
        for rows in ad_rows(catalogue, rows_per_group):
            writer.write_table(rows)
            done += len(rows)
            if progress is not None:
                progress(done, catalogue.num_ads)


def ad_rows(catalogue: Catalogue, rows: int = ROWS_PER_GROUP) -> Iterator[pa.Table]:
    """Yield the ads by ascending id, in tables of a number of rows."""
    schema, titles = _schema(catalogue.spec), Titles(catalogue)
    lists = [_arrow_lists(column.lists) for column in catalogue.campaigns.columns]
    by_id, ad_sids = np.argsort(catalogue.ad_ids), catalogue.ad_sids
    for start in range(0, len(by_id), rows):
        ads = by_id[start : start + rows]
        yield _rows(catalogue, ads, ad_sids[ads], titles, lists, schema)


def _schema(spec: CatalogueSpec) -> pa.Schema:
    strings = pa.list_(pa.string())
    columns = [
        ("ad_id", pa.int64()),
        ("sid", pa.list_(pa.uint16())),
        ("ad_weight", pa.float32()),
        ("title", pa.string()),
        *((name, strings) for name in RULE_COLUMNS),
        ("flight_start", TIME),
        ("flight_end", TIME),
        ("category", pa.string()),
        *((name, pa.int64()) for name in SCHEMA.entities),
    ]
    return pa.schema(columns, metadata=folder.sid_metadata(spec.sid_space, spec.vocab_sizes))


def _rows(
    catalogue: Catalogue,
    ads: Int64Array,
    sids: Int64Array,
    titles: "Titles",
    lists: list[pa.ListArray],
    schema: pa.Schema,
) -> pa.Table:
    columns = [
        pa.array(catalogue.ad_ids[ads]),
        folder.sid_column(catalogue.tree.sids[sids]),
        pa.array(catalogue.ad_weights[ads]),
        titles.of(sids, ads),
    ]
    campaign = catalogue.ad_campaigns[ads]
    for column, table in zip(catalogue.campaigns.columns, lists, strict=True):
        chosen = column.choice[campaign]
        columns.append(table.take(pa.array(chosen, mask=chosen < 0)))
    flights = catalogue.campaigns.flights[:, campaign]
    columns += [pa.array(times, mask=times == OPEN).cast(TIME) for times in flights]
    topics = pa.array([topic.name for topic in TOPICS])
    columns.append(topics.take(pa.array(catalogue.tree.sid_topic[sids])))
    advertiser = 1 + catalogue.tree.line_brand[catalogue.tree.sid_line[sids]]
    columns += [
        pa.array(campaign.astype(np.int64), mask=campaign == OPEN_CAMPAIGN),
        pa.array(advertiser.astype(np.int64)),
    ]
    return pa.table(columns, schema=schema)


def _arrow_lists(lists: ValueLists) -> pa.ListArray:
    strings = pa.array(lists.values, pa.string()).take(pa.array(lists.items))
    return pa.ListArray.from_arrays(pa.array(lists.offsets.astype(np.int32)), strings)


class Titles:
    """Titles of ads, joined from Arrow string arrays.

    Brand and product are the product line's. The title of a local business ends in its city, any
    other in a detail that the SID's variant decides.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        details = list(chain.from_iterable(topic.details for topic in TOPICS))
        self._catalogue = catalogue
        self._brands = pa.array(BRAND_NAMES)
        self._products = pa.array(list(chain.from_iterable(topic.products for topic in TOPICS)))
        self._endings = pa.array([*details, *catalogue.places.city_names])
        self._topic_details = offsets_of(np.array([len(topic.details) for topic in TOPICS]))

    def of(self, sids: Int64Array, ads: Int64Array) -> pa.StringArray:
        """Return the titles of ads, each given with its SID's index."""
        tree = self._catalogue.tree
        line = tree.sid_line[sids]
        brand = tree.line_brand[line]
        topic = tree.brand_topic[brand]
        first_detail = self._topic_details[topic]
        details = self._topic_details[topic + 1] - first_detail
        detail = first_detail + tree.sid_variant[sids] % details
        city = self._topic_details[-1] + self._catalogue.home_cities(sids, ads)
        local = TOPIC_REACH[topic] == REACHES.index("local")
        brands = self._brands.take(pa.array(brand * _BRAND_STRIDE % len(BRAND_NAMES)))
        products = self._products.take(
            pa.array(topic * PRODUCTS_PER_TOPIC + tree.line_product[line])
        )
        endings = self._endings.take(pa.array(np.where(local, city, detail)))
        names = pc.binary_join_element_wise(brands, products, " ")
        return pc.binary_join_element_wise(names, endings, ", ")
