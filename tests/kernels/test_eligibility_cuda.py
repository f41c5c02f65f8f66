"""Exact eligibility's CUDA kernels on the host, against the plain torch bodies."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.kernels import REFERENCE, UserTensors
from grace.kernels.decode.admit_children_cuda import CudaSlot
from grace.kernels.eligibility.attributes import attribute_rows_reference
from grace.kernels.eligibility.gpu_plan import EligibilityPlan
from grace.kernels.eligibility.on_gpu import STEPS, EligibleNodesCall, eligible_nodes_on_gpu
from grace.kernels.eligibility.sets import set_rows_reference
from grace.kernels.eligibility.tensors import Predicate, SetPostings
from support.decode_cases import assert_same_candidates
from support.emulated_cuda import emulated_cuda
from support.exact_indexes import (
    attribute_rows_by_nodes,
    random_exact_index,
    random_exact_users,
    random_postings,
    random_queries,
    random_table,
    random_user_bits,
    set_rows_by_nodes,
)
from support.op_cases import CASES, OpCase

OPS = replace(REFERENCE, eligible_nodes=eligible_nodes_on_gpu)

pytestmark = pytest.mark.subprocess  # the first of them runs the compiler


@pytest.fixture(autouse=True, scope="module")
def on_the_host() -> Iterator[None]:
    with emulated_cuda():
        yield


@pytest.fixture(autouse=True)
def poisoned_outputs() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(("rows", "words"), [(1, 1), (1025, 7), (63, 65)])
@pytest.mark.parametrize("requests", [1, 15, 16, 49])
def test_attribute_rows_in_any_layout_equal_the_reference(
    rows: int, words: int, requests: int
) -> None:
    rng = np.random.default_rng(rows + requests)
    table, users = random_table(rng, rows, words), random_user_bits(rng, requests, words)
    expected = attribute_rows_reference(table, users)
    assert torch.equal(attribute_rows_by_nodes(OPS, table, users), expected)
    by_word = table.t().contiguous().t()
    assert torch.equal(attribute_rows_by_nodes(OPS, by_word, users), expected)


@pytest.mark.parametrize("missing_passes", [False, True])
@pytest.mark.parametrize(("rules", "requests"), [(1, 1), (1111, 16), (2049, 33)])
def test_set_rows_equal_the_reference(rules: int, requests: int, missing_passes: bool) -> None:
    rng = np.random.default_rng(rules)
    postings = random_postings(rng, rules, 41, missing_passes)
    queries = random_queries(rng, requests, 41)
    assert torch.equal(
        set_rows_by_nodes(OPS, postings, queries), set_rows_reference(postings, queries)
    )


def test_set_rules_of_users_without_values_and_of_sets_without_lists() -> None:
    rng = np.random.default_rng(1)
    postings = random_postings(rng, 33, 5, False)
    empty = torch.zeros(0, dtype=torch.int32)
    nobody = replace(random_queries(rng, 7, 5), values=empty, value_offsets=empty.new_zeros(8))
    assert torch.equal(
        set_rows_by_nodes(OPS, postings, nobody), set_rows_reference(postings, nobody)
    )
    offsets, kinds = torch.zeros(6, dtype=torch.int64), torch.zeros(33, dtype=torch.uint8)
    no_lists = SetPostings(offsets, empty, offsets, empty, kinds, False)
    queries = random_queries(rng, 7, 5)
    assert torch.equal(
        set_rows_by_nodes(OPS, no_lists, queries), set_rows_reference(no_lists, queries)
    )


@pytest.mark.parametrize(
    ("fan_outs", "requests", "sets"),
    [
        ((3.0,), 1, 0),
        ((7.0, 11.0, 2.7), 16, 1),
        ((511.0, 1.2), 7, 2),
        ((5.0, 90.0), 17, 3),
        ((2.0, 2.0, 2.0, 2.0, 2.0, 9.0), 33, 9),
    ],
)
def test_nodes_equal_the_reference(fan_outs: tuple[float, ...], requests: int, sets: int) -> None:
    rng = np.random.default_rng(len(fan_outs) + requests)
    index = random_exact_index(rng, fan_outs, 3, sets)
    users = random_exact_users(rng, requests, 3, sets)
    expected = REFERENCE.eligible_nodes(users, index)
    assert torch.equal(eligible_nodes_on_gpu(users, index), expected)


@pytest.mark.parametrize("case", CASES["eligible_nodes"], ids=lambda case: case.name)
def test_nodes_of_catalogues_equal_the_reference(case: OpCase) -> None:
    users, index = case.arguments(np.random.default_rng(7))
    expected = REFERENCE.eligible_nodes(users, index)
    assert torch.equal(eligible_nodes_on_gpu(users, index), expected)


@pytest.mark.parametrize("of_warp", [1, 7, 32, 128])
def test_any_ranges_of_a_warp_are_right_for_short_and_long_ranges(of_warp: int) -> None:
    """Their number follows from averages, while single ranges differ much."""
    rng = np.random.default_rng(of_warp)
    index = random_exact_index(rng, (3.0, 17.0, 5.0), 1, 1)
    users = random_exact_users(rng, 5, 1, 1)
    assert index.exact is not None
    call = EligibleNodesCall(EligibilityPlan(index.exact, index.node_offsets, of_warp), users)
    call.launch()
    assert torch.equal(call.eligible, REFERENCE.eligible_nodes(users, index))


def test_the_steps_one_by_one_make_what_a_whole_call_does() -> None:
    rng = np.random.default_rng(6)
    index = random_exact_index(rng, (3.0, 17.0, 5.0), 2, 9)
    users = random_exact_users(rng, 17, 2, 9)
    call = EligibleNodesCall(index.eligibility_plan, users)
    for step in (*range(len(STEPS)), *(len(STEPS) + level for level in (2, 1, 0))):
        for _ in range(2):  # the bench repeats them
            call.launch(step)
    assert torch.equal(call.eligible, REFERENCE.eligible_nodes(users, index))


@pytest.mark.parametrize("kinds", [0, 1, 3])
def test_predicates_without_native_code_narrow_what_the_others_pass(kinds: int) -> None:
    rng = np.random.default_rng(kinds)
    index, users = random_exact_index(rng, (5.0, 3.0), 1, 1), random_exact_users(rng, 19, 1, 1)
    exact = index.exact
    assert exact is not None
    torch_only = tuple(_TorchOnly(each) for each in exact.predicates * kinds)
    for predicates in (torch_only, (*exact.predicates, *torch_only)):
        own = replace(index, exact=replace(exact, predicates=predicates))
        assert torch.equal(eligible_nodes_on_gpu(users, own), REFERENCE.eligible_nodes(users, own))


@dataclass(frozen=True)
class _TorchOnly:
    """A predicate of another kind, which passes every other user whom an own one passes."""

    other: Predicate

    @property
    def ids(self) -> Tensor:
        return self.other.ids.clone()

    def passes(self, users: UserTensors) -> Tensor:
        return self.other.passes(users) & 0x5555


def test_lists_and_users_of_a_wrong_type_or_shape_are_refused() -> None:
    rng = np.random.default_rng(8)
    index, users = random_exact_index(rng, (5.0, 3.0), 1, 1), random_exact_users(rng, 3, 1, 1)
    exact = index.exact
    assert exact is not None
    wide = replace(index, exact=replace(exact, leaf_rules=exact.leaf_rules.long()))
    with pytest.raises(ValueError, match=r"leaf_rules must be contiguous torch\.int32"):
        eligible_nodes_on_gpu(users, wide)
    fewer = replace(index, exact=replace(exact, num_rules=exact.num_rules - 1))
    with pytest.raises(ValueError, match=r"ids of a predicate must be int32 \[rules\]"):
        eligible_nodes_on_gpu(users, fewer)
    other = replace(users, sets=random_exact_users(rng, 4, 1, 1).sets)
    with pytest.raises(ValueError, match=r"offsets of queries must be \[ends\] = \[4\], got \[5\]"):
        eligible_nodes_on_gpu(other, index)


def test_leaves_without_any_rule_are_ineligible() -> None:
    rng = np.random.default_rng(2)
    index = random_exact_index(rng, (5.0, 3.0), 1, 0)
    assert index.exact is not None
    lists = index.exact
    no_rules = replace(
        lists,
        leaf_offsets=torch.zeros_like(lists.leaf_offsets),
        leaf_rules=lists.leaf_rules[:0],
    )
    users = random_exact_users(rng, 3, 1, 0)
    assert not eligible_nodes_on_gpu(users, replace(index, exact=no_rules)).any()


def test_stopping_ads_makes_their_leaves_and_all_nodes_above_ineligible() -> None:
    rng = np.random.default_rng(3)
    index = random_exact_index(rng, (5.0, 3.0), 1, 0)
    assert index.exact is not None
    users = random_exact_users(rng, 3, 1, 0)
    assert eligible_nodes_on_gpu(users, index)[0, 0] != 0
    index.exact.leaf_rules.fill_(index.exact.num_rules)
    assert not eligible_nodes_on_gpu(users, index).any()


@pytest.mark.parametrize("requests", [1, 16, 19])
def test_admission_by_bits_equals_the_reference_with_any_lanes(requests: int) -> None:
    rng = np.random.default_rng(requests)
    index = random_exact_index(rng, (63.0, 31.0, 2.0), 2, 1)
    users = random_exact_users(rng, requests, 2, 1)
    users = replace(users, eligible=REFERENCE.eligible_nodes(users, index))
    nodes = rng.integers(-1, index.first_leaf, size=(requests, 37), dtype=np.int32)
    slot, beams = CudaSlot(), torch.from_numpy(nodes)
    slot.point_at(users, index)
    expected = REFERENCE.admit_children(beams, users, index)
    for lanes in (8, 16, 32, 128):
        assert_same_candidates(slot.admit_children(beams, lanes), expected)


def test_a_slot_refuses_users_whose_eligible_nodes_are_unknown() -> None:
    rng = np.random.default_rng(4)
    index = random_exact_index(rng, (5.0, 3.0), 1, 0)
    with pytest.raises(ValueError, match=r"users\.eligible: missing.*with_eligible first"):
        CudaSlot().point_at(random_exact_users(rng, 3, 1, 0), index)
