"""Exact eligibility's CUDA kernels on the host, against the plain torch bodies."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from grace.kernels import REFERENCE
from grace.kernels.decode.admit_children_cuda import CudaSlot
from grace.kernels.eligibility.attributes import attribute_rows_reference
from grace.kernels.eligibility.on_gpu import (
    attribute_rows_cuda,
    eligible_nodes_on_gpu,
    node_masks_cuda,
    rows_on_gpu,
    rule_masks_cuda,
    set_rows_cuda,
)
from grace.kernels.eligibility.sets import set_rows_reference
from grace.kernels.eligibility.tensors import SetPostings
from support.decode_cases import assert_same_candidates
from support.emulated_cuda import emulated_cuda
from support.exact_indexes import (
    random_exact_index,
    random_exact_users,
    random_postings,
    random_queries,
    random_table,
    random_user_bits,
)
from support.op_cases import CASES, OpCase

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
    assert torch.equal(attribute_rows_cuda(table, users), expected)
    by_word = table.t().contiguous().t()
    assert torch.equal(attribute_rows_cuda(by_word, users), expected)


@pytest.mark.parametrize("missing_passes", [False, True])
@pytest.mark.parametrize(("rules", "requests"), [(1, 1), (1111, 16), (2049, 33)])
def test_set_rows_equal_the_reference(rules: int, requests: int, missing_passes: bool) -> None:
    rng = np.random.default_rng(rules)
    postings = random_postings(rng, rules, 41, missing_passes)
    queries = random_queries(rng, requests, 41)
    assert torch.equal(set_rows_cuda(postings, queries), set_rows_reference(postings, queries))


def test_set_rules_of_users_without_values_and_of_sets_without_lists() -> None:
    rng = np.random.default_rng(1)
    postings = random_postings(rng, 33, 5, False)
    empty = torch.zeros(0, dtype=torch.int32)
    nobody = replace(random_queries(rng, 7, 5), values=empty, value_offsets=empty.new_zeros(8))
    assert torch.equal(set_rows_cuda(postings, nobody), set_rows_reference(postings, nobody))
    offsets, kinds = torch.zeros(6, dtype=torch.int64), torch.zeros(33, dtype=torch.uint8)
    no_lists = SetPostings(offsets, empty, offsets, empty, kinds, False)
    queries = random_queries(rng, 7, 5)
    assert torch.equal(set_rows_cuda(no_lists, queries), set_rows_reference(no_lists, queries))


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
    users, exact = random_exact_users(rng, 5, 1, 1), index.exact
    assert exact is not None
    rows = [(rows_on_gpu(each, users), each.ids) for each in exact.predicates]
    rules = rule_masks_cuda(rows, 5, exact.num_rules, exact.leaf_rules.device)
    expected = REFERENCE.eligible_nodes(users, index)
    assert torch.equal(node_masks_cuda(rules, exact, index.node_offsets, of_warp), expected)


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
