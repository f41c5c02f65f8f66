"""Eligible nodes: the reference and C++ against raw sets, and C++ against the reference."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor

from grace.configs.eligibility import MatcherMode
from grace.configs.errors import NativeError
from grace.index.matchers.live_rules import changed_pairs
from grace.kernels import REFERENCE, DecodeIndex, UserTensors, load_ops, with_eligible
from grace.kernels.eligibility.bits import bits_rows_reference
from grace.kernels.eligibility.lists import lists_rows_reference
from grace.kernels.eligibility.masks import REQUESTS_PER_MASK
from support.decode_cases import CPU, DecodeCase, branching_case, decode_case
from support.exact_indexes import (
    attribute_rows_by_nodes,
    random_lists,
    random_postings,
    random_queries,
    random_table,
    random_user_bits,
    set_rows_by_nodes,
)
from support.oracle import RawAd, eligible_prefixes
from support.strategies import Case, cases, examples

NATIVE = load_ops(CPU)


@pytest.fixture(autouse=True)
def poisoned_outputs() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def expected_nodes(made: DecodeCase, stopped: Collection[RawAd] = ()) -> list[set[int]]:
    """Return each user's eligible nodes, by the raw sets of the ads that are not stopped."""
    live = [ad for ad in made.case.ads if ad not in stopped]
    return [
        {made.snapshot.trie.walk(p) for p in eligible_prefixes(made.case.schema, live, user)}
        for user in made.case.users
    ]


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


def stop(made: DecodeCase, stopped: Collection[RawAd]) -> None:
    """Make these ads of the snapshot, and no others, the stopped ones of its index."""
    ads, lists = made.snapshot.ads, made.snapshot.exact
    assert lists is not None
    words = ads.bitmap([ad.ad_id for ad in stopped])
    made.index.write_pairs(*changed_pairs(ads, lists, words, np.arange(ads.num_ads)))


@examples(35)
@given(case=cases(most_ads=40, most_users=6))
def test_a_node_is_eligible_if_and_only_if_the_user_may_see_an_ad_below_it(case: Case) -> None:
    made = decode_case(case, MatcherMode.EXACT)
    for ops in (REFERENCE, NATIVE):
        eligible = ops.eligible_nodes(made.users, made.index)
        assert nodes_of(eligible, len(case.users)) == expected_nodes(made)


@examples(20)
@given(case=cases(most_ads=40, most_users=5))
def test_stopped_ads_make_no_node_eligible_until_they_run_again(case: Case) -> None:
    made = decode_case(case, MatcherMode.EXACT)
    stopped = [ad for ad in case.ads if ad.ad_id % 3]
    for now in (stopped, []):
        stop(made, now)
        for ops in (REFERENCE, NATIVE):
            eligible = ops.eligible_nodes(made.users, made.index)
            assert nodes_of(eligible, len(case.users)) == expected_nodes(made, now)


def test_stops_of_one_index_change_neither_the_snapshot_nor_another_index() -> None:
    made = decode_case(branching_case(np.random.default_rng(1), 63, 3), MatcherMode.EXACT)
    other, lists = DecodeIndex.of(made.snapshot, CPU), made.snapshot.exact
    assert lists is not None
    assert other.exact is not None
    before = lists.leaf_rules.copy()
    stop(made, made.case.ads)
    assert not REFERENCE.eligible_nodes(made.users, made.index).any()
    assert np.array_equal(lists.leaf_rules, before)
    assert np.array_equal(other.exact.leaf_rules.numpy(), before)


def test_pairs_that_the_snapshot_does_not_have_are_refused() -> None:
    made = decode_case(branching_case(np.random.default_rng(1), 63, 3), MatcherMode.EXACT)
    assert made.snapshot.exact is not None
    num_pairs = len(made.snapshot.exact.leaf_rules)
    for wrong in (-1, num_pairs):
        with pytest.raises(ValueError, match=r"positions: .*, the snapshot has pairs 0 to \d+: t"):
            made.index.write_pairs(np.array([0, wrong]), np.zeros(2, np.int32))
    made.index.write_pairs(np.zeros(0, np.int64), np.zeros(0, np.int32))
    with pytest.raises(ValueError, match="only mode exact has pairs to write"):
        made.index.without_matchers().write_pairs(np.zeros(1, np.int64), np.zeros(1, np.int32))


