"""Retrieval without a model: the SIDs nearest to a user's clicks in the trie.

A leaf's score is the number of leading tokens that it shares with the nearest click, so the SIDs of
a clicked product line come first, then those of the brand, then of the topic. It is what a
demonstration can show of a catalogue by itself, and a baseline that a model has to beat.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from index.snapshot import Snapshot
from index.trie import NO_NODE, SidTrie

__all__ = ["Neighbours", "nearest_leaves"]


@dataclass(frozen=True, slots=True)
class Neighbours:
    """
    leaves int32 [n], scores float32 [n], descending
    """

    leaves: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]


def nearest_leaves(
    snapshot: Snapshot,
    clicks: Sequence[tuple[int, ...]],
    admitted: npt.NDArray[np.bool_],
    most: int,
) -> Neighbours:
    """The best `most` leaves that are admitted.   admitted bool [child entries]"""
    trie = snapshot.trie
    shared = np.zeros(trie.num_leaves, np.float32)
    for click in clicks:
        for length in range(1, trie.sid_length + 1):
            node = trie.walk(click[:length])
            if node == NO_NODE:
                break
            begin, end = _leaves_below(trie, node, length)
            shared[begin:end] = np.maximum(shared[begin:end], length)
    candidates = np.flatnonzero(admitted[trie.first_leaf - 1 :] & (shared > 0))
    best = candidates[np.argsort(-shared[candidates], kind="stable")][:most]
    return Neighbours(best.astype(np.int32), shared[best])


def _leaves_below(trie: SidTrie, node: int, level: int) -> tuple[int, int]:
    """The run of leaves under a node: breadth-first numbering keeps them together."""
    begin, end = node, node + 1
    for _ in range(level, trie.sid_length):
        begin, end = int(trie.node_offsets[begin]) + 1, int(trie.node_offsets[end]) + 1
    return begin - trie.first_leaf, end - trie.first_leaf
