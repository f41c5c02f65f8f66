"""Number equal spans once over many tables, by first use, in memory that a budget bounds."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace.index.snapshot import require_ids
from grace.index.storage.array_file import blocks
from grace.native.loader import array_in, array_out, declare

COPIES_BUDGET = 1 << 28
"""Bytes of spans that are compared at a time."""

_new = declare("grace_copies_new", ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
_free = declare("grace_copies_free", ctypes.c_void_p)
_add = declare(
    "grace_copies_add",
    *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, array_in(np.uint32)),
    *(ctypes.c_int32, array_out(np.int32)),
)


@dataclass(frozen=True, slots=True)
class Spans:
    """Span i is words[offsets[i] : offsets[i + 1]], or `width` words where there are no offsets.

    words uint32 [...], offsets int64 [spans + 1]
    """

    words: npt.NDArray[np.uint32]
    width: int = 0
    offsets: npt.NDArray[np.int64] | None = None

    @staticmethod
    def of_rows(rows: npt.NDArray[np.generic]) -> "Spans":
        """Rows [n, width] of 4 or 8 bytes per number."""
        words = np.ascontiguousarray(rows).view(np.uint32)
        return Spans(words.reshape(-1), words.shape[1])

    def __len__(self) -> int:
        return len(self.words) // self.width if self.offsets is None else len(self.offsets) - 1


@dataclass(frozen=True, slots=True)
class SpanTable:
    """A table of `count` spans in about `bytes` bytes; `blocks` reads it from its beginning."""

    count: int
    bytes: int
    blocks: Callable[[], Iterator[Spans]]

    @staticmethod
    def of_rows(rows: npt.NDArray[np.generic], begin: int, end: int) -> "SpanTable":
        size = (end - begin) * rows.shape[1] * rows.itemsize
        return SpanTable(end - begin, size, lambda: map(Spans.of_rows, blocks(rows, begin, end)))


@dataclass(frozen=True, slots=True)
class Numbered:
    """For each table: new_of int32 [spans], and which of its spans are the first of their kind."""

    count: int
    new_of: tuple[npt.NDArray[np.int32], ...]
    is_first: tuple[npt.NDArray[np.bool_], ...]


def number_spans(tables: Sequence[SpanTable]) -> Numbered:
    """Number by first use: the tables one after another, each in its own order."""
    borders = np.cumsum([0, *(table.count for table in tables)])
    total = int(borders[-1])
    require_ids(total, "rows of all shards")
    first_of = np.full(total, -1, np.int32)
    parts = max(1, -(-sum(table.bytes for table in tables) // COPIES_BUDGET))
    for part in range(parts):
        _find_first(tables, parts, part, first_of)
    is_first = first_of == np.arange(total, dtype=np.int32)
    ids = np.cumsum(is_first, dtype=np.int32) - np.int32(1)
    cuts = borders[1:-1]
    return Numbered(
        int(is_first.sum()), tuple(np.split(ids[first_of], cuts)), tuple(np.split(is_first, cuts))
    )


def _find_first(
    tables: Sequence[SpanTable], parts: int, part: int, first_of: npt.NDArray[np.int32]
) -> None:
    """Find the first of equal spans, of those whose hash belongs to this part."""
    handle = ctypes.c_void_p()
    _new(parts, part, ctypes.byref(handle))
    try:
        at = 0
        for table in tables:
            end = at + table.count
            for spans in table.blocks():
                begins = None if spans.offsets is None else spans.offsets.ctypes.data
                found = first_of[at : at + len(spans)]
                _add(handle, len(spans), begins, spans.width, spans.words, at, found)
                at += len(spans)
            if at != end:
                raise ValueError(f"a table of {table.count} spans gave {at - end + table.count}")
    finally:
        _free(handle)
