"""Neighbours in the trie against comparing every SID with every click."""

import numpy as np
import pytest

from bench.neighbours import nearest_leaves
from support.plain_builder import plain_snapshot
from support.strategies import random_case


def shared_tokens(sid: tuple[int, ...], click: tuple[int, ...]) -> int:
    length = 0
    while length < len(sid) and sid[length] == click[length]:
        length += 1
    return length


@pytest.mark.parametrize("seed", range(7))
def test_leaves_come_by_shared_tokens_then_sid_order_and_only_admitted_ones(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = random_case(rng, num_ads=111)
    snapshot = plain_snapshot(case.schema, case.vocab_sizes, case.ads)
    sids = sorted({ad.sid for ad in case.ads})
    clicks = [case.ads[int(i)].sid for i in rng.integers(111, size=3)]
    admitted = rng.random(snapshot.trie.num_entries) < 0.7
    first = snapshot.trie.first_leaf - 1
    scored = [
        (-max(shared_tokens(sid, click) for click in clicks), leaf)
        for leaf, sid in enumerate(sids)
        if admitted[first + leaf]
    ]
    expected = sorted((score, leaf) for score, leaf in scored if score < 0)[:9]
    near = nearest_leaves(snapshot, clicks, admitted, most=9)
    got = list(zip((-near.scores).tolist(), near.leaves.tolist(), strict=True))
    assert got == expected


def test_clicks_outside_the_catalogue_have_no_neighbours_beyond_their_prefix() -> None:
    case = random_case(np.random.default_rng(1), num_ads=63)
    snapshot = plain_snapshot(case.schema, case.vocab_sizes, case.ads)
    nowhere = tuple(size for size in case.vocab_sizes)
    admitted = np.ones(snapshot.trie.num_entries, np.bool_)
    assert len(nearest_leaves(snapshot, [nowhere], admitted, most=9).leaves) == 0
