"""Large lists of mode `exact` against their plain definition, and what they refuse."""

from collections.abc import Iterator
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.errors import NativeError
from grace.index.matchers.exact_lists import changed_pairs, exact_lists, postings
from grace.index.matching.ads import SidToAds
from grace.index.targeting.rules import (
    Groups,
    Lists,
    NumberRows,
    SetRules,
    TargetingRules,
    ValueRows,
)
from support.arrays import assert_same_arrays
from support.plain_exact_lists import plain_exact_lists
from support.strategies import examples


def random_ads(rng: np.random.Generator, sizes: npt.ArrayLike, num_rules: int) -> SidToAds:
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    count = int(offsets[-1])
    ids = np.arange(count)
    rules = rng.integers(num_rules, size=count).astype(np.int32)
    return SidToAds(offsets, ids, rules, np.zeros(count, np.float32), ids.astype(np.int32))


def random_lists(
    rng: np.random.Generator, rules: int, values: int, most: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Up to `most` of the values for each rule; many rules have none."""
    sizes = np.minimum(rng.integers(-most, most + 1, size=rules).clip(0), values)
    lists = [np.sort(rng.choice(values, size=n, replace=False)) for n in sizes]
    joined = np.concatenate([np.zeros(0, np.int64), *lists])
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), joined.astype(np.int32)


def random_rules(
    rng: np.random.Generator, num_rules: int, num_values: tuple[int, ...]
) -> TargetingRules:
    """Some rules of the sets have two groups."""
    groups = num_rules // 3
    of_rules = np.append(np.arange(0, 2 * groups, 2), np.full(num_rules - groups + 1, 2 * groups))
    sets = tuple(
        SetRules(
            Lists(*random_lists(rng, num_rules, n, 7)),
            Lists(*random_lists(rng, num_rules, n, 3)),
            Groups(of_rules, Lists(*random_lists(rng, 2 * groups, n, 2))),
        )
        for n in num_values
    )
    rows = np.zeros((num_rules, 1 + len(sets)), np.int32)
    # The rules of ads are 0 .. num_rules - 1: some are alternatives.
    alternatives = Lists(*random_lists(rng, num_rules // 3, num_rules - num_rules // 3, 4))
    rows = rows[: num_rules - num_rules // 3]
    return TargetingRules(rows, (NumberRows(np.zeros((1, 1), np.uint64)), *sets), alternatives)


@pytest.mark.parametrize("threads", [1, 3])
def test_many_leaves_and_large_ones_are_joined_from_chunks(threads: int) -> None:
    rng = np.random.default_rng(threads)
    sizes = np.where(rng.random(99_999) < 0.001, 4096, rng.integers(1, 4, 99_999))
    ads, rules = random_ads(rng, sizes, 30_001), random_rules(rng, 30_001, (7,))
    assert_same_arrays(exact_lists(ads, rules, (7,), threads), plain_exact_lists(ads, rules, (7,)))


def test_a_value_out_of_range_is_an_error() -> None:
    rules = ValueRows(Lists(np.array([0, 1], np.int64), np.array([3], np.int32)))
    assert postings(rules, 4, 1)[0].values.tolist() == [0]
    with pytest.raises(NativeError, match="a value out of range"):
        postings(rules, 3, 1)


def test_changed_pairs_refuses_what_is_not_of_this_snapshot() -> None:
    rng = np.random.default_rng(0)
    ads = random_ads(rng, [3, 2], 4)
    rules = random_rules(rng, 4, ())
    lists = exact_lists(ads, rules, (), 1)
    for ordinal in (-1, 5):
        with pytest.raises(ValueError, match="ordinals: must be 0 to 4"):
            changed_pairs(ads, rules, lists, None, np.array([ordinal]))


@examples(30)
@given(seed=st.integers(0, 2**32 - 1), block=st.sampled_from((1, 3, 64, 1 << 20)))
def test_pairs_hold_rules_of_ads_that_run_after_any_changes(seed: int, block: int) -> None:
    """Some ads have alternatives. `block` is how many changed ads are looked at together."""
    rng = np.random.default_rng(seed)
    ads, rules = random_ads(rng, rng.integers(1, 9, 33), 9), random_rules(rng, 9, ())
    lists = exact_lists(ads, rules, (), 1)
    held, before = lists.leaf_rules.copy(), np.zeros(ads.num_ads, np.bool_)
    for share in (0.7, 0.9, 0.0):
        stopped = rng.random(ads.num_ads) < share
        words, ordinals = ads.bitmap_of(np.flatnonzero(stopped)), np.flatnonzero(stopped != before)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("grace.index.matchers.exact_lists.CHANGED_ADS", block)
            positions, now = changed_pairs(ads, rules, lists, words, rng.permutation(ordinals))
        assert (np.diff(positions) > 0).all()
        held[positions], before = now, stopped
        assert held.tolist() == [
            rule if rule in running else lists.num_rules
            for leaf, running in enumerate(rules_that_run(ads, rules, stopped))
            for rule in lists.leaf_rules[slice(*lists.leaf_offsets[leaf : leaf + 2])].tolist()
        ]


def rules_that_run(
    ads: SidToAds, rules: TargetingRules, stopped: npt.NDArray[np.bool_]
) -> Iterator[set[int]]:
    """Yield the rules of each leaf that an ad has which is not stopped, one by one."""
    for begin, end in pairwise(ads.ad_offsets.tolist()):
        run = (ordinal for ordinal in range(begin, end) if not stopped[ordinal])
        yield {*chain(*(rules.rules_of(int(ads.ad_rule[ordinal])) for ordinal in run))}
