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


WORDS = {
    Kind.FIRST_OFFSET: "offset 0 is {value}, expected 0",
    Kind.OFFSET_DESCENDS: "offset {at} is {value}, below the one before it, {before}",
    Kind.EMPTY_GROUP: "{thing} {left} is empty: offsets {left} and {at} are both {value}",
    Kind.LAST_OFFSET: "the last offset is {value}, but {members} has {limit} entries",
    Kind.OUT_OF_RANGE: "entry {at} is {thing} {value}, expected {first} to {last}",
    Kind.NOT_ASCENDING: "entry {at} is {thing} {value}, not above the one before it, {before}",
    Kind.PADDING_BIT: "row {at} has a bit set beyond the {limit} bits that the schema has",
    Kind.NOT_FINITE: "entry {at} is {value}, expected a finite number",
    Kind.NOT_UTF8: "entry {at} is {value}, expected UTF-8",
}


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
        found = find(own, len(own) - 1, count, not self.may_be_empty, view.threads)
        return _in_words(
            found, own.__getitem__, thing=self.group, members=self.members, limit=count
        )


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
            fault = _fault_in_groups(of_level, own, size - 1, "token", view.threads)
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
        last = INT64_MAX if self.limit is None else view.sizes[self.limit] - 1
        whole = np.array([0, len(own)])
        offsets = whole if self.offsets is None else view.arrays[self.offsets]
        return _fault_in_groups(offsets, own, last, self.thing, view.threads)


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
                found, last = (kind, at * columns + column), limit - 1
                return _in_words(
                    found, flat.__getitem__, thing=self.thing, first=self.first, last=last
                )
        return None


@dataclass(frozen=True, slots=True)
class Padding:
    """No bit is set beyond those of the schema's attributes."""

    def fault(self, own: Array, view: View) -> str | None:
        bits = view.sizes["bits"]
        return _in_words(
            find_in_padding(own, *own.shape, bits, view.threads), own.__getitem__, limit=bits
        )


@dataclass(frozen=True, slots=True)
class Finite:
    def fault(self, own: Array, view: View) -> str | None:
        return _in_words(find_in_weights(own, len(own), view.threads), own.__getitem__)


@dataclass(frozen=True, slots=True)
class Lookup:
    """Ordinals name all ads, in ascending order of ad id."""

    def fault(self, own: Array, view: View) -> str | None:
        ids = view.arrays["ad_ids"]
        found = find_in_lookup(ids, own, len(own), view.threads)
        if found[0] is Kind.NOT_ASCENDING:
            return _in_words(found, lambda at: ids[own[at]], thing="ad id")
        return _in_words(found, own.__getitem__, thing="ad", first=0, last=len(ids) - 1)


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts between `offsets` are UTF-8, and ascend byte by byte."""

    offsets: str

    def fault(self, own: Array, view: View) -> str | None:
        offsets = view.arrays[self.offsets]

        def text(at: int) -> bytes:
            return own[offsets[at] : offsets[at + 1]].tobytes()[:60]

        found = find_in_strings(offsets, len(offsets) - 1, own, len(own), view.threads)
        return _in_words(found, text, thing="value")


def _fault_in_groups(offsets: Array, own: Array, last: int, thing: str, threads: int) -> str | None:
    find = FIND_IN_GROUPS[offsets.dtype.str, own.dtype.str]
    found = find(offsets, len(offsets) - 1, own, len(own), last, threads)
    return _in_words(found, own.__getitem__, thing=thing, first=0, last=last)


def _in_words(found: Found, value_of: Callable[[int], Any], **facts: object) -> str | None:
    kind, at = found
    if kind is Kind.NONE:
        return None
    before = value_of(at - 1) if at > 0 else None
    return WORDS[kind].format(at=at, left=at - 1, value=value_of(at), before=before, **facts)


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
