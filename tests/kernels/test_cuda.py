"""The CUDA kernels on the host, against the references: every case, every launch shape.

test_agreement.py does the same on a GPU, and test_cuda_on_gpu.py tests what needs one.
"""

import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.configs.eligibility import MatcherMode
from grace.index.trie import NO_NODE
from grace.kernels import REFERENCE
from grace.kernels.decode.admit_children_cuda import CudaSlot, admit_children_cuda
from grace.kernels.decode.select_beams_cuda import select_beams_cuda
from grace.model.definition.beam_search import leaves_of
from support.decode_cases import (
    assert_same_beams,
    assert_same_candidates,
    branching_case,
    decode_case,
    every_sid_case,
    random_nodes,
)
from support.emulated_cuda import EMULATED, PORTABLE, emulated_cuda
from support.hard_inputs import full_rows
from support.op_cases import CASES, OpCase, mapped, selection_inputs

pytestmark = pytest.mark.subprocess  # the first of them runs the compiler


@pytest.fixture(autouse=True, scope="module")
def on_the_host() -> Iterator[None]:
    with emulated_cuda():
        yield


@pytest.fixture(params=[EMULATED, PORTABLE], ids=["hopper", "portable"])
def either_code(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the code for Hopper and the portable code without clusters; only selection has both."""
    with emulated_cuda(request.param):
        yield


either = pytest.mark.usefixtures("either_code")


@pytest.fixture(autouse=True)
def poisoned_outputs() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def arguments_of(case: OpCase) -> tuple[Any, ...]:
    return case.arguments(np.random.default_rng(7))


@pytest.mark.parametrize("case", CASES["admit_children"], ids=lambda case: case.name)
def test_any_lanes_admit_what_the_reference_admits(case: OpCase) -> None:
    nodes, users, index = arguments_of(case)
    slot = CudaSlot()
    slot.point_at(users, index)
    expected = REFERENCE.admit_children(nodes, users, index)
    for lanes in (8, 16, 32, 128):
        assert_same_candidates(slot.admit_children(nodes, lanes), expected)


@either
@pytest.mark.parametrize("case", CASES["select_beams"], ids=lambda case: case.name)
def test_the_kernel_selects_what_the_reference_selects(case: OpCase) -> None:
    arguments = arguments_of(case)
    got, expected = select_beams_cuda(*arguments), REFERENCE.select_beams(*arguments)
    assert_same_beams(got, expected)


@pytest.mark.parametrize("columns", [63, 512, 513, 1111])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rows_of_any_width_and_type_are_normalised_alike(dtype: torch.dtype, columns: int) -> None:
    logits, *rest = selection_inputs(np.random.default_rng(3), 3, 7, columns, 60, 37, True)
    got = select_beams_cuda(logits.to(dtype), *rest)
    expected = REFERENCE.select_beams(logits.to(dtype), *rest)
    torch.testing.assert_close(got.scores, expected.scores, rtol=1e-5, atol=1e-5)


@either
@pytest.mark.parametrize(
    ("requests", "beams", "above", "ordered"),
    [(1, 1111, -300, True), (1, 1111, 0, False), (1, 1111, 300, True), (3, 111, 0, True)],
)
def test_the_best_are_kept_of_more_beams_than_a_cluster_reads_at_once(
    requests: int, beams: int, above: int, ordered: bool
) -> None:
    """The scores are in the range of log-probabilities, far below it, and above zero.

    The portable code must have one block per request: without clusters, each block takes another.
    """
    rng, rows = np.random.default_rng(11), requests * beams
    logits = np.tile(rng.permutation(9).astype(np.float32) / 1024, (rows, 1))
    order = np.array([rng.permutation(beams) for _ in range(requests)], np.float32)
    scores = torch.from_numpy(above - order / 64)
    candidates, k = full_rows(requests, beams, 9, 9), 703 if requests == 1 else 63
    arguments = (torch.from_numpy(logits), scores, candidates, k, ordered)
    got, expected = select_beams_cuda(*arguments), REFERENCE.select_beams(*arguments)
    assert_same_beams(got, expected)


@pytest.mark.parametrize("value", [-torch.inf, torch.nan, torch.inf])
def test_logits_that_are_not_finite_have_the_same_effect(value: float) -> None:
    """In all of a row, in one candidate of another, and in a column that is no candidate."""
    logits, scores, _, _, _ = selection_inputs(np.random.default_rng(4), 5, 11, 63, 60, 37, True)
    logits[3], logits[14, 5], logits[25, 62] = value, value, value
    arguments = (logits, scores, full_rows(5, 11, 63, 60), 37, True)
    got, expected = select_beams_cuda(*arguments), REFERENCE.select_beams(*arguments)
    assert torch.equal(got.corrupt, expected.corrupt)
    assert torch.equal(got.nodes, expected.nodes)


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


def test_a_slot_numbers_the_leaves_of_the_snapshot_that_it_points_at() -> None:
    slot, rng = CudaSlot(), np.random.default_rng(3)
    for ads in (20, 111):
        made = decode_case(branching_case(rng, ads, 5))
        slot.point_at(made.users, made.index)
        nodes = made.index.first_leaf + torch.arange(12, dtype=torch.int32).view(3, 4)
        nodes[1, 2:] = NO_NODE
        assert torch.equal(slot.leaves_of(nodes), leaves_of(nodes, made.index))


def test_a_request_without_a_user_has_no_children() -> None:
    """A graph of a larger bucket also runs for fewer users."""
    made = decode_case(branching_case(np.random.default_rng(6), 63, 3))
    slot = CudaSlot()
    slot.point_at(made.users, made.index)
    nodes = torch.zeros((5, 7), dtype=torch.int32)
    counts = slot.admit_children(nodes).counts
    assert counts is not None
    assert (counts[:21] > 0).any()
    assert not counts[21:].any()


def test_a_node_of_another_trie_has_no_children() -> None:
    made = decode_case(branching_case(np.random.default_rng(7), 63, 1), MatcherMode.CD)
    wrong = [-2, made.snapshot.trie.num_internal, 2**31 - 1]
    candidates = admit_children_cuda(
        torch.tensor([wrong], dtype=torch.int32), made.users, made.index
    )
    assert candidates.counts is not None
    assert candidates.counts.tolist() == [0, 0, 0]


def test_a_slot_refuses_another_vocabulary_and_steps_before_it_points_at_a_snapshot() -> None:
    slot = CudaSlot()
    with pytest.raises(RuntimeError, match="points at nothing yet"):
        slot.admit_children(torch.zeros((1, 1), dtype=torch.int32))
    made = decode_case(every_sid_case(np.random.default_rng(8), (3, 5), 1))
    slot.point_at(made.users, made.index)
    other = decode_case(every_sid_case(np.random.default_rng(8), (3, 7), 1))
    with pytest.raises(
        ValueError, match=r"sizes \(3, 5\), the snapshot has \(3, 7\): make another"
    ):
        slot.point_at(other.users, other.index)


def test_a_slot_keeps_no_snapshot_alive() -> None:
    """A snapshot has gigabytes, which must be free after the last batch that uses them."""
    made = decode_case(branching_case(np.random.default_rng(5), 63, 3), MatcherMode.UNION)
    users, index = mapped((made.users, made.index), torch.clone)
    slot = CudaSlot()
    slot.point_at(users, index)
    kept = [weakref.ref(index.node_offsets), weakref.ref(users.bitmask)]
    del users, index
    assert [tensor() for tensor in kept] == [None, None]


def strided(tensor: Tensor) -> Tensor:
    return tensor.repeat_interleave(2, dim=-1)[..., ::2]


def test_a_tensor_that_a_kernel_cannot_read_as_an_array_is_refused() -> None:
    nodes, users, index = arguments_of(CASES["admit_children"][0])
    with pytest.raises(ValueError, match=r"nodes must be contiguous torch\.int32"):
        admit_children_cuda(strided(nodes), users, index)
    logits, *rest = arguments_of(CASES["select_beams"][0])
    with pytest.raises(ValueError, match="logits must be contiguous, got strides"):
        select_beams_cuda(strided(logits), *rest)
    with pytest.raises(ValueError, match="logits must be one of float32, bfloat16, float16"):
        select_beams_cuda(logits.double(), *rest)


def test_more_room_than_can_be_numbered_is_refused() -> None:
    made = decode_case(every_sid_case(np.random.default_rng(10), (3,), 1), MatcherMode.CD)
    slot = CudaSlot()
    slot.point_at(made.users, replace(made.index, vocab_sizes=(65535,)))
    with pytest.raises(ValueError, match="32769 beam rows of 65535 tokens are more than int32"):
        slot.admit_children(torch.zeros((1, 32769), dtype=torch.int32))
