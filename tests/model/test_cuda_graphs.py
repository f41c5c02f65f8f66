"""Generation as CUDA graphs, on a fake of CUDA: what a replay reads, and who owns an answer."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from grace.configs.eligibility import MatcherMode
from grace.configs.errors import ConfigError
from grace.configs.generation import BeamProfile
from grace.kernels import REFERENCE, AdmissionSlot, DecodeIndex, load_ops, with_eligible
from grace.model.definition.beam_search import Generated
from grace.model.definition.inputs import FeatureTensors
from grace.model.definition.model import Model
from grace.model.engine.cuda_graphs import GraphedCall, GraphMemory
from grace.model.engine.generation import (
    EngineSettings,
    FastGeneration,
    GraphGeneration,
    PlainGeneration,
)
from support.fast_cases import ALL_STEPS
from support.generation_cases import MODELS, PROFILES, index_of, make_batch, make_model


@dataclass
class FakeCuda:
    recording: "_Graph | None" = None


@dataclass(eq=False)
class _Graph:
    cuda: FakeCuda
    replay: Callable[[], object] = lambda: None

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:  # noqa: ARG002
        assert capture_error_mode == "thread_local"
        self.cuda.recording = self

    def capture_end(self) -> None:
        self.cuda.recording = None


@contextmanager
def fake_cuda() -> Iterator[FakeCuda]:
    """Replace torch's CUDA: work runs at once, on the CPU, and a replay runs its search again."""
    cuda = FakeCuda()
    current = Mock()
    fakes: dict[str, Callable[..., Any]] = {
        "Stream": lambda device: Mock(device=device),
        "Event": Mock,
        "CUDAGraph": lambda: _Graph(cuda),
        "graph_pool_handle": object,
        "current_stream": lambda device=None: current,
        "empty_cache": lambda: None,
        "stream": lambda stream: nullcontext(),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, fake in fakes.items():
            patch.setattr(torch.cuda, name, fake)
        patch.setattr(GraphMemory, "idle_streams", {})
        yield cuda


class ReplayableGeneration(FastGeneration):
    """A search that, once recorded, writes each replay's results into the recorded tensors."""

    cuda: FakeCuda

    def search(self, features: FeatureTensors, slot: AdmissionSlot, profile: BeamProfile) -> Tensor:
        found = super().search(features, slot, profile)

        @torch.inference_mode()
        def again() -> None:
            found.copy_(FastGeneration.search(self, features, slot, profile))

        if self.cuda.recording is not None:
            self.cuda.recording.replay = again
        return found


CPU = torch.device("cpu")
NARROW, WIDE = PROFILES


@pytest.fixture
def cuda() -> Iterator[FakeCuda]:
    with fake_cuda() as cuda:
        yield cuda


@dataclass(frozen=True)
class Recorded:
    model: Model
    generation: GraphGeneration

    @staticmethod
    def of(cuda: FakeCuda, kind: str = "interformer") -> "Recorded":
        model = make_model(kind, CPU)
        fast = ReplayableGeneration(model, load_ops(CPU), EngineSettings("fp32", ALL_STEPS))
        fast.cuda = cuda
        return Recorded(model, GraphGeneration(model, fast, (1, 4), PROFILES))

    def answer(self, seed: int, index: DecodeIndex, profile: BeamProfile = WIDE) -> Generated:
        batch = make_batch(self.model, seed, 3, 4, CPU)
        users = with_eligible(batch.users, index, REFERENCE)
        return self.generation.generate(batch.features, users, index, profile)

    def index(self, seed: int, mode: MatcherMode = MatcherMode.UNION) -> DecodeIndex:
        return index_of(self.model, seed, mode, CPU)


@pytest.mark.parametrize("kind", MODELS)
def test_a_replay_answers_for_its_own_batch_snapshot_and_profile(cuda: FakeCuda, kind: str) -> None:
    recorded = Recorded.of(cuda, kind)
    plain = PlainGeneration(recorded.model, REFERENCE)
    for seed, mode in enumerate(MatcherMode):
        index, profile = recorded.index(seed, mode), PROFILES[seed % 2]
        got = recorded.answer(seed, index, profile)
        batch = make_batch(recorded.model, seed, 3, 4, CPU)
        users = with_eligible(batch.users, index, REFERENCE)
        expected = plain.generate(batch.features, users, index, profile)
        assert torch.equal(got.leaves, expected.leaves)
        torch.testing.assert_close(got.scores, expected.scores, rtol=1e-4, atol=0)


def test_a_batch_that_fails_does_not_change_the_next_one(cuda: FakeCuda) -> None:
    recorded = Recorded.of(cuda)
    index = recorded.index(1)
    expected = recorded.answer(2, index)
    one_request = make_batch(recorded.model, 1, 1, 1, CPU).features
    other_model = make_batch(make_model("t5", CPU), 1, 1, 4, CPU).features
    users = make_batch(recorded.model, 1, 3, 4, CPU).users
    for features, fault in (
        (one_request, r"features must be \[4, 5, 21\], got \[1, "),
        (other_model, "must be those of the model"),
    ):
        with pytest.raises(ValueError, match=fault):
            recorded.generation.generate(features, users, index, WIDE)
    got = recorded.answer(2, index)
    assert torch.equal(got.leaves, expected.leaves)
    assert torch.equal(got.scores, expected.scores)


def test_a_bucket_or_profile_without_a_graph_is_refused(cuda: FakeCuda) -> None:
    recorded = Recorded.of(cuda)
    index, batch = recorded.index(1), make_batch(recorded.model, 1, 2, 2, CPU)
    with pytest.raises(ConfigError, match=r"a batch of 2 with beams \[1, 5, 17\] was not captured"):
        recorded.generation.generate(batch.features, batch.users, index, WIDE)
    with pytest.raises(ConfigError, match=r"beams \[1, 9, 9\] was not captured: buckets \[1, 4\]"):
        recorded.answer(1, index, BeamProfile((1, 9, 9), 7))


def test_a_recording_that_fails_is_ended(cuda: FakeCuda) -> None:
    def run() -> None:
        if cuda.recording is not None:
            raise RuntimeError("not while a graph is recorded")

    with pytest.raises(RuntimeError, match="not while a graph"):
        GraphedCall(run, GraphMemory(CPU))
    assert cuda.recording is None


@pytest.mark.usefixtures("cuda")
def test_only_graphs_of_one_memory_share_a_stream() -> None:
    """A stream owns cuBLAS's workspace. Memories that are gone give their streams back."""
    serving = GraphedCall(lambda: 7, GraphMemory(CPU))
    memory = GraphMemory(CPU)
    stream = memory.stream
    call = GraphedCall(lambda: 7, memory)
    del memory
    assert GraphMemory(CPU).stream is not stream, "a graph keeps the stream it was recorded on"
    del call
    gc.collect()
    again = {GraphMemory(CPU).stream for _ in range(2)}
    assert stream in again
    assert serving.result == 7
