"""The checks that arrays of a snapshot must pass before anything reads them, and their words.

A check gets its array, and the arrays and sizes of the snapshot as the array's set or entity sees
them. It returns the first fault in words, or None. It follows no offset or id before comparing it
with its bounds. Threads share a large array in blocks, so small that their masks stay in a cache.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grace.configs.arrays import AnyArray, Bools
from grace.index.tables import cells
from grace.index.targeting.rules import count_rules

INT64_MAX = (1 << 63) - 1
BLOCK = 1 << 18  # entries


@dataclass(frozen=True, slots=True)
class View:
    # by name, without the name of the set or entity whose array is checked
    arrays: Mapping[str, AnyArray]
    sizes: Mapping[str, int]  # by the words of the table
    vocab_sizes: tuple[int, ...]  # tokens per position
    # the first node of each level of the trie, and at the end the number of nodes
    level_starts: tuple[int, ...]
    threads: int


Check = Callable[[AnyArray, View], str | None]
"""Returns the first fault in words. The arrays of earlier rows of the table are right."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """Offsets ascend from 0 to the number of `members`. No group is empty unless it may be."""

    members: str
    group: str
    may_be_empty: bool = False
    # the members are offsets themselves, so that the last one is no member
    of_offsets: bool = False

    def __call__(self, own: AnyArray, view: View) -> str | None:
        count = len(view.arrays[self.members]) - self.of_offsets
        if own[0] != 0:
            return f"offset 0 is {own[0]}, expected 0"
        rises = np.greater_equal if self.may_be_empty else np.greater
        at = _first_bad(
            range(len(own) - 1),
            lambda begin, end: rises(own[begin + 1 : end + 1], own[begin:end]),
            view.threads,
        )
        if at is not None:
            before, value = own[at : at + 2]
            if value < before:
                return f"offset {at + 1} is {value}, below the one before it, {before}"
            return f"{self.group} {at} is empty: offsets {at} and {at + 1} are both {value}"
        if own[-1] != count:
            members = "groups" if self.of_offsets else "entries"
            return f"the last offset is {own[-1]}, but {self.members} has {count} {members}"
        return None


def ends_of_levels(own: AnyArray, view: View) -> str | None:
    """The children of each level end where the next level ends."""
    for level, (end, after) in enumerate(pairwise(view.level_starts[1:])):
        if own[end] != after - 1:
            return (
                f"offset {end} is {own[end]}, expected {after - 1}: there the children of "
                f"level {level} end"
            )
    return None


def tokens(own: AnyArray, view: View) -> str | None:
    """Tokens ascend within a node, and are below the vocabulary size of their level."""
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

    def __call__(self, own: AnyArray, view: View) -> str | None:
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

    def __call__(self, own: AnyArray, view: View) -> str | None:
        columns = own.shape[1] if own.ndim > 1 else 1
        for column in range(columns):
            ids = own.reshape(-1)[column::columns]
            limit = view.sizes[self.limit if own.ndim == 1 else f"{self.limit} {column}"]
            at = _first_bad(range(len(ids)), _within(ids, self.first, limit - 1), view.threads)
            if at is not None:
                place = at * columns + column
                return _out_of_range(place, self.thing, ids[at], self.first, limit - 1)
        return None


def padding(own: AnyArray, view: View) -> str | None:
    """No bit is set beyond those of the schema's attributes."""
    bits = view.sizes["bits"]
    _, words = own.shape
    used = bits - 64 * (words - 1)
    wrong = np.flatnonzero(own[:, -1] >> np.uint64(used % 64))
    if used < 64 and len(wrong):
        return f"row {wrong[0]} has a bit set beyond the {bits} bits that the schema has"
    return None


def finite(own: AnyArray, view: View) -> str | None:
    every = range(len(own))
    at = _first_bad(every, lambda begin, end: np.isfinite(own[begin:end]), view.threads)
    return None if at is None else f"entry {at} is {own[at]}, expected a finite number"


