"""The lists that mode `exact` reads while decoding. They follow from the rules of the ads.

Eligibility goes from the distinct parts of rules to rules, from rules to leaves, and from leaves up
to the root. These lists are the edges of that graph which the rules themselves do not have.
"""

from dataclasses import dataclass

import numpy as np

from grace.configs.arrays import Int32, Int64, UInt64
from grace.index.allocation import Allocate, plain_memory
from grace.index.matching.ads import SidToAds
from grace.index.targeting.rules import Groups, Lists, Rows, TargetingRules, places_of
from grace.native.loader import declare

_leaf_rules = declare(
    "grace_leaf_rules("
    "int64, int64[], int32[], int64, int64, int64[], int32[], int32, out int32[], out int32[], "
    "out int64[])"
)
_postings = declare(
    "grace_postings(int64, int64[], int32[], int64, int32, out int64[], out int32[])"
)
CHANGED_ADS = 1 << 16  # at a time, so that no NumPy call holds the interpreter lock for long

Postings = tuple[Lists, ...]
"""The rows of a component that name each value, ascending within a value. A set has those that
include it and those that exclude it: group g counts as row R + g after its R rows, and includes.
A property has one list: the rows that have the value.
"""


@dataclass(frozen=True, slots=True)
class ExactLists:
    leaf_offsets: Int32  # [leaves + 1], the distinct rules of leaf i: leaf_offsets[i] .. [i + 1]
    leaf_rules: Int32  # [...]: ascending within a leaf
    postings: tuple[Postings, ...]  # of the components with values, in their order
    num_rules: int  # of the snapshot; as an id, it is the rule that nobody passes


def exact_lists(
    ads: SidToAds,
    rules: TargetingRules,
    num_values: tuple[int, ...],
    threads: int,
    allocate: Allocate = plain_memory,
) -> ExactLists:
    of_leaves = rules_of_leaves(ads.ad_offsets, ads.ad_rule, rules, threads, allocate)
    named = (part for part in rules.parts if part.has_values)
    lists = (postings(rows, n, threads) for rows, n in zip(named, num_values, strict=True))
    return ExactLists(*of_leaves, tuple(lists), rules.num_rules)


def rules_of_leaves(
    ad_offsets: Int64,
    ad_rule: Int32,
    rules: TargetingRules,
    threads: int,
    allocate: Allocate = plain_memory,
) -> tuple[Int32, Int32]:
    """Return offsets, and the distinct rules of leaves with the ads ad_offsets[i] .. [i + 1]."""
    leaves = len(ad_offsets) - 1
    offsets = allocate(4 * (leaves + 1)).view(np.int32)
    most = rules.count_of(ad_rule)
    room, total = allocate(4 * most).view(np.int32), np.zeros(1, np.int64)
    _leaf_rules(
        *(leaves, ad_offsets, ad_rule),
        *(rules.num_rules, rules.num_alternatives, *rules.alternatives, threads),
        *(offsets, room, total),
    )
    leaf_rules = allocate(4 * int(total[0])).view(np.int32)
    leaf_rules[:] = room[: len(leaf_rules)]
    return offsets, leaf_rules


def postings(rows: Rows, num_values: int, threads: int) -> Postings:
    lists: list[Lists] = []
    for column in rows.columns:
        if isinstance(column, Groups):
            lists[0] = _joined(lists[0], column.lists)
        else:
            lists.append(Lists(*column))
    return tuple(_by_value(each, num_values, threads) for each in lists)


def _joined(first: Lists, second: Lists) -> Lists:
    if len(second.values) == 0:
        return first
    ends = second.offsets[1:] + first.offsets[-1]
    return Lists(np.append(first.offsets, ends), np.append(first.values, second.values))


def _by_value(lists: Lists, num_values: int, threads: int) -> Lists:
    by_value = Lists(np.empty(num_values + 1, np.int64), np.empty(len(lists.values), np.int32))
    _postings(len(lists.offsets) - 1, *lists, num_values, threads, *by_value)
    return by_value


def changed_pairs(
    ads: SidToAds,
    rules: TargetingRules,
    lists: ExactLists,
    # [ceil(ads / 64)], bit i: ordinal i is stopped; None: no ad is
    stopped: UInt64 | None,
    ordinals: Int64,  # of the changed ads, in any order
) -> tuple[Int64, Int32]:
    """Return what `leaf_rules` must hold now for the ads whose stop state changed.

    Returns distinct positions int64 [n] in `leaf_rules`, ascending, and int32 [n]: the rule, or
    `lists.num_rules` where all ads of the leaf that have this rule are stopped.
    """
    ordinals = np.sort(ordinals)
    if len(ordinals) and not 0 <= ordinals[0] <= ordinals[-1] < ads.num_ads:
        raise ValueError(f"ordinals: must be 0 to {ads.num_ads - 1}: use this snapshot's")
    if len(ordinals) <= CHANGED_ADS:
        return _changed_pairs(ads, rules, lists, stopped, ordinals)
    blocks = (ordinals[at : at + CHANGED_ADS] for at in range(0, len(ordinals), CHANGED_ADS))
    found = (_changed_pairs(ads, rules, lists, stopped, block) for block in blocks)
    positions, changed = map(np.concatenate, zip(*found, strict=True))
    positions, first = np.unique(positions, return_index=True)  # two blocks may share a leaf
    return positions, changed[first]


def _changed_pairs(
    ads: SidToAds, rules: TargetingRules, lists: ExactLists, stopped: UInt64 | None, ordinals: Int64
) -> tuple[Int64, Int32]:
    """Look at all ads of the leaves that have changed ads."""
    leaves = ads.ad_offsets.searchsorted(ordinals, "right") - 1
    touched = np.unique(leaves)
    positions, pairs = _of_leaves(touched, lists.leaf_offsets, lists.leaf_rules)
    own_ads, of_ads = _of_leaves(touched, ads.ad_offsets, ads.ad_rule)
    if stopped is not None:
        bits = stopped[own_ads >> 6] >> (own_ads & 63).astype(np.uint64)
        of_ads = of_ads[bits & np.uint64(1) == 0]
    runs, changed = np.zeros((2, len(pairs)), np.bool_)
    runs[pairs.searchsorted(_with_members(of_ads, rules))] = True
    own = _with_members(leaves << 32 | ads.ad_rule[ordinals], rules)
    changed[pairs.searchsorted(own)] = True
    hold = np.where(runs, pairs & 0xFFFFFFFF, lists.num_rules)[changed]
    return positions[changed], hold.astype(np.int32)


def _with_members(pairs: Int64, rules: TargetingRules) -> Int64:
    """Return pairs of leaf and rule, with the rules of each alternative instead of it."""
    if rules.num_alternatives == 0:
        return pairs
    members = rules.members((pairs & 0xFFFFFFFF).astype(np.int32))
    return (pairs >> 32 << 32).repeat(np.diff(members.offsets)) | members.values


def _of_leaves(leaves: Int64, offsets: Int64 | Int32, rules: Int32) -> tuple[Int64, Int64]:
    """Return the places of the leaves' rules, and each pair of leaf and rule as one number."""
    borders, places = places_of(offsets, leaves)
    return places, (leaves << 32).repeat(np.diff(borders)) | rules[places]
