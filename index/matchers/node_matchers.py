"""The matchers of the trie's nodes: what a user must pass for a node to be admitted.

A node has one bitmask matcher over all attributes, and one Bloom matcher for each set. A matcher is
one row or, in the k-way modes, one row per partition of the SIDs below the node: a user passes the
matcher if they pass any of its rows. Rows are deduplicated within a level and stored level by
level, so that storage can be reported before and after deduplication.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace.configs.eligibility import KWay
from grace.index.trie import SidTrie


@dataclass(frozen=True, slots=True)
class NodeMatchers:
    """
    index    int32 [ids]                the rows of child entries, entry after entry; entry j leads
                                        to node j + 1
    table    uint64 [rows, words]
    offsets  int32 [child entries + 1]  dynamic: the ids of entry j are offsets[j] .. offsets[j + 1]

    In mode `union` entry j has id j alone; in mode `static` every entry has as many ids as its
    level's width, those of empty partitions leading to a row of zeros.
    """

    index: npt.NDArray[np.int32]
    table: npt.NDArray[np.uint64]
    level_rows: tuple[int, ...]  # rows of level 1 .. sid_length
    level_widths: tuple[int, ...] | None = None  # static: ids per entry of level 1 .. sid_length
    offsets: npt.NDArray[np.int32] | None = None

    def id_levels(self, trie: SidTrie) -> npt.NDArray[np.int64]:
        """Return each level's first entry, first id and ids per entry.   int64 [sid_length, 3]"""
        widths = np.ones(trie.sid_length, np.int64)
        if self.level_widths is not None:
            widths[:] = self.level_widths
        firsts = np.array(trie.level_starts[1:], np.int64) - 1
        ids = np.diff(firsts) * widths
        return np.column_stack([firsts[:-1], np.cumsum(ids) - ids, widths])

    def id_offsets(self, trie: SidTrie, begin: int, end: int) -> npt.NDArray[np.int64]:
        """Return the borders of the ids of entries begin .. end - 1, which are of one level."""
        if self.offsets is not None:
            return self.offsets[begin : end + 1].astype(np.int64)
        levels = self.id_levels(trie)
        at = np.searchsorted(levels[:, 0], begin, side="right") - 1
        first_entry, first_id, width = levels[at].tolist()
        places = np.arange(begin - first_entry, end + 1 - first_entry, dtype=np.int64)
        return places * np.int64(width) + np.int64(first_id)

    def ids_of_level(self, trie: SidTrie, level: int) -> tuple[int, int]:
        """Return where in `index` the ids of a level begin and end."""
        begin, end = trie.entries_of_level(level)
        if self.offsets is not None:
            return int(self.offsets[begin]), int(self.offsets[end])
        _, first_id, width = self.id_levels(trie)[level - 1].tolist()
        return first_id, first_id + (end - begin) * width


@dataclass(frozen=True, slots=True)
class BloomMatchers:
    """
    star  uint8 [rows]   1 where the row contains the reserved element, which every user has
    """

    rows: NodeMatchers
    star: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Matchers:
    bitmask: NodeMatchers
    blooms: tuple[BloomMatchers, ...]  # in the schema's order of sets
    k_way: KWay | None = None  # how partitions were made; None in mode `union`
