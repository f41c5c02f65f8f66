"""Recorded generation: what waits for what, and whose memory an answer is, seen without a GPU."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from grace.configs.generation import BeamProfile
from grace.index.matchers.modes import MatcherMode
from grace.kernels import REFERENCE, DecodeIndex, UserTensors, load_ops
from grace.model.definition.beam_search import Generated
from grace.model.definition.inputs import FeatureTensors
from grace.model.definition.model import Model
from grace.model.engine import captured_generation
from grace.model.engine.captured_call import WARM_UPS, CapturedCall, CaptureMemory
from grace.model.engine.captured_generation import CapturedGeneration, copy_features
from grace.model.engine.generation import PlainGeneration
from support.fast_cases import ALL_STEPS
from support.generation_cases import MODELS, PROFILES, index_of, make_batch, make_model
from support.noted_cuda import NotedCuda, ReplayableGeneration, noted_cuda
from support.op_cases import mapped

CPU = torch.device("cpu")
NARROW, WIDE = PROFILES


@pytest.fixture
def cuda() -> Iterator[NotedCuda]:
    torch.set_num_threads(1)
    with noted_cuda() as cuda:
        yield cuda


@dataclass(frozen=True)
class Recorded:
    model: Model
    generation: CapturedGeneration

    @staticmethod
    def of(cuda: NotedCuda, kind: str = "interformer") -> "Recorded":
        model = make_model(kind, CPU)
        eager = ReplayableGeneration(model, load_ops(CPU), "fp32", ALL_STEPS)
        eager.cuda = cuda
        recorded = Recorded(model, CapturedGeneration(model, eager, (1, 4), PROFILES))
        cuda.taken()
        return recorded

    def answer(self, seed: int, index: DecodeIndex, profile: BeamProfile = WIDE) -> Generated:
        batch = make_batch(self.model, seed, 3, 4, CPU)
        return self.generation.generate(batch.features, batch.users, index, profile)

    def index(self, seed: int, mode: MatcherMode = MatcherMode.UNION) -> DecodeIndex:
        return index_of(self.model, seed, mode, CPU)


@pytest.mark.parametrize("kind", MODELS)
def test_a_replay_answers_for_its_own_batch_snapshot_and_profile(
    cuda: NotedCuda, kind: str
) -> None:
    recorded = Recorded.of(cuda, kind)
    plain = PlainGeneration(recorded.model, REFERENCE)
    for seed, mode in enumerate(MatcherMode):
        index, profile = recorded.index(seed, mode), PROFILES[seed % 2]
        got = recorded.answer(seed, index, profile)
        batch = make_batch(recorded.model, seed, 3, 4, CPU)
        expected = plain.generate(batch.features, batch.users, index, profile)
        assert torch.equal(got.leaves, expected.leaves)
        torch.testing.assert_close(got.scores, expected.scores, rtol=1e-4, atol=0)


def test_no_part_of_an_answer_changes_with_the_next_batch(cuda: NotedCuda) -> None:
    recorded = Recorded.of(cuda)
    index = recorded.index(1, MatcherMode.CD)
    first = recorded.answer(1, index)
    before = mapped(first, torch.clone)
    poisoned = make_batch(recorded.model, 2, 3, 4, CPU)
    with torch.inference_mode():
        for sequence in poisoned.features.sequences:
            sequence.states.fill_(torch.nan)
    other = recorded.generation.generate(poisoned.features, poisoned.users, index, WIDE)
    assert other.corrupt.all()
    assert not before.corrupt.any()
    for name in ("leaves", "scores", "corrupt"):
        assert torch.equal(getattr(first, name), getattr(before, name)), name


def noting(cuda: NotedCuda, patch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    """What a batch writes for its graph to read is noted too."""

    def copied(source: FeatureTensors, place: FeatureTensors) -> None:
        cuda.notes.append("features copied")
        copy_features(source, place)

    slot = recorded.generation._slot
    point_at = slot.point_at

    def pointed(users: UserTensors, index: DecodeIndex) -> None:
        cuda.notes.append("slot pointed")
        point_at(users, index)

    patch.setattr(captured_generation, "copy_features", copied)
    patch.setattr(slot, "point_at", pointed)


def test_a_batch_on_another_stream_touches_nothing_before_the_last_one_is_done(
    cuda: NotedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Recorded.of(cuda)
    index, other = recorded.index(1), cuda.new_stream()
    noting(cuda, monkeypatch, recorded)
    recorded.answer(1, index)
    written = ["slot pointed", "features copied", "replay"]
    assert cuda.taken() == ["A waits for what A had", *written, "A is noted"]
    with torch.cuda.stream(other):  # type: ignore[arg-type]
        recorded.answer(2, index)
    name = other.name
    assert cuda.taken() == [f"{name} waits for what A had", *written, f"{name} is noted"]
    recorded.answer(3, index)
    assert cuda.taken()[0] == f"A waits for what {name} had"


def failing(*arguments: object) -> Tensor:
    raise RuntimeError(f"no memory for {len(arguments)}")


@pytest.mark.parametrize("where", ["leaves_of", "copy_features"])
def test_after_a_batch_that_failed_the_next_one_still_waits(
    cuda: NotedCuda, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    recorded = Recorded.of(cuda)
    index, other = recorded.index(1), cuda.new_stream()
    expected = recorded.answer(2, index)
    cuda.taken()
    with monkeypatch.context() as patch:
        patch.setattr(captured_generation, where, failing)
        with (
            torch.cuda.stream(other),  # type: ignore[arg-type]
            pytest.raises(RuntimeError, match="no memory for 2"),
        ):
            recorded.answer(1, index)
    assert cuda.taken()[-1] == f"{other.name} is noted"
    got = recorded.answer(2, index)
    assert cuda.taken()[0] == f"A waits for what {other.name} had"
    assert torch.equal(got.leaves, expected.leaves)
    assert torch.equal(got.scores, expected.scores)


def test_what_the_warm_up_took_is_free_before_the_recording_begins(cuda: NotedCuda) -> None:
    def run() -> None:
        cuda.notes.append("run")

    CapturedCall(run, CaptureMemory(CPU)).replay()
    assert cuda.taken() == [
        *("B waits for A", *["run"] * WARM_UPS, "all wait for B", "cache emptied"),
        *("recording begins", "run", "recording ends", "A waits for B", "replay"),
    ]


def test_a_recording_that_fails_is_ended(cuda: NotedCuda) -> None:
    runs: list[int] = []

    def run() -> None:
        runs.append(1)
        if len(runs) > WARM_UPS:
            raise RuntimeError("not while a graph is recorded")

    with pytest.raises(RuntimeError, match="not while a graph"):
        CapturedCall(run, CaptureMemory(CPU))
    assert cuda.taken()[-2:] == ["recording begins", "recording ends"]


def test_graphs_that_may_run_at_the_same_time_have_streams_of_their_own(cuda: NotedCuda) -> None:
    """And with them what cuBLAS works in; checkpoints that are gone give theirs back."""
    run: Callable[[], int] = lambda: 7  # noqa: E731
    serving = CapturedCall(run, CaptureMemory(CPU))
    seen = set()
    for _ in range(9):
        memory = CaptureMemory(CPU)
        seen.add(memory.stream)
        call = CapturedCall(run, memory)
        del memory
        assert CaptureMemory(CPU).stream not in seen, "a graph keeps the stream it was recorded on"
        del call
    gc.collect()
    assert len(seen) == 1
    assert len(cuda.streams) == 1 + 3
    assert serving.result == 7
