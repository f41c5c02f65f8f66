"""Catalogues, users and beams for tests of the decode operations, and what equal results are."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grace.configs.eligibility import MatcherMode
from grace.index.snapshot import Snapshot
from grace.index.targeting.schema import TargetingSchema
from grace.index.trie import NO_NODE, SidTrie
from grace.index.users.user_rows import UserEncoder, UserRows
from grace.kernels import (
    REFERENCE,
    Beams,
    Candidates,
    DecodeIndex,
    UserTensors,
    load_ops,
    with_eligible,
)
from grace.kernels.eligibility.tensors import REQUESTS_PER_MASK
from support.oracle import RawAd
from support.plain_builder import plain_snapshot
from support.strategies import Case, asking, random_ads, random_schema, random_users

CPU = torch.device("cpu")


@dataclass(frozen=True)
class DecodeCase:
    """A case, its snapshot, and its users as the operations see them."""

    case: Case
    snapshot: Snapshot
    rows: UserRows
    users: UserTensors
    index: DecodeIndex


def decode_case(case: Case, mode: MatcherMode = MatcherMode.UNION) -> DecodeCase:
    """Return the case in a matcher mode; in mode `exact` the users have their eligible nodes."""
    snapshot = plain_snapshot(case.schema, case.vocab_sizes, case.ads, mode, k_way=case.k_way)
    rows = UserEncoder(case.schema, snapshot.set_values).encode([*map(asking, case.users)])
    index = DecodeIndex.of(snapshot, CPU)
    users = with_eligible(UserTensors.of(rows, CPU), index, REFERENCE)
    return DecodeCase(case, snapshot, rows, users, index)


def branching_case(
    rng: np.random.Generator,
    num_ads: int,
    num_users: int,
    schema: TargetingSchema | None = None,
) -> Case:
    """Several children below most nodes, some of which most users may not see."""
    schema = schema or random_schema(rng, attribute_sizes=(3, 65), num_sets=2)
    vocab_sizes = (7, 11, 5)
    ads = tuple(random_ads(rng, schema, vocab_sizes, num_ads, ads_per_sid=1.0))
    return Case(schema, vocab_sizes, ads, tuple(random_users(rng, schema, num_users)))


def every_sid_case(rng: np.random.Generator, vocab_sizes: Sequence[int], num_users: int) -> Case:
    """An ad at every SID there can be: each node has the full vocabulary as children."""
    schema = random_schema(rng, attribute_sizes=(63, 1), num_sets=1)
    models = random_ads(rng, schema, vocab_sizes, 63)
    ads = tuple(
        RawAd(i, sid, 0.0, models[i % len(models)].rules)
        for i, sid in enumerate(product(*map(range, vocab_sizes)))
    )
    return Case(schema, tuple(vocab_sizes), ads, tuple(random_users(rng, schema, num_users)))


def random_nodes(
    rng: np.random.Generator, trie: SidTrie, requests: int, beams: int, dead: float = 0.3
) -> Tensor:
    """Internal nodes of any level, some of them dead.   int32 [requests, beams]"""
    nodes: npt.NDArray[np.int32] = rng.integers(
        trie.first_leaf, size=(requests, beams), dtype=np.int32
    )
    nodes[rng.random(nodes.shape) < dead] = NO_NODE
    return torch.from_numpy(nodes)


def admitted_entries(snapshot: Snapshot, rows: UserRows, request: int) -> npt.NDArray[np.bool_]:
    """Return whether each child entry, which leads to the next node, is admitted for a request."""
    index, trie = DecodeIndex.of(snapshot, CPU), snapshot.trie
    ops = load_ops(CPU)
    users = with_eligible(UserTensors.of(rows, CPU), index, ops)
    nodes = torch.arange(trie.first_leaf, dtype=torch.int32).repeat(len(rows), 1)
    found = ops.admit_children(nodes, users, index)
    begin, end = found.offsets[trie.first_leaf * request :: trie.first_leaf][:2].tolist()
    admitted = np.zeros(trie.num_entries, np.bool_)
    admitted[found.nodes[begin:end].numpy() - 1] = True
    return admitted


def nodes_of(eligible: Tensor, requests: int) -> list[set[int]]:
    """Read masks on plain integers; no request outside of the batch may have a bit."""
    assert (eligible.dtype, len(eligible)) == (torch.int16, -(-requests // REQUESTS_PER_MASK))
    found: list[set[int]] = [set() for _ in range(len(eligible) * REQUESTS_PER_MASK)]
    for group, masks in enumerate(eligible.tolist()):
        for node, mask in enumerate(masks):
            for bit in range(REQUESTS_PER_MASK):
                if mask >> bit & 1:
                    found[group * REQUESTS_PER_MASK + bit].add(node)
    assert not any(found[requests:])
    return found[:requests]


def split_rows(candidates: Candidates) -> list[list[tuple[int, int]]]:
    """The candidates as (token, node), a list per beam row."""
    pairs = list(zip(candidates.tokens.tolist(), candidates.nodes.tolist(), strict=True))
    offsets = candidates.offsets.tolist()
    assert (offsets[0], offsets[-1]) == (0, len(pairs))
    return [pairs[a:b] for a, b in pairwise(offsets)]


def assert_same_candidates(got: Candidates, expected: Candidates) -> None:
    got, expected = got.packed(), expected.packed()
    assert torch.equal(got.offsets, expected.offsets)
    assert torch.equal(got.tokens, expected.tokens)
    assert torch.equal(got.nodes, expected.nodes)


def assert_same_beams(got: Beams, expected: Beams) -> None:
    """Require equal beams in the same order, whose scores differ by rounding only."""
    for name in ("parents", "tokens", "nodes", "corrupt"):
        assert torch.equal(getattr(got, name), getattr(expected, name)), name
    torch.testing.assert_close(got.scores, expected.scores, rtol=1e-5, atol=1e-5)
