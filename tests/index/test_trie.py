"""The trie's numbering, walked both ways, and ads looked up by id."""

from collections.abc import Sequence

import numpy as np
import pytest

from grace.index.targeting.schema import TargetingSchema
from grace.index.trie import NO_NODE, ROOT, SidTrie
from support.oracle import RawAd
from support.plain_builder import plain_snapshot
from support.strategies import random_case

SIDS = [(0, 1, 2), (0, 1, 4), (0, 3, 0), (2, 0, 0), (2, 0, 1)]


def trie_of(sids: Sequence[tuple[int, ...]], vocab_sizes: tuple[int, ...]) -> SidTrie:
    ads = [RawAd(i, sid) for i, sid in enumerate(sids)]
    return plain_snapshot(TargetingSchema((), (), 0), vocab_sizes, ads).trie


def test_walking_a_prefix_finds_its_node_and_nothing_else() -> None:
    trie = trie_of(SIDS, (3, 4, 5))
    assert trie.walk(()) == ROOT
    assert trie.walk((2,)) == 2
    assert [trie.walk(sid) - trie.first_leaf for sid in SIDS] == [0, 1, 2, 3, 4]
    for absent in [(1,), (0, 2), (0, 1, 3), (2, 0, 4)]:
        assert trie.walk(absent) == NO_NODE


@pytest.mark.parametrize("seed", range(5))
def test_sids_of_leaves_and_walks_are_inverse(seed: int) -> None:
    case = random_case(np.random.default_rng(seed), num_ads=111)
    trie = plain_snapshot(case.schema, case.vocab_sizes, case.ads).trie
    sids = trie.sids(np.arange(trie.num_leaves))
    assert [tuple(sid) for sid in sids.tolist()] == sorted({ad.sid for ad in case.ads})
    for leaf, sid in enumerate(sids.tolist()):
        assert trie.walk(tuple(sid)) == trie.first_leaf + leaf
