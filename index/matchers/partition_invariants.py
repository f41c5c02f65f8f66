"""What holds for the partitions of k-way matchers, whichever SID went to which.

The partitions of a node join to the OR of what lies below it, and some of them contains the row of
each SID below: so k-way admits no more than mode `union`, and loses no eligible ad. In blocks, as
`grace.index.invariants`, which checks rows and ids.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.configs.errors import SnapshotError
from grace.index.matchers.node_matchers import NodeMatchers
from grace.index.trie import SidTrie

__all__ = ["check_no_empty_partition", "check_partitions", "check_sid_partitions"]

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.uint64]

_BLOCK = 1 << 18  # nodes or SIDs at a time


def check_partitions(file: str, trie: SidTrie, rows: NodeMatchers) -> None:
    """Raises SnapshotError. The leaves' rows must have been checked by `check_sid_partitions`."""
    sid_ids = rows.id_offsets(trie, *trie.entries_of_level(trie.sid_length))
    sid_rows = rows.index[sid_ids[:-1]]
    borders = np.arange(trie.num_leaves + 1, dtype=np.int64)
    for level in range(trie.sid_length - 1, 0, -1):
        nodes = slice(trie.level_starts[level], trie.level_starts[level + 1] + 1)
        children = trie.node_offsets[nodes].astype(np.int64)
        borders = borders[children - trie.entries_of_level(level + 1)[0]]
        first_entry = trie.entries_of_level(level)[0]
        for begin, end in _blocks(len(borders) - 1):
            ids = rows.id_offsets(trie, first_entry + begin, first_entry + end)
            _check_joined(file, rows, first_entry + begin, ids, sid_rows, borders[begin : end + 1])
        _check_contained(file, trie, rows, level, sid_rows, borders)


def check_sid_partitions(file: str, trie: SidTrie, rows: NodeMatchers) -> None:
    """Each SID is one partition; the others of static k-way are empty."""
    begin, end = trie.entries_of_level(trie.sid_length)
    for first, last in _blocks(end - begin):
        ids = rows.id_offsets(trie, begin + first, begin + last)
        used = np.asarray(rows.table[rows.index[ids[0] : ids[-1]]].any(axis=1))
        used[ids[:-1] - ids[0]] = False
        if used.any():
            at = int(np.searchsorted(ids, ids[0] + np.flatnonzero(used)[0], side="right")) - 1
            entry = begin + first + at
            raise SnapshotError(file, f"entry {entry} is of one SID, but has several partitions")


def check_no_empty_partition(file: str, trie: SidTrie, rows: NodeMatchers) -> None:
    """Dynamic k-way stores a partition only if it has a SID, and so a row with a bit.

    Without attributes no bitmask row has one; but then one partition is enough for any node.
    """
    for first, last in _blocks(trie.num_entries):
        assert rows.offsets is not None
        ids = rows.offsets[first : last + 1].astype(np.int64)
        empty = ~rows.table[rows.index[ids[0] : ids[-1]]].any(axis=1)
        empty &= np.repeat(np.diff(ids) > 1, np.diff(ids))
        if empty.any():
            at = int(np.searchsorted(ids, ids[0] + np.flatnonzero(empty)[0], side="right")) - 1
            raise SnapshotError(file, f"entry {first + at} has a partition without a SID")


def _blocks(count: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, count, _BLOCK):
        yield begin, min(begin + _BLOCK, count)


def _check_joined(
    file: str, rows: NodeMatchers, first_entry: int, ids: Array, sid_rows: Array, borders: Array
) -> None:
    """The partitions of some nodes join to the OR of their SIDs' rows, cut at `borders`."""
    joined = _joined(rows.table, rows.index[ids[0] : ids[-1]], ids - ids[0])
    expected = _joined(rows.table, sid_rows[borders[0] : borders[-1]], borders - borders[0])
    wrong = np.flatnonzero((joined != expected).any(axis=1))
    if len(wrong):
        entry = first_entry + int(wrong[0])
        raise SnapshotError(
            file, f"entry {entry} has partitions that are not the OR of the SIDs below it"
        )


def _joined(table: Rows, members: Array, borders: Array) -> Rows:
    """The OR of each group's rows, piece by piece: a node may have many SIDs."""
    joined = np.zeros((len(borders) - 1, table.shape[1]), np.uint64)
    for begin, end in _blocks(len(members)):
        first = int(np.searchsorted(borders, begin, side="right")) - 1
        last = int(np.searchsorted(borders, end, side="left"))
        starts = np.maximum(borders[first:last], begin) - begin
        joined[first:last] |= np.bitwise_or.reduceat(table[members[begin:end]], starts, axis=0)
    return joined


def _check_contained(
    file: str, trie: SidTrie, rows: NodeMatchers, level: int, sid_rows: Array, borders: Array
) -> None:
    """Some partition of its node contains the row of every SID."""
    entry_begin, entry_end = trie.entries_of_level(level)
    ids = rows.id_offsets(trie, entry_begin, entry_end)
    for begin, end in _blocks(trie.num_leaves):
        left = np.arange(begin, end)
        nodes = np.searchsorted(borders, left, side="right") - 1
        partition = 0
        while len(left):
            at = ids[nodes] + partition
            behind = at >= ids[nodes + 1]
            if behind.any():
                entry = entry_begin + int(nodes[np.argmax(behind)])
                raise SnapshotError(
                    file, f"entry {entry} has no partition that contains a SID below it"
                )
            own = rows.table[sid_rows[left]]
            outside = (own & ~rows.table[rows.index[at]]).any(axis=1)
            left, nodes = left[outside], nodes[outside]
            partition += 1
