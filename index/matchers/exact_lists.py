"""What mode `exact` reads while decoding, besides the rules: all of it follows from them.

Eligibility goes from the distinct parts of rules to rules, from rules to leaves, and from leaves up
to the root. These lists are the edges of that graph which the rules themselves do not have.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace.index.matching.ads import SidToAds
from grace.index.targeting.rules import SetRules, TargetingRules


@dataclass(frozen=True, slots=True)
class Postings:
    """The set rules of one set that name each value, ascending within a value.

    include_offsets  int64 [values + 1]    value v is included by include_rules[offsets[v]] ..
    include_rules    int32 [...]
    exclude_offsets  int64 [values + 1]
    exclude_rules    int32 [...]
    """

    include_offsets: npt.NDArray[np.int64]
    include_rules: npt.NDArray[np.int32]
    exclude_offsets: npt.NDArray[np.int64]
    exclude_rules: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ExactLists:
    """
    leaf_offsets  int32 [leaves + 1]   the distinct rules of leaf i: leaf_offsets[i] .. [i + 1]
    leaf_rules    int32 [...]          ascending within a leaf
    """

    leaf_offsets: npt.NDArray[np.int32]
    leaf_rules: npt.NDArray[np.int32]
    postings: tuple[Postings, ...]  # in the schema's order of sets


def exact_lists_reference(
    ads: SidToAds, rules: TargetingRules, num_values: tuple[int, ...]
) -> ExactLists:
    """`num_values` is the number of interned values of each set."""
    leaves = np.repeat(np.arange(len(ads.ad_offsets) - 1), np.diff(ads.ad_offsets))
    pairs = np.unique(leaves * rules.num_rules + ads.ad_rule)
    counts = np.bincount(pairs // rules.num_rules, minlength=len(ads.ad_offsets) - 1)
    return ExactLists(
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        (pairs % rules.num_rules).astype(np.int32),
        tuple(_postings(of, count) for of, count in zip(rules.sets, num_values, strict=True)),
    )


def _postings(rules: SetRules, num_values: int) -> Postings:
    include = _rules_by_value(rules.include_offsets, rules.include_values, num_values)
    exclude = _rules_by_value(rules.exclude_offsets, rules.exclude_values, num_values)
    return Postings(*include, *exclude)


def _rules_by_value(
    offsets: npt.NDArray[np.int64], values: npt.NDArray[np.int32], num_values: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    set_rules = np.repeat(np.arange(len(offsets) - 1, dtype=np.int32), np.diff(offsets))
    counts = np.bincount(values, minlength=num_values)
    order = np.argsort(values, kind="stable")
    return np.concatenate([[0], np.cumsum(counts)]), set_rules[order]
