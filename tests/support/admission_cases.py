"""Inputs of admission and of eligible nodes, by name: see op_cases.py."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch

from grace.configs.eligibility import MatcherMode
from grace.index.targeting.schema import Attribute, TargetingSchema, TargetSet
from grace.index.trie import NO_NODE
from support import hard_inputs
from support.decode_cases import branching_case, decode_case, every_sid_case, random_nodes
from support.strategies import Case, random_schema

MakeCase: TypeAlias = Callable[[np.random.Generator], Case]
Arguments: TypeAlias = Callable[[np.random.Generator], tuple[Any, ...]]


def _admission(
    make_case: MakeCase, mode: MatcherMode = MatcherMode.UNION, dead: float = 0.3
) -> Arguments:
    def arguments(rng: np.random.Generator) -> tuple[Any, ...]:
        made = decode_case(make_case(rng), mode)
        nodes = random_nodes(rng, made.snapshot.trie, len(made.rows), 31, dead)
        return nodes, made.users, made.index

    return arguments


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
        case = branching_case(rng, 111, 0, schema)
        values = [f"s0/é{i}" for i in range(20)] + [f"s0/new{i}" for i in range(44)]
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
    "many-words": _eligibility(hard_inputs.many_words_case),
    "many-locations": _eligibility(hard_inputs.many_locations_case),
    "empty-users": _eligibility(_locations(None)),
    "full-vocabulary": _eligibility(_full((37, 111), 17)),
}
ADMISSION: Mapping[str, Arguments] = {
    "odd-sizes": _admission(_branching(111, 7)),
    "no-sets": _admission(_branching(63, 3, (65,), 0)),
    "3-sets": _admission(_branching(63, 7, (1, 63), 3)),
    "no-attributes": _admission(_branching(63, 3, (), 2)),
    "cd": _admission(_branching(63, 3), MatcherMode.CD),
    "exact": _admission(_branching(63, 17), MatcherMode.EXACT),
    "exact-40": _admission(_branching(111, 40), MatcherMode.EXACT),
    "static": _admission(_branching(63, 3), MatcherMode.STATIC),
    "dynamic": _admission(_branching(63, 3), MatcherMode.DYNAMIC),
    "few-alive": _admission(_branching(63, 5), dead=0.95),
    "none-alive": _no_beam_alive,
    "empty-users": _admission(_locations(None)),
    "1-location": _admission(_locations(1)),
    "64-locations": _admission(_locations(64)),
    "many-locations": _admission(hard_inputs.many_locations_case),
    "many-locations-static": _admission(hard_inputs.many_locations_case, MatcherMode.STATIC),
    "partitions-static": _admission(hard_inputs.static_case, MatcherMode.STATIC),
    "partitions-dynamic": _admission(hard_inputs.dynamic_case, MatcherMode.DYNAMIC),
    "many-words": _admission(hard_inputs.many_words_case),
    "many-words-dynamic": _admission(hard_inputs.many_words_case, MatcherMode.DYNAMIC),
    "fan-out-512": _admission(_full((3, 512), 3)),
    "full-vocabulary": _admission(_full((37, 111), 7)),
    "full-vocabulary-cd": _admission(_full((63,), 3), MatcherMode.CD),
}
