"""The lists of mode `exact` in plain Python, by looking at every ad and every value of rules."""

from collections.abc import Iterable
from itertools import chain, pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from grace.index.matchers.exact_lists import ExactLists, Postings
from grace.index.matching.ads import SidToAds
from grace.index.targeting.rules import Lists, SetRules, TargetingRules, ValueRows

Offset = TypeVar("Offset", np.int32, np.int64)


def offsets_of(lengths: Iterable[int], dtype: type[Offset]) -> npt.NDArray[Offset]:
    return np.array([0, *np.cumsum(list(lengths), dtype=np.int64)], dtype)


def plain_exact_lists(
    ads: SidToAds, rules: TargetingRules, num_values: tuple[int, ...]
) -> ExactLists:
    """What mode `exact` reads, by looking at every ad and every value of the set rules."""
    leaves = pairwise(ads.ad_offsets.tolist())
    offsets, listed = (each.tolist() for each in rules.alternatives)
    members = [[rule] for rule in range(rules.num_rules)]
    members += [listed[begin:end] for begin, end in pairwise(offsets)]
    of_leaf = [
        sorted({*chain(*(members[rule] for rule in ads.ad_rule[begin:end].tolist()))})
        for begin, end in leaves
    ]
    named = (part for part in rules.parts if part.has_values)
    postings = [
        _plain_postings(part, values) for part, values in zip(named, num_values, strict=True)
    ]
    return ExactLists(*_joined(of_leaf, np.int32), tuple(postings), rules.num_rules)


def _plain_postings(rows: SetRules | ValueRows, values: int) -> Postings:
    """A set's groups come after its rules."""
    if isinstance(rows, ValueRows):
        return (Lists(*_by_value(*rows.values, values)),)
    grouped = rows.groups.lists
    ends = [*rows.include.offsets, *(rows.include.offsets[-1] + grouped.offsets[1:])]
    included = np.concatenate([rows.include.values, grouped.values])
    return (
        Lists(*_by_value(np.array(ends), included, values)),
        Lists(*_by_value(*rows.exclude, values)),
    )


def _by_value(
    offsets: npt.NDArray[np.int64], values: npt.NDArray[np.int32], num_values: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    naming: list[list[int]] = [[] for _ in range(num_values)]
    for rule, (begin, end) in enumerate(pairwise(offsets.tolist())):
        for value in values[begin:end].tolist():
            naming[value].append(rule)
    return _joined(naming, np.int64)


def _joined(
    lists: list[list[int]], dtype: type[Offset]
) -> tuple[npt.NDArray[Offset], npt.NDArray[np.int32]]:
    return offsets_of(map(len, lists), dtype), np.array([i for ids in lists for i in ids], np.int32)
