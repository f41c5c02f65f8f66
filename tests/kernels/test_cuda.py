"""The CUDA kernels on the host: every launch shape, slots, and what they refuse.

test_agreement.py compares them in every case, here and on a GPU.
"""

import weakref
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from grace.configs.eligibility import MatcherMode
from grace.index.trie import NO_NODE
from grace.kernels import REFERENCE
from grace.kernels.decode.admit_children_cuda import CudaSlot, admit_children_cuda
from grace.kernels.decode.select_beams import Choice
from grace.kernels.decode.select_beams_cuda import select_beams_cuda
from grace.kernels.eligibility.batch import STEPS, EligibleNodesCall
from grace.kernels.eligibility.plan import EligibilityPlan
from grace.model.definition.inputs import map_tensors
from grace.native.build import Target
from support.decode_cases import (
    DecodeCase,
    assert_same_beams,
    assert_same_candidates,
    branching_case,
    decode_case,
    every_sid_case,
    random_nodes,
)
from support.emulated_cuda import EMULATED, PORTABLE, emulated_cuda
from support.exact_indexes import random_lists
from support.op_case import OpCase
from support.op_cases import CASES, full_rows, selection_inputs

pytestmark = pytest.mark.subprocess  # the first of them runs the compiler

LANES = (8, 32, 128)


@pytest.fixture(autouse=True, scope="module")
def on_the_host() -> Iterator[None]:
    with emulated_cuda():
        yield


@pytest.fixture(autouse=True)
def poisoned_outputs() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def of_seed(seed: int, users: int = 3, **mode: MatcherMode) -> DecodeCase:
    return decode_case(branching_case(np.random.default_rng(seed), 63, users), **mode)


@pytest.mark.parametrize("case", CASES["admit_children"], ids=lambda case: case.name)
def test_any_lanes_admit_what_the_reference_admits(case: OpCase) -> None:
    nodes, users, index = case.arguments(np.random.default_rng(7), torch.float32)
    slot = CudaSlot()
    slot.point_at(users, index)
    expected = REFERENCE.admit_children(nodes, users, index)
    for lanes in LANES:
        assert_same_candidates(slot.admit_children(nodes, lanes), expected)


