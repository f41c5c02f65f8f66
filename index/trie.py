"""The trie over all SIDs: breadth-first, sorted, in two arrays.

Node 0 is the root. Nodes are numbered level by level and, within a level, in prefix order, so child
entry j leads to node j + 1, and leaf i is the i-th SID. Level t holds the prefixes of length t.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from grace.configs.arrays import Int32, Int64, Integers, UInt16

ROOT = 0
NO_NODE = -1  # the node of a dead beam


@dataclass(frozen=True)
class SidTrie:
    vocab_sizes: tuple[int, ...]
    level_counts: tuple[int, ...]  # nodes per level: 1, ..., number of SIDs
    # [internal nodes + 1], child entries of node i: node_offsets[i] .. [i + 1]
    node_offsets: Int32
    csr_tokens: UInt16  # [child entries]: strictly ascending within a node

    @property
    def sid_length(self) -> int:
        return len(self.vocab_sizes)

    @property
    def num_entries(self) -> int:
        return sum(self.level_counts) - 1

    @property
    def num_leaves(self) -> int:
        return self.level_counts[-1]

    @cached_property
    def level_starts(self) -> tuple[int, ...]:
        """The first node of each level, and at the end the number of nodes."""
        return tuple(accumulate(self.level_counts, initial=0))

    @property
    def first_leaf(self) -> int:
        return self.level_starts[-2]

    def entries_of_level(self, level: int) -> tuple[int, int]:
        """The child entries that lead to the nodes of a level, 1 .. sid_length."""
        return self.level_starts[level] - 1, self.level_starts[level + 1] - 1

    def children(self, node: int) -> tuple[UInt16, range]:
        """The tokens that continue a node's prefix, and the nodes they lead to."""
        begin, end = int(self.node_offsets[node]), int(self.node_offsets[node + 1])
        return self.csr_tokens[begin:end], range(begin + 1, end + 1)

    def walk(self, prefix: tuple[int, ...]) -> int:
        """The node of a prefix, or NO_NODE if the catalogue has no SID that begins with it."""
        node = ROOT
        for token in prefix:
            tokens, nodes = self.children(node)
            at = int(np.searchsorted(tokens, token))
            if at == len(tokens) or tokens[at] != token:
                return NO_NODE
            node = nodes[at]
        return node

    def path(self, leaf: int) -> tuple[int, ...]:
        """The nodes that lead to a leaf, from level 1 to the leaf's own."""
        nodes = [self.first_leaf + leaf]
        while len(nodes) < self.sid_length:
            nodes.append(int(self._parents(nodes[-1] - 1)))
        return tuple(reversed(nodes))

    def sids(self, leaves: Integers) -> UInt16:
        """The tokens of the given leaves, leaf numbers 0 .. num_leaves - 1.   [n] -> [n, L]"""
        tokens = np.empty((len(leaves), self.sid_length), np.uint16)
        entries = leaves.astype(np.int64) + (self.first_leaf - 1)
        for position in reversed(range(self.sid_length)):
            tokens[:, position] = self.csr_tokens[entries]
            entries = self._parents(entries) - 1
        return tokens

    def _parents(self, entries: npt.ArrayLike) -> Int64:
        """The node of each child entry j: the last one whose children begin at or before j."""
        offsets = self.node_offsets
        # Of another type, they would make searchsorted convert the offsets of all nodes.
        return np.searchsorted(offsets, np.asarray(entries, offsets.dtype), side="right") - 1
