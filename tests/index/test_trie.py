"""What leads to a leaf is found without work that grows with the catalogue."""

import tracemalloc

import numpy as np

from grace.index.trie import SidTrie

LEAVES = 60_000


def test_the_offsets_of_all_nodes_are_not_copied() -> None:
    """Leaf i is the only one below the root's child i, and its tokens are i and i % 7."""
    tokens = np.arange(LEAVES)
    trie = SidTrie(
        (LEAVES, 7),
        (1, LEAVES, LEAVES),
        np.concatenate([[0], np.arange(LEAVES, 2 * LEAVES + 1)]).astype(np.int32),
        np.concatenate([tokens, tokens % 7]).astype(np.uint16),
    )
    tracemalloc.start()
    try:
        sids, path = trie.sids(np.array([9, 59_999])), trie.path(59_999)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sids.tolist() == [[9, 2], [59_999, 2]]
    assert path == (LEAVES, 2 * LEAVES)
    assert most < trie.node_offsets.nbytes // 10
