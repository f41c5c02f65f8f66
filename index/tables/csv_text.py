"""CSV: every cell a text, an empty one null. A line break in a cell must be in quotes."""

import atexit
import io
from collections.abc import Iterator, Sequence
from time import sleep
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv

from grace.configs.errors import InputError

_READING = csv.ReadOptions(block_size=1 << 22, use_threads=False)  # so Arrow counts rows
_PARSING = csv.ParseOptions(newlines_in_values=True)
_BOM = b"\xef\xbb\xbf"
_QUOTE, _LINE_END = b'"\n'
_IS_BORDER = np.isin(np.arange(256), tuple(b',\r\n"'))
"""By byte: what a quotation mark of a cell may follow, and what may follow it."""

# A thread of Arrow frees the last text that it has read shortly after the reader has ended. If
# Python has begun to end by then, the process aborts.
atexit.register(sleep, 0.05)


class _Quotes(io.RawIOBase):
    """A stream that checks quotation marks: they are around a cell, or twice inside such a cell.

    Arrow reads on after any other one, so a cell could take rows after it, and its row their rules.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._is_first = True
        self._before = _LINE_END  # the last byte
        self._line = 1
        self.is_open = False  # in a cell in quotes
        self.fault_line: int | None = None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        part = self._stream.read(size)
        if part and self.fault_line is None:
            self._check(part)
        return part

    def _check(self, part: bytes) -> None:
        if self._is_first:
            self._is_first, part = False, part.removeprefix(_BOM)
        text = np.frombuffer(bytes((self._before,)) + part, np.uint8)
        quotes = np.flatnonzero(text == _QUOTE)
        if len(quotes):
            known = bool(quotes[0] == 0)  # it ended the part before
            first = int(known != self.is_open)  # of those that begin a cell
            begins, ends = quotes[first::2], quotes[1 - first :: 2]
            begins = begins[int(known and not first) :]
            ends = ends[: np.searchsorted(ends, len(part))]
            wrong = np.append(
                begins[~_IS_BORDER[text[begins - 1]]], ends[~_IS_BORDER[text[ends + 1]]]
            )
            if len(wrong):
                self.fault_line = self._line + int((text[1 : wrong.min()] == _LINE_END).sum())
            self.is_open ^= bool((len(quotes) - known) % 2)
        self._line += part.count(b"\n")
        self._before = int(text[-1])

    def fault(self, address: str) -> InputError | None:
        remedy = 'write a quotation mark inside a cell twice, and the cell in quotes: "5"" lamp"'
        if self.fault_line is not None:
            where = f"line {self.fault_line}: a quotation mark inside a cell"
            return InputError(f"{address}: {where}, which may end another one: {remedy}")
        if self.is_open:
            return InputError(f"{address}: a cell in quotes is not closed: {remedy}")
        return None


def read_header(stream: BinaryIO, _address: str) -> tuple[pa.Schema, None]:
    """Return the columns; the number of rows is not known."""
    with csv.open_csv(stream, _READING, _PARSING) as reader:
        return pa.schema([(name, pa.string()) for name in reader.schema.names]), None


def batches(
    stream: BinaryIO, address: str, schema: pa.Schema, columns: Sequence[str], _rows: int
) -> Iterator[pa.RecordBatch]:
    converting = csv.ConvertOptions(
        column_types=schema,
        include_columns=list(columns),
        strings_can_be_null=True,
        null_values=[""],
    )
    quotes = _Quotes(stream)
    try:
        with csv.open_csv(pa.PythonFile(quotes, "r"), _READING, _PARSING, converting) as reader:
            yield from reader
    except pa.ArrowException:
        if quotes.fault_line is None:
            raise
    if fault := quotes.fault(address):
        raise fault
