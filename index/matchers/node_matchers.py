"""The matchers of the trie's nodes: what a user must pass for a node to be admitted.

A node has one bitmask matcher over all attributes, and one Bloom matcher for each set. A matcher is
one row or, in the k-way modes, one row per partition of the SIDs below the node: a user passes the
matcher if they pass any of its rows. Rows are deduplicated within a level and stored level by
level, so that storage can be reported before and after deduplication.

The hash of a set's value is also the query, from which match.h takes the Bloom bits.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from grace.configs.arrays import Int32, UInt8, UInt64
from grace.configs.eligibility import KWay
from grace.index.targeting.schema import RESERVED_VALUE, TargetSet
from grace.index.trie import SidTrie


@dataclass(frozen=True, slots=True)
class NodeMatchers:
    """In mode `union` entry j has id j alone; in mode `static` every entry has as many ids as its
    level's width, those of empty partitions leading to a row of zeros.
    """

    # [ids]: the rows of child entries, entry after entry; entry j leads to node j + 1
    index: Int32
    table: UInt64  # [rows, words]
    level_rows: tuple[int, ...]  # rows of level 1 .. sid_length
    level_widths: tuple[int, ...] | None = None  # static: ids per entry of level 1 .. sid_length
    # [child entries + 1], dynamic: the ids of entry j are offsets[j] .. offsets[j + 1]
    offsets: Int32 | None = None

    def borders(self, trie: SidTrie) -> Int32:
        """Return where the ids of each entry begin, and those of the last one end."""
        if self.offsets is not None:
            return self.offsets
        widths = self.level_widths or (1,) * trie.sid_length
        counts = np.repeat(np.array(widths, np.int32), trie.level_counts[1:])
        return np.concatenate([np.zeros(1, np.int32), counts.cumsum(dtype=np.int32)])


@dataclass(frozen=True, slots=True)
class BloomMatchers:
    rows: NodeMatchers
    # [rows]: 1 where the row contains the reserved element, which every user has
    star: UInt8


@dataclass(frozen=True, slots=True)
class Matchers:
    bitmask: NodeMatchers
    blooms: tuple[BloomMatchers, ...]  # in the schema's order of sets
    k_way: KWay | None = None  # how partitions were made; None in mode `union`


def value_hash(value: str, seed: int) -> int:
    return xxhash.xxh3_64_intdigest(value.encode(), seed)


def bloom_positions(hashes: Any, target_set: TargetSet) -> tuple[Any, ...]:
    """The bits that a value sets, and that a row must have to contain it; of a hash or of many."""
    mask = target_set.bloom_bits - 1
    return tuple((hashes >> (16 * i)) & mask for i in range(target_set.bloom_hashes))


def star_rows(table: UInt64, target_set: TargetSet, hash_seed: int) -> UInt8:
    """1 for each Bloom row that contains the reserved element.   [rows, words] -> [rows]"""
    star = np.ones(len(table), np.uint8)
    for bit in bloom_positions(value_hash(RESERVED_VALUE, hash_seed), target_set):
        star &= ((table[:, bit >> 6] >> np.uint64(bit & 63)) & np.uint64(1)).astype(np.uint8)
    return star
