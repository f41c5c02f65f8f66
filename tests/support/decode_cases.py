"""Catalogues and users for tests of the decode-time operations and of admission, as masks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import pairwise, product
from operator import or_
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grace.configs.eligibility import DynamicKWay, KWay, MatcherMode, StaticKWay
from grace.index.snapshot import Snapshot
from grace.index.targeting.schema import Attribute, TargetingSchema, TargetSet
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
from support.exact_indexes import random_lists
from support.oracle import RawAd, Rule
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
    rng: np.random.Generator, num_ads: int, num_users: int, schema: TargetingSchema | None = None
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
    rng: np.random.Generator,
    trie: SidTrie | DecodeIndex,
    requests: int,
    beams: int,
    dead: float = 0.3,
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


def nodes_of(eligible: Tensor, requests: int, index: DecodeIndex) -> list[set[int]]:
    """Read masks on plain integers; no request outside of the batch may have a bit."""
    assert (eligible.dtype, len(eligible)) == (torch.int16, -(-requests // REQUESTS_PER_MASK))
    assert index.exact is not None
    first, borders = index.first_leaf, pairwise(index.exact.leaf_offsets.tolist())
    leaves = [index.exact.leaf_rules[begin:end].tolist() for begin, end in borders]
    found: list[set[int]] = [set() for _ in range(len(eligible) * REQUESTS_PER_MASK)]
    for group, masks in enumerate(eligible.tolist()):
        joined = (reduce(or_, [masks[first + rule] for rule in rules], 0) for rules in leaves)
        for node, mask in enumerate([*masks[:first], *joined]):
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


MakeCase: TypeAlias = Callable[[np.random.Generator], Case]
Arguments: TypeAlias = Callable[[np.random.Generator], tuple[Any, ...]]


def many_words_case(rng: np.random.Generator) -> Case:
    """Bitmasks of 65 words."""
    wide = Attribute("wide", tuple(f"w{i}" for i in range(4096)))
    schema = TargetingSchema((wide, Attribute("a", ("x", "y"))), (), 7)
    return branching_case(rng, 37, 5, schema)


def many_locations_case(rng: np.random.Generator) -> Case:
    """Users with no query, one, as many as a table holds, and more; rows too wide for a table."""
    sets = (
        TargetSet("s0", 256, 4, 200),
        TargetSet("s1", 2048, 3, 200),
        TargetSet("s2", 64, 1, 200),
    )
    schema = TargetingSchema((), sets, 7)
    users = [
        {name: [f"{name}/v{i}" for i in range(count)] for name in ("s0", "s1", "s2")}
        for count in (0, 1, 63, 64, 65, 200)
    ]
    case = _naming_all(users[-1], branching_case(rng, 63, 0, schema))
    return replace(case, users=tuple(users))


def _naming_all(values: Mapping[str, Sequence[str]], case: Case) -> Case:
    """Add an ad that names these values of sets: rows are tested for no others."""
    rules: dict[str, Rule] = {name: (frozenset(own), None) for name, own in values.items()}
    naming = RawAd(max(ad.ad_id for ad in case.ads) + 1, case.ads[0].sid, 0.0, rules)
    return replace(case, ads=(*case.ads, naming))


def _partitions(k_way: KWay, rng: np.random.Generator) -> Case:
    """Each first token has 1 to 63 SIDs, each for one value and one location. So most partitions
    are needed, and a user may pass any of them."""
    values = tuple(f"v{i}" for i in range(127))
    schema = TargetingSchema((Attribute("a", values),), (TargetSet("s", 256, 3, 64),), 7)
    ads: list[RawAd] = []
    for first in range(37):
        for second in rng.choice(63, size=rng.integers(1, 64), replace=False).tolist():
            rules: dict[str, Rule] = {
                "a": (frozenset({values[rng.integers(30)]}), None),
                "s": (frozenset({f"s{rng.integers(200)}"}), None),
            }
            if rng.random() < 0.01:
                rules.pop("s")
            ads.append(RawAd(len(ads), (first, second), 0.0, rules))
    users = [
        {"a": [values[rng.integers(33)]], "s": [f"s{i}" for i in rng.integers(210, size=count)]}
        for count in (0, 1, 2, 7, 64)
    ]
    return Case(schema, (37, 63), tuple(ads), tuple(users), k_way)


def _admission(
    make_case: MakeCase, mode: MatcherMode = MatcherMode.UNION, dead: float = 0.3
) -> Arguments:
    def arguments(rng: np.random.Generator) -> tuple[Any, ...]:
        made = decode_case(make_case(rng), mode)
        nodes = random_nodes(rng, made.snapshot.trie, len(made.rows), 31, dead)
        return nodes, made.users, made.index

    return arguments


def _odd_leaves(rng: np.random.Generator) -> tuple[Any, ...]:
    """Leaves with no rule, some, and thousands of which most are stopped."""
    index, users = random_lists(rng, (5.0, 11.0, 2.7), 17, 2)
    return random_nodes(rng, index, 17, 31), with_eligible(users, index, REFERENCE), index


def _no_beam_alive(rng: np.random.Generator) -> tuple[Any, ...]:
    made = decode_case(branching_case(rng, 63, 3))
    return torch.full((3, 31), NO_NODE, dtype=torch.int32), made.users, made.index


def _eligibility(make_case: MakeCase) -> Arguments:
    """Every seventh pair of leaf and rule has stopped ads only."""

    def arguments(rng: np.random.Generator) -> tuple[Any, ...]:
        made = decode_case(make_case(rng), MatcherMode.EXACT)
        assert made.index.exact is not None
        made.index.exact.leaf_rules[::7] = made.index.exact.num_rules
        return replace(made.users, eligible=None), made.index

    return arguments


def _all_forms(requests: int, **components: int) -> Arguments:
    def arguments(rng: np.random.Generator) -> tuple[Any, ...]:
        index, users = random_lists(rng, (7.0, 11.0, 2.7), requests, **components)
        return users, index

    return arguments


def _branching(
    num_ads: int, num_users: int, sizes: tuple[int, ...] = (3, 65), num_sets: int = 2
) -> MakeCase:
    return lambda rng: branching_case(rng, num_ads, num_users, random_schema(rng, sizes, num_sets))


def _full(vocab_sizes: tuple[int, ...], num_users: int) -> MakeCase:
    return lambda rng: every_sid_case(rng, vocab_sizes, num_users)


def _locations(count: int | None) -> MakeCase:
    """Two users: one with a country and `count` locations, one without anything."""

    def make(rng: np.random.Generator) -> Case:
        schema = TargetingSchema(
            (Attribute("country", ("US", "NO", "JP")),), (TargetSet("s0", 256, 4, 64),), 7
        )
        values = [f"s0/é{i}" for i in range(20)] + [f"s0/new{i}" for i in range(44)]
        case = _naming_all({"s0": values}, branching_case(rng, 111, 0, schema))
        picked = [str(value) for value in rng.choice(values, size=count or 0, replace=False)]
        some = {} if count is None else {"country": ["NO"], "s0": picked}
        return replace(case, users=(some, {}))

    return make


ELIGIBILITY: Mapping[str, Arguments] = {
    **{f"requests={n}": _eligibility(_branching(63, n)) for n in (*range(1, 17), 17, 40)},
    "no-sets": _eligibility(_branching(63, 3, (65,), 0)),
    "3-sets": _eligibility(_branching(111, 7, (1, 63), 3)),
    "no-attributes": _eligibility(_branching(63, 3, (), 2)),
    "no-rules": _eligibility(_branching(63, 3, (), 0)),
    "many-words": _eligibility(many_words_case),
    "many-locations": _eligibility(many_locations_case),
    "empty-users": _eligibility(_locations(None)),
    "full-vocabulary": _eligibility(_full((37, 111), 17)),
    "all-forms": _all_forms(15, sets=2, intervals=2, properties=3),
    "20-components": _all_forms(33, sets=6, intervals=9, properties=5),
}
ADMISSION: Mapping[str, Arguments] = {
    "odd-sizes": _admission(_branching(111, 7)),
    "no-sets": _admission(_branching(63, 3, (65,), 0)),
    "3-sets": _admission(_branching(63, 7, (1, 63), 3)),
    "no-attributes": _admission(_branching(63, 3, (), 2)),
    "cd": _admission(_branching(63, 3), MatcherMode.CD),
    "exact": _admission(_branching(63, 17), MatcherMode.EXACT),
    "exact-40": _admission(_branching(111, 40), MatcherMode.EXACT),
    "exact-odd-leaves": _odd_leaves,
    "static": _admission(_branching(63, 3), MatcherMode.STATIC),
    "dynamic": _admission(_branching(63, 3), MatcherMode.DYNAMIC),
    "few-alive": _admission(_branching(63, 5), dead=0.95),
    "none-alive": _no_beam_alive,
    "empty-users": _admission(_locations(None)),
    "1-location": _admission(_locations(1)),
    "64-locations": _admission(_locations(64)),
    "many-locations": _admission(many_locations_case),
    "many-locations-static": _admission(many_locations_case, MatcherMode.STATIC),
    "partitions-static": _admission(partial(_partitions, StaticKWay((64, 3))), MatcherMode.STATIC),
    "partitions-dynamic": _admission(partial(_partitions, DynamicKWay(1, 64)), MatcherMode.DYNAMIC),
    "many-words": _admission(many_words_case),
    "many-words-dynamic": _admission(many_words_case, MatcherMode.DYNAMIC),
    "fan-out-512": _admission(_full((3, 512), 3)),
    "full-vocabulary": _admission(_full((37, 111), 7)),
    "full-vocabulary-cd": _admission(_full((63,), 3), MatcherMode.CD),
}
