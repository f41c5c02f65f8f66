"""The ads as Parquet: each row group holds ads from everywhere, as in a table ordered by id."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from grace.catalogues.paper.catalogue import PaperCatalogue
from grace.catalogues.paper.schema import location_names
from grace.catalogues.paper.spec import SID_LENGTH, VOCAB
from grace.catalogues.paper.threads import ahead
from grace.catalogues.synth.arrays import Int64Array
from grace.index.builder.columns import ListColumn

__all__ = ["Progress", "write_ads"]

ROWS_PER_GROUP = 1 << 18

Progress = Callable[[int, int], None]  # (ads written, ads in all)


def write_ads(
    catalogue: PaperCatalogue,
    path: Path,
    threads: int,
    progress: Progress,
    rows_per_group: int = ROWS_PER_GROUP,
) -> None:
    """Draws a few row groups at a time on all threads and writes them in turn."""
    names = _names(catalogue)
    schema = _schema(catalogue)
    groups = -(-catalogue.num_ads // rows_per_group)
    written = 0
    with pq.ParquetWriter(path, schema) as writer:
        for table in _tables(catalogue, schema, names, groups, threads):
            writer.write_table(table, row_group_size=rows_per_group)
            written += table.num_rows
            progress(written, catalogue.num_ads)


def _tables(
    catalogue: PaperCatalogue, schema: pa.Schema, names: list[pa.Array], groups: int, threads: int
) -> Iterator[pa.Table]:
    def table(group: int) -> pa.Table:
        return _table(catalogue, schema, names, np.arange(group, catalogue.num_ads, groups))

    return ahead(table, range(groups), threads)


def _table(
    catalogue: PaperCatalogue, schema: pa.Schema, names: list[pa.Array], ads: Int64Array
) -> pa.Table:
    rows = catalogue.rows(ads)
    tokens = pa.array(rows.tokens.reshape(-1))
    token_offsets = pa.array(np.arange(0, rows.tokens.size + 1, SID_LENGTH, dtype=np.int32))
    columns = [
        pa.array(rows.ids),
        pa.ListArray.from_arrays(token_offsets, tokens),
        pa.array(rows.weights),
    ]
    for column, values in zip(catalogue.rules.columns(rows.rules), names, strict=True):
        columns.append(_lists(column, values))
    return pa.table(columns, schema=schema)


def _lists(column: ListColumn, names: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(
        pa.array(column.offsets.astype(np.int32)),
        names.take(pa.array(column.codes)),
        mask=pa.array(column.valid == 0),
    )


def _names(catalogue: PaperCatalogue) -> list[pa.Array]:
    attributes = [pa.array(attribute.values) for attribute in catalogue.schema.attributes]
    return [*attributes, pa.array(location_names(catalogue.spec.knobs))]


def _schema(catalogue: PaperCatalogue) -> pa.Schema:
    lists = pa.list_(pa.string())
    return pa.schema(
        [
            ("ad_id", pa.int64()),
            ("sid", pa.list_(pa.uint16())),
            ("ad_weight", pa.float32()),
            *((name, lists) for name in catalogue.schema.names),
        ],
        metadata={
            "grace.sid_space": catalogue.spec.sid_space,
            "grace.vocab_sizes": ",".join([str(VOCAB)] * SID_LENGTH),
        },
    )
