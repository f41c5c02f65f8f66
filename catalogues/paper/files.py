"""The catalogue's folder, and the ads as Parquet.

Each row group holds ads from everywhere, as in a table ordered by id.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from grace.catalogues import folder
from grace.catalogues.arrays import Int64Array, ahead
from grace.catalogues.paper.catalogue import PaperCatalogue, make_paper_catalogue
from grace.catalogues.paper.population import location_names, make_users
from grace.catalogues.paper.spec import SID_LENGTH, VOCAB, PaperSpec
from grace.index.forms.component import ListColumn

ROWS_PER_GROUP = 1 << 18
REQUESTS = 64
MAX_ADS = 1000


def write_paper_folder(
    spec: PaperSpec, out: Path, *, threads: int, force: bool, progress: folder.Progress
) -> folder.Written:
    """Make the catalogue and its files, the ads last."""
    folder.require_room(out, force=force)
    catalogue = make_paper_catalogue(spec, threads)
    size = folder.write_files(
        out,
        folder.targeting_yaml(catalogue.schema),
        _requests(catalogue),
        lambda path: write_ads(catalogue, path, threads, progress),
    )
    return folder.Written(spec.sid_space, spec.num_sids, catalogue.num_ads, REQUESTS, 0, size)


def _requests(catalogue: PaperCatalogue) -> Iterator[dict[str, Any]]:
    """Requests in the API's JSON form, without features: they suit every model."""
    for number, user in enumerate(make_users(REQUESTS, catalogue.draws, catalogue.spec.knobs)):
        yield {
            "request_id": f"u{number:03}",
            "sid_space": catalogue.spec.sid_space,
            "user": {name: {"values": values} for name, values in user.items()},
            "max_ads": MAX_ADS,
        }


def write_ads(
    catalogue: PaperCatalogue,
    path: Path,
    threads: int,
    progress: folder.Progress,
    rows_per_group: int = ROWS_PER_GROUP,
) -> None:
    """Draw a few row groups at a time on all threads and write them in turn."""
    table = ads_table(catalogue)
    groups = -(-catalogue.num_ads // rows_per_group)

    def rows_of(group: int) -> pa.Table:
        return table(np.arange(group, catalogue.num_ads, groups))

    written = 0
    with pq.ParquetWriter(path, table(np.arange(1)).schema) as writer:
        for each in ahead(rows_of, range(groups), threads):
            writer.write_table(each, row_group_size=rows_per_group)
            written += each.num_rows
            progress(written, catalogue.num_ads)


def ads_table(catalogue: PaperCatalogue) -> Callable[[Int64Array], pa.Table]:
    """Return a function that makes the rows of ascending ads, numbered in SID order."""
    names = [pa.array(attribute.values) for attribute in catalogue.schema.attributes]
    names.append(pa.array(location_names(catalogue.spec.knobs)))
    columns = [
        ("ad_id", pa.int64()),
        ("sid", pa.list_(pa.uint16())),
        ("ad_weight", pa.float32()),
        *((name, pa.list_(pa.string())) for name in catalogue.schema.names),
        *((name, pa.int64()) for name in catalogue.schema.entities),
    ]
    metadata = folder.sid_metadata(catalogue.spec.sid_space, (VOCAB,) * SID_LENGTH)
    schema = pa.schema(columns, metadata=metadata)

    def rows_of(ads: Int64Array) -> pa.Table:
        rows = catalogue.rows(ads)
        columns = [pa.array(rows.ids), folder.sid_column(rows.tokens), pa.array(rows.weights)]
        for column, values in zip(catalogue.rules.columns(rows.rules), names, strict=True):
            columns.append(_lists(column, values))
        columns += [pa.array(ids) for ids in catalogue.campaigns.entities_of(rows.rules)]
        return pa.table(columns, schema=schema)

    return rows_of


def _lists(column: ListColumn, names: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(
        pa.array(column.offsets.astype(np.int32)),
        names.take(pa.array(column.codes)),
        mask=pa.array(column.valid == 0),
    )
