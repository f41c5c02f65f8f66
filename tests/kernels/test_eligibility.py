"""Eligible nodes: the reference and C++ against raw sets, C++ and CUDA against the reference.

The lists here are larger and odder than a catalogue's. test_agreement.py has those of catalogues.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import cycle, islice, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from grace.configs.eligibility import MatcherMode
from grace.configs.errors import NativeError
from grace.index.forms.lists import AskedLists
from grace.index.matchers.exact_lists import changed_pairs
from grace.index.targeting.schema import Attribute, Property, Range, TargetingSchema, TargetSet
from grace.kernels import REFERENCE, DecodeIndex, Ops, UserTensors, load_ops
from grace.kernels.eligibility.batch import eligible_nodes_on_gpu
from grace.kernels.eligibility.tensors import ExactTensors, Predicate
from support.decode_cases import CPU, DecodeCase, branching_case, decode_case, nodes_of
from support.emulated_cuda import emulated_cuda
from support.exact_indexes import random_lists
from support.oracle import Asked, RawAd, RawFilter, RawUser, eligible_prefixes
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


def stop(made: DecodeCase, stopped: Collection[RawAd]) -> None:
    """Make these ads of the snapshot, and no others, the stopped ones of its index."""
    ads, lists = made.snapshot.ads, made.snapshot.exact
    assert lists is not None
    words = ads.bitmap_of(ads.ordinals([ad.ad_id for ad in stopped]))
    every = np.arange(ads.num_ads)
    made.index.write_pairs(*changed_pairs(ads, made.snapshot.rules, lists, words, every))


@examples(50)
@given(case=cases(most_ads=40, most_users=6), size=st.sampled_from((1, 15, 16, 17, 33)))
def test_a_node_is_eligible_if_and_only_if_the_user_may_see_an_ad_below_it(
    case: Case, size: int
) -> None:
    users = tuple(islice(cycle(case.users), size))
    made = decode_case(replace(case, users=users), MatcherMode.EXACT)
    for ops in (REFERENCE, NATIVE):
        eligible = ops.eligible_nodes(made.users, made.index)
        assert nodes_of(eligible, size, made.index) == expected_nodes(made)


@examples(20)
@given(case=cases(most_ads=40, most_users=5))
def test_stopped_ads_make_no_node_eligible_until_they_run_again(case: Case) -> None:
    made = decode_case(case, MatcherMode.EXACT)
    stopped = [ad for ad in case.ads if ad.ad_id % 3]
    for now in (stopped, []):
        stop(made, now)
        for ops in (REFERENCE, NATIVE):
            eligible = ops.eligible_nodes(made.users, made.index)
            assert nodes_of(eligible, len(case.users), made.index) == expected_nodes(made, now)


@examples(20)
@given(case=cases(most_ads=40, most_users=5))
def test_stops_that_come_between_masks_and_last_admission_decide_about_leaves(case: Case) -> None:
    made, stopped = decode_case(case, MatcherMode.EXACT), [ad for ad in case.ads if ad.ad_id % 3]
    first, leaf = exact_of(made.index).level_starts[-3:-1]
    nodes = torch.arange(first, leaf, dtype=torch.int32).repeat(len(case.users), 1)
    for ops, now in product((REFERENCE, NATIVE), (stopped, ())):
        stop(made, () if now else stopped)
        users = replace(made.users, eligible=ops.eligible_nodes(made.users, made.index))
        stop(made, now)
        found = ops.admit_children(nodes, users, made.index)
        rows = np.split(found.nodes.numpy(), found.offsets[1:-1].numpy())
        for request, wanted in enumerate(expected_nodes(made, now)):
            own = rows[request * nodes.shape[1] : (request + 1) * nodes.shape[1]]
            assert set().union(*own) == {node for node in wanted if node >= leaf}


def test_stops_of_one_index_change_neither_the_snapshot_nor_another_index() -> None:
    made = decode_case(branching_case(np.random.default_rng(1), 63, 3), MatcherMode.EXACT)
    other, lists = DecodeIndex.of(made.snapshot, CPU), made.snapshot.exact
    assert lists is not None
    assert other.exact is not None
    before = lists.leaf_rules.copy()
    stop(made, made.case.ads)
    assert not REFERENCE.eligible_nodes(made.users, made.index)[:, : made.index.first_leaf].any()
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


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_large_lists_agree_on_any_number_of_threads(threads: int) -> None:
    rng, before = np.random.default_rng(33), torch.get_num_threads()
    index, users = random_lists(rng, (1.5, 40011.0), 33, 2, 7, rows=200_003)
    torch.set_num_threads(threads)
    nodes = NATIVE.eligible_nodes(users, index)
    torch.set_num_threads(before)
    assert torch.equal(nodes, REFERENCE.eligible_nodes(users, index))


def test_native_code_refuses_a_value_that_the_set_does_not_have() -> None:
    index, users = random_lists(np.random.default_rng(7), (3.0,), 3, 1)
    users.sets[0].value_ids[-1] = 29
    with pytest.raises(NativeError, match="a request's value is not one of the component's"):
        NATIVE.eligible_nodes(users, index)


@pytest.fixture(params=["native", pytest.param("cuda", marks=pytest.mark.subprocess)])
def fast(request: pytest.FixtureRequest) -> Iterator[Ops]:
    """C++, and CUDA on the host, whose first test runs the compiler."""
    if request.param == "native":
        yield NATIVE
    else:
        with emulated_cuda():
            yield replace(REFERENCE, eligible_nodes=eligible_nodes_on_gpu)


def exact_of(index: DecodeIndex) -> ExactTensors:
    assert index.exact is not None
    return index.exact


def with_lists(index: DecodeIndex, **changes: Any) -> DecodeIndex:
    return replace(index, exact=replace(exact_of(index), **changes))


@pytest.mark.parametrize(
    ("fan_outs", "requests", "sets", "words", "rows", "intervals", "properties"),
    [
        ((3.0,), 1, 0, 1, 1, 0, 0),
        ((7.0, 11.0, 2.7), 16, 1, 3, 333, 0, 0),
        ((7.0, 11.0, 2.7), 15, 2, 3, 333, 2, 2),
        ((511.0, 1.2), 7, 2, 7, 2049, 0, 1),
        ((5.0, 90.0), 17, 3, 65, 63, 1, 0),
        ((5.0, 3.0), 33, 6, 3, 333, 9, 5),  # more of everything than a launch takes
        ((2.0, 2.0, 2.0, 2.0, 2.0, 9.0), 49, 9, 5, 111, 0, 0),
    ],
)
def test_nodes_equal_the_reference(
    fast: Ops,
    fan_outs: tuple[float, ...],
    requests: int,
    sets: int,
    words: int,
    rows: int,
    intervals: int,
    properties: int,
) -> None:
    rng = np.random.default_rng(requests)
    made = random_lists(rng, fan_outs, requests, sets, words, rows, intervals, properties)
    index, users = made
    for asked in (users, without_known_values(users)):
        expected = REFERENCE.eligible_nodes(asked, index)
        assert torch.equal(fast.eligible_nodes(asked, index), expected)


def test_each_predicate_alone_equals_the_reference(fast: Ops) -> None:
    index, users = random_lists(
        np.random.default_rng(6), (999.0,), 33, 3, intervals=2, properties=3
    )
    rules = exact_of(index).num_rules
    leaves = torch.arange(len(exact_of(index).leaf_offsets), dtype=torch.int32)
    index = with_lists(index, leaf_offsets=leaves, leaf_rules=leaves[:-1] % rules)
    for each in exact_of(index).predicates:
        alone = with_lists(index, predicates=(each,))
        expected = REFERENCE.eligible_nodes(users, alone)
        assert torch.equal(fast.eligible_nodes(users, alone), expected), each


def without_known_values(users: UserTensors) -> UserTensors:
    """Return the same users, of whose values of sets no rule names any."""
    asked = (
        own._replace(value_ids=own.value_ids[:0], value_offsets=torch.zeros_like(own.value_offsets))
        if isinstance(own, AskedLists)
        else own
        for own in users.asked
    )
    return replace(users, asked=tuple(asked))


def test_what_requests_ask_of_an_unasked_component_is_not_read(fast: Ops) -> None:
    rng = np.random.default_rng(5)
    index, users = random_lists(rng, (7.0, 11.0), 17, 2, intervals=2, properties=3)
    places = {1, 3, 6}  # a component of each form
    kept = (each for each in exact_of(index).predicates if component_of(each) not in places)
    expected = REFERENCE.eligible_nodes(users, with_lists(index, predicates=tuple(kept)))
    nothing = users.bitmask.new_zeros(0)
    asked = (
        own._make(nothing for _ in own) if place in places else own
        for place, own in enumerate(users.asked)
    )
    unasked = UserTensors(tuple(asked), unasked=frozenset(places))
    assert torch.equal(fast.eligible_nodes(unasked, index), expected)


def test_components_are_left_out_where_they_limit_nobody_or_no_request_asks() -> None:
    asks = RawUser()
    asks.asked = Asked(filters={"p": RawFilter(any_of=frozenset("a"))})
    schema = TargetingSchema(
        attributes=(Attribute("a", ("x",)),),
        sets=(TargetSet("s", 64, 1, 9),),
        hash_seed=7,
        ranges=(Range("r"), Range("passes", missing_passes=True)),
        properties=(Property("p"),),
    )
    for rules, users, components, unasked in (
        ({}, ({},), [4], {3, 4}),  # a filter hides even ads without the property
        ({"r": (1, None)}, ({"r": 2.0},), [2, 4], {3, 4}),
        ({"passes": (1, 9)}, ({}, {"passes": 2.0}), [3, 4], {4}),
        ({"s": (frozenset("a"), None)}, ({}, asks), [1, 4], {3}),
    ):
        ads = (RawAd(1, (0,), rules=rules), RawAd(2, (1,)))
        made = decode_case(Case(schema, (2,), ads, users), MatcherMode.EXACT)
        assert [*map(component_of, exact_of(made.index).predicates)] == components
        assert made.users.unasked == unasked


def component_of(predicate: Predicate) -> int:
    return getattr(predicate, "component", 0)


@dataclass(frozen=True)
class TorchOnly:
    """A predicate of another kind, which passes every other user whom an own one passes."""

    other: Predicate

    @property
    def ids(self) -> Tensor:
        return self.other.ids.clone()

    def passes(self, users: UserTensors) -> Tensor:
        return self.other.passes(users) & 0x5555


@pytest.mark.parametrize("kinds", [0, 1, 3])
def test_predicates_without_native_code_narrow_what_the_others_pass(fast: Ops, kinds: int) -> None:
    index, users = random_lists(np.random.default_rng(3), (5.0, 3.0), 19, 1)
    own = exact_of(index).predicates
    torch_only = tuple(TorchOnly(each) for each in own * kinds)
    for predicates in (torch_only, (*own, *torch_only)):
        other = with_lists(index, predicates=predicates)
        expected = REFERENCE.eligible_nodes(users, other)
        assert torch.equal(fast.eligible_nodes(users, other), expected)


def test_lists_and_users_of_a_wrong_type_or_shape_are_refused(fast: Ops) -> None:
    index, users = random_lists(np.random.default_rng(3), (5.0, 3.0), 3, 1)
    _, others = random_lists(np.random.default_rng(4), (5.0, 3.0), 4, 1)
    lists = exact_of(index)
    for wrong, own, message in (
        (with_lists(index, leaf_rules=lists.leaf_rules.long()), users, "leaf_rules must be contig"),
        (
            with_lists(index, num_rules=lists.num_rules - 1),
            users,
            r"ids of a predicate must be \[rules\]",
        ),
        (
            index,
            UserTensors.asking(users.bitmask, *others.sets),
            r"open of queries must be \[requests\] = \[3\], g",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            fast.eligible_nodes(own, wrong)


def test_leaves_without_any_rule_or_with_stopped_ads_only_are_ineligible(fast: Ops) -> None:
    index, users = random_lists(np.random.default_rng(3), (5.0, 3.0), 3, 0)
    lists = exact_of(index)
    none = with_lists(
        index, leaf_offsets=torch.zeros_like(lists.leaf_offsets), leaf_rules=lists.leaf_rules[:0]
    )
    assert not fast.eligible_nodes(users, none)[:, : none.first_leaf].any()
    assert fast.eligible_nodes(users, index)[0, 0] != 0
    lists.leaf_rules.fill_(lists.num_rules)
    assert not fast.eligible_nodes(users, index)[:, : index.first_leaf].any()
