"""A table file of any format at any address: its columns, and its rows in batches.

Parquet and JSON lines have types. The columns of a CSV are all text, and an empty cell is null:
a guess would make 1234 of the postcode 01234. `cells.py` turns texts into numbers and lists.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import BinaryIO

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

_PARQUET_MAGIC = b"PAR1"
_GZIP_MAGIC = b"\x1f\x8b"
_BUFFER = 1 << 22


@dataclass(frozen=True, slots=True)
class TableFile:
    address: str
    format: Format
    schema: pa.Schema
    rows: int | None  # None for a CSV, which `count_rows` counts
    list_separator: str | None = None  # of texts that list values

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Yield these columns, in this order, at most `rows` rows at a time."""
        done = 0
        try:
            for batch in self._batches(columns, rows):
                for first in range(0, batch.num_rows, rows):
                    yield batch.slice(first, rows)
                done += batch.num_rows
        except UNREADABLE as error:
            raise self._fault(error, done) from None

    def count_rows(self) -> int:
        """Return the number of rows; this reads a CSV once."""
        if self.rows is not None:
            return self.rows
        return sum(batch.num_rows for batch in self.batches(self.schema.names[:1], 1 << 20))

    def _batches(self, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        if self.format is Format.PARQUET:
            system, path = file_system(self.address)
            with system.open_input_file(path) as file:
                yield from parquet.batches(file, self.address, self.schema, columns, rows)
            return
        with closing(_stream(self.address)) as stream:
            if self.format is Format.CSV:
                yield from csv_text.batches(stream, self.address, self.schema, columns)
            else:
                yield from json_lines.batches(stream, self.address, self.schema, columns)

    def _fault(self, error: Exception, row: int) -> InputError:
        if isinstance(error, pa.ArrowNotImplementedError):
            if "chunked array" not in str(error):
                return InputError(f"{self.address}: cannot be read: {first_line(error)}")
            return InputError(
                f"{self.address}: a list column holds more than 2 GiB of text near row {row + 1}; "
                "write row groups of fewer rows"
            )
        return InputError(f"{self.address}: damaged near row {row + 1}: {first_line(error)}")


def open_table(address: str, list_separator: str | None = None) -> TableFile:
    """Read the columns of a file. This reads all JSON lines, since each may add a column."""
    try:
        form = _format(address)
        if form is Format.PARQUET:
            system, path = file_system(address)
            with system.open_input_file(path) as file:
                schema, rows = parquet.read_footer(file, address)
        else:
            with closing(_stream(address)) as stream:
                if form is Format.CSV:
                    schema, rows = csv_text.read_header(stream, address), None
                else:
                    schema, rows = json_lines.read_schema(stream, address)
    except UNREADABLE as error:
        ending = ending_format(address)
        shown = "table" if ending is None else f"{ending.shown} file"
        raise InputError(f"{address}: not a readable {shown}: {first_line(error)}") from None
    repeated = [name for name in schema.names if schema.names.count(name) > 1]
    if repeated:
        raise InputError(f"{address}: column {repeated[0]!r} appears twice")
    return TableFile(address, form, schema, rows, list_separator)


def table_files(addresses: Sequence[str], list_separator: str | None = None) -> list[TableFile]:
    """Open the files of a table that is given as files and folders."""
    return [open_table(address, list_separator) for address in files_at(addresses)]


def _stream(address: str) -> BinaryIO:
    """Open a text, decompressed."""
    system, path = file_system(address)
    compression = "gzip" if is_compressed(address) else None
    stream: BinaryIO = system.open_input_stream(path, compression, _BUFFER)
    return stream


def _format(address: str) -> Format:
    """Return the format that the file's ending states. Its first bytes must fit that format."""
    system, path = file_system(address)
    with system.open_input_stream(path, compression=None) as raw:
        begin: bytes = raw.read(64)
    stated = ending_format(address)
    if begin[:4] == _PARQUET_MAGIC:
        if stated is None or stated is Format.PARQUET:
            return Format.PARQUET
        raise InputError(
            f"{address}: is Parquet, but is named like {stated.shown}; name it *.parquet"
        )
    if begin[:2] == _GZIP_MAGIC and not is_compressed(address):
        raise InputError(
            f"{address}: is compressed with gzip; name it *.csv.gz or *.jsonl.gz if it is one of "
            "these, or decompress it"
        )
    if stated is Format.PARQUET:
        raise InputError(f"{address}: not a readable Parquet file: {_looks_like(begin)}")
    if stated is None:
        raise InputError(
            f"{address}: the name does not state the table's format: {_looks_like(begin)}; "
            f"a table's name ends in {ENDINGS}"
        )
    if is_compressed(address):
        return stated
    text = begin.lstrip(b"\xef\xbb\xbf \t\r\n")
    if stated is Format.JSONL and text and not text.startswith(b"{"):
        raise InputError(f"{address}: not JSON lines, an object a line: {_looks_like(begin)}")
    if stated is Format.CSV and text.startswith((b'{"', b"[{")):
        raise InputError(f"{address}: not a CSV: {_looks_like(begin)}")
    return stated


def _looks_like(begin: bytes) -> str:
    if not begin:
        return "it is empty"
    shown = repr(begin[:24].decode(errors="replace"))
    text = begin.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.startswith(b"["):
        return f"it begins with {shown}, a JSON array; write one object per line, as *.jsonl"
    if text.startswith(b"{"):
        return f"it begins with {shown}; name it *.jsonl if it has a JSON object per line"
    if b"\0" not in begin and b"," in begin.partition(b"\n")[0]:
        return f"it begins with {shown}; name it *.csv if it is a CSV"
    return f"it begins with {shown}"