@pytest.mark.parametrize("columns", [63, 512, 513, 1111])
def test_rows_of_any_width_in_bfloat16_are_normalised_alike(columns: int) -> None:
    given = selection_inputs(np.random.default_rng(3), 3, 7, columns, 60, 37, True)
    given = replace(given, logits=given.logits.bfloat16())
    got, expected = select_beams_cuda(given), REFERENCE.select_beams(given)
    torch.testing.assert_close(got.scores, expected.scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", [EMULATED, PORTABLE], ids=["hopper", "portable"])
@pytest.mark.parametrize(
    ("requests", "beams", "above", "ordered"),
    [(1, 1111, -300, True), (1, 1111, 0, False), (1, 1111, 300, True), (3, 111, 0, True)],
)
def test_the_best_are_kept_of_more_beams_than_a_cluster_reads_at_once(
    requests: int, beams: int, above: int, ordered: bool, target: Target
) -> None:
    """The scores are in the range of log-probabilities, far below it, and above zero.

    The portable code must have one block per request: without clusters, each block takes another.
    """
    rng, rows = np.random.default_rng(11), requests * beams
    logits = np.tile(rng.permutation(9).astype(np.float32) / 1024, (rows, 1))
    order = np.array([rng.permutation(beams) for _ in range(requests)], np.float32)
    scores = torch.from_numpy(above - order / 64)
    candidates, k = full_rows(requests, beams, 9, 9), 703 if requests == 1 else 63
    given = Choice(torch.from_numpy(logits), scores, candidates, k, ordered)
    with emulated_cuda(target):
        assert_same_beams(select_beams_cuda(given), REFERENCE.select_beams(given))


def test_a_slot_serves_one_snapshot_and_batch_after_another() -> None:
    """The snapshots differ in size, mode, words and sets, and the batches in users."""
    rng = np.random.default_rng(5)
    slot = CudaSlot()
    for mode in (*MatcherMode, *MatcherMode):
        made = decode_case(branching_case(rng, int(rng.integers(20, 111)), 5), mode)
        slot.point_at(made.users, made.index)
        nodes = random_nodes(rng, made.snapshot.trie, 5, 7)
        expected = REFERENCE.admit_children(nodes, made.users, made.index)
        assert_same_candidates(slot.admit_children(nodes), expected)
        last = made.index.first_leaf + torch.arange(12, dtype=torch.int32).view(3, 4)
        last[1, 2:] = NO_NODE
        assert torch.equal(slot.leaves_of(last), made.index.leaves_of(last))


def test_nodes_of_another_trie_and_requests_without_a_user_have_no_children() -> None:
    """A graph of a larger bucket also runs for fewer users."""
    made, slot = of_seed(6), CudaSlot()
    slot.point_at(made.users, made.index)
    counts = slot.admit_children(torch.zeros((5, 7), dtype=torch.int32)).counts
    assert counts is not None
    assert (counts[:21] > 0).any()
    assert not counts[21:].any()
    made = of_seed(7, users=1, mode=MatcherMode.CD)
    wrong = torch.tensor([[-2, made.snapshot.trie.first_leaf, 2**31 - 1]], dtype=torch.int32)
    counts = admit_children_cuda(wrong, made.users, made.index).counts
    assert counts is not None
    assert counts.tolist() == [0, 0, 0]


def test_a_slot_refuses_another_vocabulary_and_steps_before_it_points_at_a_snapshot() -> None:
    slot = CudaSlot()
    with pytest.raises(RuntimeError, match="points at nothing yet"):
        slot.admit_children(torch.zeros((1, 1), dtype=torch.int32))
    rng = np.random.default_rng(8)
    one, other = (decode_case(every_sid_case(rng, sizes, 1)) for sizes in ((3, 5), (3, 7)))
    slot.point_at(one.users, one.index)
    with pytest.raises(ValueError, match=r"sizes \(3, 5\), the snapshot has \(3, 7\): make an"):
        slot.point_at(other.users, other.index)
    wide = decode_case(every_sid_case(np.random.default_rng(10), (3,), 1), MatcherMode.CD)
    slot = CudaSlot()
    slot.point_at(wide.users, replace(wide.index, vocab_sizes=(65535,)))
    with pytest.raises(ValueError, match="32769 beam rows of 65535 tokens are more than int32"):
        slot.admit_children(torch.zeros((1, 32769), dtype=torch.int32))


def test_a_slot_keeps_no_snapshot_alive() -> None:
    """A snapshot has gigabytes, which must be free after the last batch that uses them."""
    made = of_seed(5, mode=MatcherMode.UNION)
    users, index = map_tensors((made.users, made.index), torch.clone)
    slot = CudaSlot()
    slot.point_at(users, index)
    kept = [weakref.ref(index.node_offsets), weakref.ref(users.bitmask)]
    del users, index
    assert [tensor() for tensor in kept] == [None, None]


@pytest.mark.parametrize("of_warp", [1, 7, 32, 128])
def test_any_ranges_of_a_warp_are_right_for_short_and_long_ranges(of_warp: int) -> None:
    """Their number follows from averages, while single ranges differ much."""
    index, users = random_lists(np.random.default_rng(8), (3.0, 17.0, 5.0), 5, 1)
    assert index.exact is not None
    plan = EligibilityPlan(index.exact, index.node_offsets)
    for level in range(plan.layout.levels):
        plan.layout.of_warp[level] = of_warp
    call = EligibleNodesCall(plan, users)
    call.launch()
    assert torch.equal(call.eligible, REFERENCE.eligible_nodes(users, index))


def test_the_steps_one_by_one_make_what_a_whole_call_does() -> None:
    index, users = random_lists(np.random.default_rng(20), (3.0, 17.0, 5.0), 17, 9)
    call = EligibleNodesCall(index.eligibility_plan, users)
    for step in (*range(len(STEPS)), *(len(STEPS) + level for level in (2, 1, 0))):
        for _ in range(2):  # the bench repeats them
            call.launch(step)
    assert torch.equal(call.eligible, REFERENCE.eligible_nodes(users, index))
