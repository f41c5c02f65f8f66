"""The CUDA operations on a GPU: capture, replay, and a snapshot swapped in between."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.configs.eligibility import MatcherMode
from grace.kernels import (
    REFERENCE,
    DecodeIndex,
    Ops,
    UserTensors,
    admission_slot,
    load_ops,
)
from grace.kernels.decode.admit_children_cuda import CudaSlot
from support.decode_cases import (
    assert_same_beams,
    assert_same_candidates,
    branching_case,
    decode_case,
    every_sid_case,
    random_nodes,
)
from support.hard_inputs import full_rows, many_locations_case
from support.op_cases import mapped, normal, selection_inputs
from support.strategies import Case

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda")
REQUESTS, BEAMS = 6, 71


@pytest.fixture(scope="module")
def ops() -> Ops:
    return load_ops(GPU)


@dataclass(frozen=True)
class Batch:
    users: UserTensors
    index: DecodeIndex
    nodes: Tensor


def batch_of(rng: np.random.Generator, case: Case, mode: MatcherMode) -> Batch:
    made = decode_case(case, mode)
    nodes = random_nodes(rng, made.snapshot.trie, len(made.rows), BEAMS)
    users, index, nodes = mapped((made.users, made.index, nodes), lambda x: x.to(GPU))
    return Batch(users, index, nodes)


def batches(rng: np.random.Generator) -> list[Batch]:
    """Batches of all modes, with 0 to 3 sets, 1 to 65 words, and users with up to 200 locations."""
    made = [batch_of(rng, branching_case(rng, 63, REQUESTS), mode) for mode in MatcherMode]
    made += [batch_of(rng, many_locations_case(rng), mode) for mode in MatcherMode]
    return made


def cuda_slot(ops: Ops) -> CudaSlot:
    slot = admission_slot(ops)
    assert isinstance(slot, CudaSlot)
    return slot


@pytest.mark.parametrize("lanes", [8, 16, 32, 128])
def test_a_captured_admission_uses_the_batch_that_the_slot_points_at(ops: Ops, lanes: int) -> None:
    rng = np.random.default_rng(1)
    made = batches(rng)
    slot = cuda_slot(ops)
    slot.point_at(made[0].users, made[0].index)
    nodes = made[0].nodes.clone()
    slot.admit_children(nodes, lanes)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        candidates = slot.admit_children(nodes, lanes)
    for batch in (*made, *reversed(made)):
        slot.point_at(batch.users, batch.index)
        nodes.copy_(batch.nodes)
        graph.replay()
        expected = REFERENCE.admit_children(batch.nodes, batch.users, batch.index)
        assert_same_candidates(candidates, expected)


def test_a_slot_that_the_host_points_ahead_of_the_device_keeps_batches_apart(ops: Ops) -> None:
    """The host is done with all batches before the GPU begins."""
    made = batches(np.random.default_rng(2))
    slot = cuda_slot(ops)
    torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]
    answers = []
    for batch in made:
        slot.point_at(batch.users, batch.index)
        answers.append(slot.admit_children(batch.nodes))
    for batch, answer in zip(made, answers, strict=True):
        assert_same_candidates(
            answer, REFERENCE.admit_children(batch.nodes, batch.users, batch.index)
        )


@pytest.mark.parametrize("ordered", [False, True], ids=["in-order", "ordered"])
def test_a_captured_selection_reads_its_inputs_at_each_replay(ops: Ops, ordered: bool) -> None:
    rng = np.random.default_rng(3)
    logits, scores, candidates, k, _ = mapped(
        selection_inputs(rng, 5, 63, 111, 100, 257, ordered), lambda x: x.to(GPU)
    )
    ops.select_beams(logits, scores, candidates, k, ordered)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        beams = ops.select_beams(logits, scores, candidates, k, ordered)
    for seed in range(5):
        new_logits, new_scores, *_ = selection_inputs(
            np.random.default_rng(seed), 5, 63, 111, 100, 257, ordered
        )
        logits.copy_(new_logits)
        scores.copy_(new_scores)
        graph.replay()
        assert_same_beams(beams, REFERENCE.select_beams(logits, scores, candidates, k, ordered))


def test_admission_and_selection_agree_with_a_thousand_beams_of_full_fan_out(ops: Ops) -> None:
    rng = np.random.default_rng(4)
    made = decode_case(every_sid_case(rng, (512, 3), 3))
    users, index = mapped((made.users, made.index), lambda x: x.to(GPU))
    nodes = torch.zeros((3, 1024), dtype=torch.int32, device=GPU)  # the root, over and over
    candidates = ops.admit_children(nodes, users, index)
    assert_same_candidates(candidates, REFERENCE.admit_children(nodes, users, index))
    logits, scores = normal(rng, 1, 512).repeat(3072, 1).to(GPU), normal(rng, 3, 1024).to(GPU)
    scores[1] = 0  # a request of ties by the thousand
    for k, ordered in ((1024, False), (1024, True), (5001, True), (1, True)):
        got = ops.select_beams(logits, scores, candidates, k, ordered)
        expected = REFERENCE.select_beams(logits, scores, candidates, k, ordered)
        torch.testing.assert_close(got.scores, expected.scores, rtol=1e-5, atol=1e-5)
        for name in ("parents", "tokens", "nodes"):
            assert torch.equal(getattr(got, name)[1], getattr(expected, name)[1]), name


@pytest.mark.filterwarnings("ignore")  # of the profiler
def test_a_request_of_many_beams_has_a_cluster_on_hopper_and_a_block_elsewhere(
    ops: Ops, tmp_path: Path
) -> None:
    """The library has Hopper code for compute capability 9.0 only."""
    logits, scores = torch.zeros((3 * 111, 63), device=GPU), torch.zeros((3, 111), device=GPU)
    candidates = mapped(full_rows(3, 111, 63, 60), lambda x: x.to(GPU))
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        ops.select_beams(logits, scores, candidates, 37, True)
        torch.cuda.synchronize()
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    grids = [
        event["args"]["grid"]
        for event in events
        if event.get("cat") == "kernel" and "select_beams" in event["name"]
    ]
    blocks = 4 if torch.cuda.get_device_capability(GPU) == (9, 0) else 1
    assert grids == [[3 * blocks, 1, 1]]
