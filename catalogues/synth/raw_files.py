"""Write the catalogue like a shop's tables: other names, texts as ids, and no SIDs.

    ads.csv         a row for each ad; a cell lists several values with |, and an empty one is null
    items.parquet   an embedding for each ad
    clicks.csv      the log: who clicked which ad, and when

docs/quickstart.md begins with these files.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

from grace.catalogues.arrays import Int64Array
from grace.catalogues.folder import Written, require_room, write_tables
from grace.catalogues.synth.catalogue import Catalogue, make_catalogue
from grace.catalogues.synth.files import ad_rows
from grace.catalogues.synth.learned_tokens import DIMENSION, item_vectors
from grace.catalogues.synth.log_file import make_log
from grace.catalogues.synth.spec import CatalogueSpec, Stream

RAW_FILES = ("ads.csv", "items.parquet", "clicks.csv")
LOG_USERS = 6_000  # of a preset without a log
LIST_SEPARATOR = "|"
_COLUMNS = {
    "sku": "ad_id",
    "name": "title",
    "bid": "ad_weight",
    "Country Code": "country",
    "excludedCountries": "country_exclude",
    "age_group": "age",
    "gender": "gender",
    "device": "device",
    "places": "location",
    "interests": "audience",
    "campaign_id": "campaign",
    "brand_id": "advertiser",
}
"""The shop's columns, and the canonical ones that they are made of."""

_AD_NOISE = 0.05  # of an ad's embedding, around that of its item


def write_raw_folder(spec: CatalogueSpec, out: Path, *, force: bool = False) -> Written:
    """Make the catalogue and the three files."""
    require_room(out, RAW_FILES, force=force)
    spec = replace(spec, log_users=spec.log_users or LOG_USERS, learned_tokens=False)
    catalogue = make_catalogue(spec)
    rng = spec.rng(Stream.VECTORS)
    clicks = _clicks(catalogue, rng)
    size = write_tables(
        out,
        {
            "ads.csv": lambda path: _write_ads(catalogue, path),
            "items.parquet": lambda path: _write_items(catalogue, rng, path),
            "clicks.csv": lambda path: csv.write_csv(clicks, path),
        },
    )
    return Written("", catalogue.num_sids, catalogue.num_ads, 0, clicks.num_rows, size)


def _write_ads(catalogue: Catalogue, path: Path) -> None:
    writer = None
    for rows in ad_rows(catalogue):
        table = pa.table({theirs: _cells(rows[ours]) for theirs, ours in _COLUMNS.items()})
        table = table.set_column(0, "sku", _skus(rows["ad_id"]))
        writer = writer or csv.CSVWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def _cells(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.binary_join(column, LIST_SEPARATOR) if pa.types.is_list(column.type) else column


def _skus(ad_ids: pa.ChunkedArray | Int64Array) -> pa.Array:
    ids = pa.array(ad_ids) if isinstance(ad_ids, np.ndarray) else ad_ids
    return pc.binary_join_element_wise("SKU", ids.cast(pa.string()), "-")


def _write_items(catalogue: Catalogue, rng: np.random.Generator, path: Path) -> None:
    """Write an embedding for each ad: its item's vector, and a little noise."""
    vectors = item_vectors(catalogue.tree, rng)[catalogue.ad_sids]
    vectors += _AD_NOISE / np.sqrt(DIMENSION) * rng.standard_normal(vectors.shape)
    flat = pa.array(vectors.astype(np.float32).reshape(-1))
    columns = {
        "sku": _skus(catalogue.ad_ids),
        "embedding": pa.FixedSizeListArray.from_arrays(flat, DIMENSION),
    }
    pq.write_table(pa.table(columns), path)


def _clicks(catalogue: Catalogue, rng: np.random.Generator) -> pa.Table:
    log = make_log(catalogue)
    ads = log.people.eligibility.draw_ads(log.people.user[log.event_user], log.items, rng)
    users = pa.array(log.event_user + 1).cast(pa.string())
    columns = {
        "uid": pc.binary_join_element_wise("user", users, "-"),
        "item": _skus(catalogue.ad_ids[ads]),
        "ts": pa.array(log.times_ms, pa.timestamp("ms", "UTC")),
    }
    return pa.table(columns)
