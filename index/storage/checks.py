"""The checks that arrays of a snapshot must pass before anything reads them, and their words.

A check gets its array, and the arrays and sizes of the snapshot as the array's set or entity sees
them. It returns the first fault in words, or None. The loops are native/src/structure.cpp: each
reports the first fault as a kind and a position, and follows no offset or id before it has compared
it with its bounds.
"""

from collections.abc import Callable, Mapping
from ctypes import c_int32, c_int64
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from grace.native.loader import array_in, array_out, declare

Array = npt.NDArray[Any]
Found = tuple["Kind", int]

INT64_MAX = (1 << 63) - 1


class Kind(IntEnum):
    """The kinds of faults, with the numbers of native/src/structure.cpp."""

    NONE = 0
    FIRST_OFFSET = 1
    OFFSET_DESCENDS = 2
    EMPTY_GROUP = 3
    LAST_OFFSET = 4
    OUT_OF_RANGE = 5
    NOT_ASCENDING = 6
    PADDING_BIT = 7
    NOT_FINITE = 8
    NOT_UTF8 = 9


@dataclass(frozen=True, slots=True)
class View:
    """
    arrays          by name, without the name of the set or entity whose array is checked
    sizes           by the words of the table
    vocab_sizes     tokens per position
    level_starts    the first node of each level of the trie, and at the end the number of nodes
    """

    arrays: Mapping[str, Array]
    sizes: Mapping[str, int]
    vocab_sizes: tuple[int, ...]
    level_starts: tuple[int, ...]
    threads: int


class Check(Protocol):
    def fault(self, own: Array, view: View) -> str | None:
        """Return the first fault in words. The arrays of earlier rows of the table are right."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """Offsets ascend from 0 to the number of `members`. No group is empty unless it may be."""

    members: str
    group: str
    may_be_empty: bool = False

    def fault(self, own: Array, view: View) -> str | None:
        count = len(view.arrays[self.members])
        find = FIND_IN_OFFSETS[own.dtype.str]
        kind, at = find(own, len(own) - 1, count, not self.may_be_empty, view.threads)
        if kind is Kind.NONE:
            return None
        if kind is Kind.FIRST_OFFSET:
            return f"offset 0 is {own[0]}, expected 0"
        if kind is Kind.OFFSET_DESCENDS:
            return f"offset {at} is {own[at]}, below the one before it, {own[at - 1]}"
        if kind is Kind.EMPTY_GROUP:
            return f"{self.group} {at - 1} is empty: offsets {at - 1} and {at} are both {own[at]}"
        return f"the last offset is {own[at]}, but {self.members} has {count} entries"


@dataclass(frozen=True, slots=True)
class Levels:
    """The children of each level end where the next level ends."""

    def fault(self, own: Array, view: View) -> str | None:
        for level, (end, after) in enumerate(pairwise(view.level_starts[1:])):
            if own[end] != after - 1:
                return (
                    f"offset {end} is {own[end]}, expected {after - 1}: there the children of "
                    f"level {level} end"
                )
        return None


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens ascend within a node, and are below the vocabulary size of their level."""

    def fault(self, own: Array, view: View) -> str | None:
        offsets, starts = view.arrays["node_offsets"], view.level_starts
        for level, size in enumerate(view.vocab_sizes):
            of_level = offsets[starts[level] : starts[level + 1] + 1]
            fault = _fault_in_groups(of_level, own, size, "token", view.threads)
            if fault is not None:
                return fault
        return None


@dataclass(frozen=True, slots=True)
class Groups:
    """Ids ascend within each group, and are 0 .. `limit` - 1."""

    thing: str
    offsets: str | None = None  # that cut the groups; None: all are one group
    limit: str | None = None  # a size; None: any number that is not negative

    def fault(self, own: Array, view: View) -> str | None:
        limit = INT64_MAX + 1 if self.limit is None else view.sizes[self.limit]
        whole = np.array([0, len(own)])
        offsets = whole if self.offsets is None else view.arrays[self.offsets]
        return _fault_in_groups(offsets, own, limit, self.thing, view.threads)


@dataclass(frozen=True, slots=True)
class Ids:
    """Ids are `first` .. `limit` - 1. Each column of a table has its own limit."""

    thing: str
    limit: str
    first: int = 0

    def fault(self, own: Array, view: View) -> str | None:
        flat, columns = own.reshape(-1), own.shape[1] if own.ndim > 1 else 1
        for column in range(columns):
            limit = view.sizes[self.limit if own.ndim == 1 else f"{self.limit} {column}"]
            # A column of [n, columns] is every `columns`-th number from its first.
            ids = flat[column:]
            kind, at = find_in_ids(ids, len(own), columns, self.first, limit, view.threads)
            if kind is not Kind.NONE:
                return _out_of_range(at * columns + column, self.thing, ids[at * columns], limit)
        return None