def intervals(own: AnyArray, view: View) -> str | None:
    """Each row has two ends, with a finite number within, or is [1, 0], which has no number."""

    def good(begin: int, end: int) -> Bools:
        low, high = own[begin:end].T
        found: Bools = (low <= high) & (low < np.inf) & (high > -np.inf)
        found |= (low == 1) & (high == 0)
        return found

    at = _first_bad(range(len(own)), good, view.threads)
    return None if at is None else f"row {at} is {own[at].tolist()}, expected an interval"


def rules_of_ads(own: AnyArray, view: View) -> str | None:
    """The ads have as many rules as the manifest counts: a load makes room for that number."""
    found = count_rules(view.arrays["ad_rule"], view.sizes["rules"], own)
    counted = view.sizes["rules of ads"]
    return None if found == counted else f"the ads have {found} rules, expected {counted}"


def lookup(own: AnyArray, view: View) -> str | None:
    """Ordinals name all ads, in ascending order of ad id, so no ad occurs twice."""
    ids, every = view.arrays["ad_ids"], range(len(own))
    at = _first_bad(every, _within(own, 0, len(ids) - 1), view.threads)
    if at is not None:
        return _out_of_range(at, "ad", own[at], 0, len(ids) - 1)

    def good(begin: int, end: int) -> Bools:
        of_places = ids[own[begin - 1 : end]]
        found: Bools = of_places[1:] > of_places[:-1]
        return found

    at = _first_bad(every[1:], good, view.threads)
    return None if at is None else _not_ascending(at, "ad id", ids[own[at]], ids[own[at - 1]])


def texts(own: AnyArray, view: View) -> str | None:
    """The texts are UTF-8, and ascend byte by byte."""
    offsets = view.arrays["value_offsets"]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(own)]
    found = pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, buffers)

    def shown(at: int) -> bytes:
        return own[offsets[at] : offsets[at + 1]].tobytes()[:60]

    try:
        found.validate(full=True)
    except pa.ArrowInvalid:
        at = cells.texts(found).index(None)
        return f"entry {at} is {shown(at)!r}, expected UTF-8"
    before = pc.index(pc.less_equal(found[1:], found[:-1]), True).as_py()
    at = before + 1
    return None if before < 0 else _not_ascending(at, "value", shown(at), shown(before))


def _fault_in_groups(
    offsets: AnyArray, own: AnyArray, last: int, thing: str, threads: int
) -> str | None:
    """Return the first fault. `offsets` must ascend within `own`."""
    every = range(int(offsets[0]), int(offsets[-1]))
    at = _first_bad(every, _within(own, 0, last), threads)
    if at is not None:
        return _out_of_range(at, thing, own[at], 0, last)
    border = offsets.dtype.type  # another type would make searchsorted convert all offsets

    def good(begin: int, end: int) -> Bools:
        found: Bools = own[begin:end] > own[begin - 1 : end - 1]
        first, after = np.searchsorted(offsets, np.array([begin, end], border))
        found[offsets[first:after] - begin] = True
        return found

    at = _first_bad(every[1:], good, threads)
    return None if at is None else _not_ascending(at, thing, own[at], own[at - 1])


def _within(own: AnyArray, first: int, last: int) -> Callable[[int, int], Bools]:
    return lambda begin, end: (own[begin:end] >= first) & (own[begin:end] <= last)


def _first_bad(places: range, good: Callable[[int, int], Bools], threads: int) -> int | None:
    """Return the first place that is not good; None if there is none."""
    blocks = [places[at : at + BLOCK] for at in range(0, len(places), BLOCK)]

    def of_block(block: range) -> int | None:
        found = good(block.start, block.stop)
        return None if found.all() else block.start + int(found.argmin())

    with ThreadPoolExecutor(threads) as pool:
        found = pool.map(of_block, blocks) if len(blocks) > 1 else map(of_block, blocks)
        return next((at for at in found if at is not None), None)


def _out_of_range(at: int, thing: str, value: object, first: int, last: int) -> str:
    return f"entry {at} is {thing} {value}, expected {first} to {last}"


def _not_ascending(at: int, thing: str, value: object, before: object) -> str:
    return f"entry {at} is {thing} {value}, not above the one before it, {before}"
