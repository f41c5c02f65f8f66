"""Inputs that the quick ways of admission and selection do not help with, or must fit exactly."""

from collections.abc import Sequence

import numpy as np
import torch

from grace.configs.eligibility import DynamicKWay, KWay, StaticKWay
from grace.index.targeting.schema import Attribute, TargetingSchema, TargetSet
from grace.kernels import Candidates
from grace.kernels.decode.select_beams import Choice
from support.decode_cases import branching_case
from support.oracle import RawAd, Rule
from support.strategies import Case

_FULL = 160  # candidates of each row, of 163 columns


def many_words_case(rng: np.random.Generator) -> Case:
    """65 words of bitmask."""
    wide = Attribute("wide", tuple(f"w{i}" for i in range(4096)))
    schema = TargetingSchema((wide, Attribute("a", ("x", "y"))), (), 7)
    return branching_case(rng, 37, 5, schema)


def many_locations_case(rng: np.random.Generator) -> Case:
    """Users with more queries than a table holds, as many, one and none; rows too wide for one."""
    sets = (
        TargetSet("s0", 256, 4, 200),
        TargetSet("s1", 2048, 3, 200),
        TargetSet("s2", 64, 1, 200),
    )
    schema = TargetingSchema((), sets, 7)
    case = branching_case(rng, 63, 0, schema)
    users = [
        {name: [f"{name}/v{i}" for i in range(count)] for name in ("s0", "s1", "s2")}
        for count in (0, 1, 63, 64, 65, 200)
    ]
    return Case(schema, case.vocab_sizes, case.ads, tuple(users))


def static_case(rng: np.random.Generator) -> Case:
    return _many_partitions(rng, StaticKWay((64, 3)))


def dynamic_case(rng: np.random.Generator) -> Case:
    return _many_partitions(rng, DynamicKWay(1, 64))


def _many_partitions(rng: np.random.Generator, k_way: KWay) -> Case:
    """Below a first token 1 to 63 SIDs, each for one value and one location: most partitions are
    needed, and those that a user passes stand anywhere among them."""
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


def full_rows(requests: int, beams: int, columns: int, candidates: int) -> Candidates:
    """Every row has the lowest `candidates` tokens; nodes count on."""
    rows = requests * beams
    tokens = torch.arange(candidates, dtype=torch.int32).repeat(rows)
    offsets = torch.arange(rows + 1, dtype=torch.int32) * candidates
    assert candidates <= columns
    return Candidates(offsets, tokens, torch.arange(len(tokens), dtype=torch.int32))


def crowded_selection(rng: np.random.Generator, kind: str, k: int, ordered: bool) -> Choice:
    """Requests of 111 beams with 160 candidates each; rows differ by their scores only.

    equal  all totals of a request are one and the same
    few    totals of a request have three values
    row    one row, then another, has all that is best, of two requests
    far    no two totals are near each other, of two requests
    """
    beams, columns, requests = 111, 163, 2 if kind in ("row", "far") else 1
    one_row = {
        "equal": np.zeros(columns),
        "few": rng.integers(3, size=columns),
        "row": rng.permutation(columns) / 16,
        "far": rng.permutation(columns) / 16,
    }[kind]
    logits = np.tile(one_row.astype(np.float32), (requests * beams, 1))
    scores = np.stack([_scores(rng, kind, beams) for _ in range(requests)])
    candidates = full_rows(requests, beams, columns, _FULL)
    scored = torch.from_numpy(scores.astype(np.float32))
    return Choice(torch.from_numpy(logits), scored, candidates, k, ordered)


def _scores(rng: np.random.Generator, kind: str, beams: int) -> Sequence[float]:
    distinct: list[float] = (-rng.permutation(beams) / 2048).tolist()
    if kind == "far":
        return distinct
    if kind == "row":
        best, next_best = rng.choice(beams, size=2, replace=False).tolist()
        return [{best: 0.0, next_best: -20.0}.get(beam, -50.0) for beam in range(beams)]
    return [0.0] * beams
