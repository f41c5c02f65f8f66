"""A table file of any format at any address: its columns, and its rows in batches.

Parquet and JSON lines have types. The columns of a CSV are all text, and an empty cell is null:
a guess would make 1234 of the postcode 01234. `cells.py` turns texts into numbers and lists.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from grace.configs.errors import InputError
from grace.index.tables import csv_text, json_lines, parquet
from grace.index.tables.addresses import (
    ENDINGS,
    UNREADABLE,
    Format,
    ending_format,
    file_system,
    files_at,
    first_line,
    is_compressed,
)

_ENDS = f"a table's name ends by its format in {ENDINGS}"
_BUFFER = 1 << 22
_READERS: Mapping[Format, Any] = {
    Format.PARQUET: parquet,
    Format.JSONL: json_lines,
    Format.CSV: csv_text,
}
"""The module that reads the header and the rows of each format."""


@dataclass(frozen=True, slots=True)
class TableFile:
    address: str
    format: Format
    schema: pa.Schema
    rows: int | None  # None for a CSV, which `count_rows` counts
    list_separator: str | None = None  # of texts that list values
    time_unit: str = "ms"  # of integer times

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Yield these columns, in this order, at most `rows` rows at a time."""
        done = 0
        try:
            with _opened(self.address, self.format) as source:
                read = _READERS[self.format].batches
                for batch in read(source, self.address, self.schema, columns, rows):
                    for first in range(0, batch.num_rows, rows):
                        yield batch.slice(first, rows)
                    done += batch.num_rows
        except UNREADABLE as error:
            unknown = isinstance(error, pa.ArrowNotImplementedError)
            fault = "cannot be read" if unknown else f"damaged near row {done + 1}"
            raise InputError(f"{self.address}: {fault}: {first_line(error)}") from None

    def count_rows(self) -> int:
        """Return the number of rows; this reads a CSV once."""
        if self.rows is not None:
            return self.rows
        return sum(batch.num_rows for batch in self.batches(self.schema.names[:1], 1 << 20))


def open_table(address: str, list_separator: str | None = None) -> TableFile:
    """Read the columns of a file. This reads all JSON lines, since each may add a column."""
    form = ending_format(address)
    if form is None:
        raise InputError(f"{address}: the name does not state the table's format; {_ENDS}")
    try:
        with _opened(address, form) as source:
            schema, rows = _READERS[form].read_header(source, address)
    except UNREADABLE as error:
        fault = f"not a readable {form} file: {first_line(error)}"
        raise InputError(f"{address}: {fault}; {_ENDS}") from None
    repeated = [name for name in schema.names if schema.names.count(name) > 1]
    if repeated:
        raise InputError(f"{address}: column {repeated[0]!r} appears twice")
    return TableFile(address, form, schema, rows, list_separator)


def table_files(addresses: Sequence[str], list_separator: str | None = None) -> list[TableFile]:
    return [open_table(address, list_separator) for address in files_at(addresses)]


def _opened(address: str, form: Format) -> pa.NativeFile:
    """Open a file; a text as a stream, decompressed."""
    system, path = file_system(address)
    if form is Format.PARQUET:
        return system.open_input_file(path)
    compression = "gzip" if is_compressed(address) else None
    return system.open_input_stream(path, compression, _BUFFER)
