"""Number equal spans once, by first use, in memory that a budget bounds."""

from collections.abc import Callable, Iterator
from ctypes import byref, c_int32, c_int64, c_void_p
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace.index.snapshot import require_ids
from grace.native.loader import array_in, array_out, declare

COPIES_BUDGET = 1 << 28
"""Bytes of spans that are compared at a time."""

_new = declare("grace_copies_new", c_int64, c_int64, c_void_p)
_free = declare("grace_copies_free", c_void_p)
_add = declare(
    "grace_copies_add",
    c_void_p,
    c_int64,
    c_void_p,
    c_int64,
    array_in(np.uint32),
    c_int32,
    array_out(np.int32),
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
class Numbered:
    """new_of int32 [spans]; is_first: which spans are the first of their kind"""

    new_of: npt.NDArray[np.int32]
    is_first: npt.NDArray[np.bool_]


def number_spans(count: int, size: int, blocks: Callable[[], Iterator[Spans]]) -> Numbered:
    """Number `count` spans of about `size` bytes, which `blocks` reads from their beginning."""
    require_ids(count, "rows of all shards")
    first_of = np.full(count, -1, np.int32)
    parts = max(1, -(-size // COPIES_BUDGET))
    for part in range(parts):
        _find_first(blocks(), parts, part, first_of)
    is_first = first_of == np.arange(count, dtype=np.int32)
    ids = np.cumsum(is_first, dtype=np.int32) - np.int32(1)
    return Numbered(ids[first_of], is_first)


def _find_first(
    blocks: Iterator[Spans], parts: int, part: int, first_of: npt.NDArray[np.int32]
) -> None:
    """Find the first of equal spans, of those whose hash belongs to this part."""
    handle = c_void_p()
    _new(parts, part, byref(handle))
    try:
        at = 0
        for spans in blocks:
            begins = None if spans.offsets is None else spans.offsets.ctypes.data
            found = first_of[at : at + len(spans)]
            _add(handle, len(spans), begins, spans.width, spans.words, at, found)
            at += len(spans)
    finally:
        _free(handle)
