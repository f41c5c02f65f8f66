"""Parquet: the footer of a file, and its rows, group by group."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from grace.configs.errors import InputError
from grace.index.tables.cells import with_types

_BATCH_BYTES = 1 << 27
_READ_BUFFER = 1 << 22  # bytes per column: a row group of any size streams through
_PLAIN_OF_VIEW = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def read_header(source: pa.NativeFile, address: str) -> tuple[pa.Schema, int]:
    with pq.ParquetFile(source) as file:
        found, footer = file.schema_arrow, file.metadata
        groups = [footer.row_group(at).num_rows for at in range(footer.num_row_groups)]
    if min(groups, default=0) < 0 or sum(groups) != footer.num_rows:
        raise InputError(
            f"{address}: damaged: its row groups hold {sum(groups)} rows, its footer says "
            f"{footer.num_rows}"
        )
    # Arrow cannot take rows of a view.
    return with_types(found, lambda kind: _PLAIN_OF_VIEW.get(kind, kind)), footer.num_rows


def batches(
    source: pa.NativeFile, address: str, schema: pa.Schema, columns: Sequence[str], rows: int
) -> Iterator[pa.RecordBatch]:
    """Read group by group: Arrow cannot join nested dictionaries across the groups' border."""
    with pq.ParquetFile(source, buffer_size=_READ_BUFFER, pre_buffer=False) as table:
        if table.schema_arrow.names != schema.names:
            raise InputError(f"{address}: its columns changed while it was read")
        plain = pa.schema([schema.field(name) for name in columns])
        has_views = any(
            table.schema_arrow.field(name).type != plain.field(name).type for name in columns
        )
        for group in range(table.num_row_groups):
            held = table.metadata.row_group(group)
            bytes_per_row = max(1, held.total_byte_size // max(1, held.num_rows))
            most = max(1, min(rows, _BATCH_BYTES // bytes_per_row))
            for batch in table.iter_batches(most, row_groups=[group], columns=list(columns)):
                # Arrow selects columns by path, in which a dot leads into a nested one.
                selected = batch.select(list(columns))
                yield selected.cast(plain) if has_views else selected
