"""The matchers of the trie's nodes: what a user must pass for a node to be admitted.

One bitmask matcher per node over all attributes, and one Bloom matcher per node for each set. A
matcher is one row or, in the k-way modes, one row per partition of the SIDs below the node: a user
passes it who passes any of them. The rows are deduplicated within each level and stored level after
level, so a level's rows lie together and its storage can be told before and after deduplication.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from grace.index.trie import SidTrie

__all__ = [
    "FILL_UNIT",
    "BloomMatchers",
    "DynamicKWay",
    "KWay",
    "MatcherMode",
    "Matchers",
    "NodeMatchers",
    "StaticKWay",
]

FILL_UNIT = 1_000_000
"""Fill targets are whole millionths: a fraction that every reader compares alike."""

MAX_PARTITIONS = 1024  # of one node


class MatcherMode(StrEnum):
    CD = "cd"  # none: every valid token is admitted
    UNION = "union"  # a node's row is the OR of all rows below it
    STATIC = "static"  # k-way, as many partitions as the node's level says
    DYNAMIC = "dynamic"  # k-way, as many partitions as the node needs to be selective


@dataclass(frozen=True, slots=True)
class StaticKWay:
    widths: tuple[int, ...]  # partitions of a node of level 1 .. sid_length

    def __post_init__(self) -> None:
        for i, width in enumerate(self.widths):
            if not 1 <= width <= MAX_PARTITIONS:
                raise ValueError(f"widths[{i}]: must be 1 to {MAX_PARTITIONS}, got {width}")


@dataclass(frozen=True, slots=True)
class DynamicKWay:
    """k = 1, 2, 4 .. k_max, until the mean fill of a node's partitions is at most the target."""

    fill_target_millionths: int = 250_000
    k_max: int = 32

    def __post_init__(self) -> None:
        target = self.fill_target_millionths
        if not 0 <= target <= FILL_UNIT:
            raise ValueError(f"fill_target_millionths: must be 0 to {FILL_UNIT}, got {target}")
        if not 1 <= self.k_max <= MAX_PARTITIONS or self.k_max & (self.k_max - 1):
            raise ValueError(
                f"k_max: must be a power of two from 1 to {MAX_PARTITIONS}, got {self.k_max}"
            )


KWay = StaticKWay | DynamicKWay


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
        """A level's first entry, its first id and its ids per entry.   int64 [sid_length, 3]"""
        widths = np.ones(trie.sid_length, np.int64)
        if self.level_widths is not None:
            widths[:] = self.level_widths
        firsts = np.array(trie.level_starts[1:], np.int64) - 1
        ids = np.diff(firsts) * widths
        return np.column_stack([firsts[:-1], np.cumsum(ids) - ids, widths])

    def id_offsets(self, trie: SidTrie, begin: int, end: int) -> npt.NDArray[np.int64]:
        """Where the ids of entries begin .. end - 1, all of one level, begin; and the end."""
        if self.offsets is not None:
            return self.offsets[begin : end + 1].astype(np.int64)
        levels = self.id_levels(trie)
        at = np.searchsorted(levels[:, 0], begin, side="right") - 1
        first_entry, first_id, width = levels[at].tolist()
        places = np.arange(begin - first_entry, end + 1 - first_entry, dtype=np.int64)
        return places * np.int64(width) + np.int64(first_id)

    def ids_of_level(self, trie: SidTrie, level: int) -> tuple[int, int]:
        """Where in `index` the ids of a level begin and end."""
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