@pytest.mark.parametrize(
    ("fan_outs", "words", "sets", "requests"),
    [((37.0, 41.0, 29.0), 7, 1, 16), ((3.0, 7.0), 1, 0, 1), ((1.5, 40011.0), 65, 5, 33)],
)
def test_large_lists_agree_on_any_number_of_threads(
    fan_outs: tuple[float, ...], words: int, sets: int, requests: int
) -> None:
    rng = np.random.default_rng(requests)
    index, users = random_lists(rng, fan_outs, requests, sets, words)
    expected = REFERENCE.eligible_nodes(users, index)
    before = torch.get_num_threads()
    for threads in (1, 2, 7):
        torch.set_num_threads(threads)
        assert torch.equal(NATIVE.eligible_nodes(users, index), expected)
    torch.set_num_threads(before)


def test_rows_of_many_tasks_equal_the_reference() -> None:
    rng = np.random.default_rng(1)
    table, users = random_table(rng, 200_003, 7), random_user_bits(rng, 33, 7)
    expected = bits_rows_reference(table, users)
    assert torch.equal(attribute_rows_by_nodes(NATIVE, table, users), expected)
    postings, queries = random_postings(rng, 200_003, 29, True), random_queries(rng, 33, 29)
    made = set_rows_by_nodes(NATIVE, postings, queries)
    assert torch.equal(made, lists_rows_reference(postings, queries))


@dataclass(frozen=True)
class EveryThirdRule:
    """A kind of predicate of its own."""

    ids: Tensor

    def passes(self, users: UserTensors) -> Tensor:
        groups = -(-len(users.bitmask) // REQUESTS_PER_MASK)
        return torch.tensor([[-1, 0, 0]], dtype=torch.int16).repeat(groups, 1)


def test_a_predicate_narrows_what_the_others_pass() -> None:
    made = decode_case(branching_case(np.random.default_rng(3), 63, 5), MatcherMode.EXACT)
    exact = made.index.exact
    assert exact is not None
    third = EveryThirdRule(torch.arange(exact.num_rules, dtype=torch.int32) % 3)
    narrowed = replace(made.index, exact=replace(exact, predicates=(*exact.predicates, third)))
    wide, narrow = (REFERENCE.eligible_nodes(made.users, each) for each in (made.index, narrowed))
    kept = {
        ad.ad_id
        for ad in made.case.ads
        if made.snapshot.ads.ad_rule[made.snapshot.ads.ordinals([ad.ad_id])[0]] % 3 == 0
    }
    stopped = [ad for ad in made.case.ads if ad.ad_id not in kept]
    assert nodes_of(narrow, 5) == expected_nodes(made, stopped)
    assert nodes_of(wide, 5) == expected_nodes(made)


def test_users_get_their_eligible_nodes_in_mode_exact_only() -> None:
    for mode in MatcherMode:
        made = decode_case(branching_case(np.random.default_rng(4), 33, 3), mode)
        users = replace(made.users, eligible=None)
        got = with_eligible(users, made.index, NATIVE)
        if mode is MatcherMode.EXACT:
            assert got.eligible is not None
            assert torch.equal(got.eligible, NATIVE.eligible_nodes(users, made.index))
        else:
            assert got is users


def test_native_code_refuses_a_value_that_the_set_does_not_have() -> None:
    rng = np.random.default_rng(7)
    postings, queries = random_postings(rng, 63, 29, False), random_queries(rng, 3, 29)
    queries.value_ids[-1] = 29
    with pytest.raises(NativeError, match="a user's value is not one of the set's"):
        set_rows_by_nodes(NATIVE, postings, queries)