@dataclass(frozen=True, slots=True)
class Padding:
    """No bit is set beyond those of the schema's attributes."""

    def fault(self, own: Array, view: View) -> str | None:
        bits = view.sizes["bits"]
        kind, row = find_in_padding(own, *own.shape, bits, view.threads)
        if kind is Kind.NONE:
            return None
        return f"row {row} has a bit set beyond the {bits} bits that the schema has"


@dataclass(frozen=True, slots=True)
class Finite:
    def fault(self, own: Array, view: View) -> str | None:
        kind, at = find_in_weights(own, len(own), view.threads)
        return None if kind is Kind.NONE else f"entry {at} is {own[at]}, expected a finite number"


@dataclass(frozen=True, slots=True)
class Lookup:
    """Ordinals name all ads, in ascending order of ad id."""

    def fault(self, own: Array, view: View) -> str | None:
        ids = view.arrays["ad_ids"]
        kind, at = find_in_lookup(ids, own, len(own), view.threads)
        if kind is Kind.NONE:
            return None
        if kind is Kind.OUT_OF_RANGE:
            return f"entry {at} is ad {own[at]}, but there are {len(ids)}"
        here, before = ids[own[at]], ids[own[at - 1]]
        return f"entry {at} leads to ad id {here}, not above the one before it, {before}"


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts between `offsets` are UTF-8, and ascend byte by byte."""

    offsets: str

    def fault(self, own: Array, view: View) -> str | None:
        offsets = view.arrays[self.offsets]
        kind, at = find_in_strings(offsets, len(offsets) - 1, own, len(own), view.threads)
        if kind is Kind.NONE:
            return None
        shown = repr(own[offsets[at] : offsets[at + 1]].tobytes()[:60])
        wrong = "expected UTF-8" if kind is Kind.NOT_UTF8 else "not above the one before it"
        return f"value {at} is {shown}, {wrong}"


def _fault_in_groups(
    offsets: Array, own: Array, limit: int, thing: str, threads: int
) -> str | None:
    find = FIND_IN_GROUPS[offsets.dtype.str, own.dtype.str]
    kind, at = find(offsets, len(offsets) - 1, own, len(own), limit - 1, threads)
    if kind is Kind.NONE:
        return None
    if kind is Kind.NOT_ASCENDING:
        return f"entry {at} is {thing} {own[at]}, not above the one before it, {own[at - 1]}"
    return _out_of_range(at, thing, own[at], limit)


def _out_of_range(at: int, thing: str, value: Any, limit: int) -> str:
    if limit > INT64_MAX:
        return f"entry {at} is {thing} {value}, expected none below 0"
    return f"entry {at} is {thing} {value}, but there are {limit}"


def _find(name: str, *argtypes: Any) -> Callable[..., Found]:
    """Return a native check, whose last argument is the number of threads."""
    native = declare(name, *argtypes, c_int32, array_out(np.int64))

    def find(*arguments: Any) -> Found:
        fault = np.zeros(2, np.int64)
        native(*arguments, fault)
        return Kind(int(fault[0])), int(fault[1])

    return find


def _find_in_groups(
    suffix: str, offsets: type[np.generic], values: type[np.generic]
) -> Callable[..., Found]:
    name = f"grace_check_groups_{suffix}"
    return _find(name, array_in(offsets), c_int64, array_in(values), c_int64, c_int64)


# Take offsets, groups, members, nonempty, threads.
FIND_IN_OFFSETS = {
    "<i4": _find("grace_check_offsets_i32", array_in(np.int32), c_int64, c_int64, c_int32),
    "<i8": _find("grace_check_offsets_i64", array_in(np.int64), c_int64, c_int64, c_int32),
}
# Take offsets, groups, values, count, greatest, threads.
FIND_IN_GROUPS = {
    ("<i4", "<u2"): _find_in_groups("i32_u16", np.int32, np.uint16),
    ("<i8", "<i4"): _find_in_groups("i64_i32", np.int64, np.int32),
    ("<i8", "<i8"): _find_in_groups("i64_i64", np.int64, np.int64),
}
# Takes ids, count, stride, begin, end, threads.
find_in_ids = _find("grace_check_ids", array_in(np.int32), c_int64, c_int64, c_int64, c_int64)
# Takes table, rows, words, bits, threads.
find_in_padding = _find("grace_check_padding", array_in(np.uint64, 2), c_int64, c_int64, c_int64)
# Takes ad_ids, lookup, ads, threads.
find_in_lookup = _find("grace_check_lookup", array_in(np.int64), array_in(np.int32), c_int64)
# Takes weights, count, threads.
find_in_weights = _find("grace_check_finite", array_in(np.float32), c_int64)
# Takes offsets, strings, utf8, bytes, threads.
find_in_strings = _find(
    "grace_check_strings", array_in(np.int64), c_int64, array_in(np.uint8), c_int64
)
