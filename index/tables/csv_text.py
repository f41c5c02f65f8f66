"""CSV: every cell a text, an empty one null. A line break in a cell must be in quotes."""

from collections.abc import Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv as csv

from grace.configs.errors import InputError

_BLOCK = 1 << 22
_PARSING = csv.ParseOptions(newlines_in_values=True)


class _CountedQuotes:
    """A stream that counts quotation marks: a cell that is not closed swallows later rows."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.quotes = 0
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        part = self._stream.read(size)
        self.quotes += part.count(b'"')
        return part

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False


def read_header(stream: BinaryIO, address: str) -> pa.Schema:
    with csv.open_csv(stream, csv.ReadOptions(block_size=_BLOCK), _PARSING) as reader:
        names = reader.schema.names
    for other in (";", "\t"):
        if len(names) == 1 and other in names[0]:
            raise InputError(
                f"{address}: its header is one cell, {names[0]!r}: separate cells by commas and "
                f"not by {other!r}"
            )
    return pa.schema([(name, pa.string()) for name in names])


def batches(
    stream: BinaryIO, address: str, schema: pa.Schema, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    converting = csv.ConvertOptions(
        column_types=schema,
        include_columns=list(columns),
        strings_can_be_null=True,
        null_values=[""],
    )
    counted = _CountedQuotes(stream)
    reading = csv.ReadOptions(block_size=_BLOCK)
    with csv.open_csv(pa.PythonFile(counted, "r"), reading, _PARSING, converting) as reader:
        yield from reader
    if counted.quotes % 2:
        raise InputError(
            f"{address}: an odd number of quotation marks, so the cell after one of them is not "
            'closed: write a quotation mark inside a cell twice, and the cell in quotes: "5"" lamp"'
        )
