"""Plain and fast generation behind one interface, what a recorded one reads and returns, and CUDA
graphs on a GPU, compared with the plain definition on the CPU."""

import gc
import threading
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from grace.configs.eligibility import MatcherMode
from grace.configs.errors import ConfigError
from grace.configs.generation import BeamProfile, GenerationConfig
from grace.index.trie import NO_NODE
from grace.kernels import REFERENCE, DecodeIndex, load_ops, with_eligible
from grace.model.definition.beam_search import Generated
from grace.model.definition.inputs import map_tensors
from grace.model.definition.model import Model
from grace.model.engine.cuda_graphs import GraphedCall, GraphMemory
from grace.model.engine.device_copy import Blocks, Staging
from grace.model.engine.encoder_decoder.generation import FastGeneration
from grace.model.engine.families import generation_for
from grace.model.engine.feature_stage import FastStage, PlacedLookups, PlainStage, at_once
from grace.model.engine.generation import EngineSettings, PlainGeneration, SearchTask
from grace.model.engine.graph_generation import GraphGeneration
from grace.model.engine.precision import PRECISIONS, Precision
from support.encoder_cases import random_features
from support.fast_cases import (
    ALL_STEPS,
    MODELS,
    PROFILES,
    Batch,
    assert_same_sids,
    index_of,
    make_batch,
    make_model,
)
from support.plain_inputs import features_message

CPU, GPU = torch.device("cpu"), torch.device("cuda")
OPS = load_ops(CPU)
CONFIG = GenerationConfig(4, {"full": PROFILES[1]})


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", MODELS)
def test_fast_generation_owns_its_weights(kind: str, precision: Precision) -> None:
    """It leaves the model as it is, and later changes of the model change no answer."""
    model = make_model(kind, CPU)
    weights = map_tensors(tuple(model.state_dict().values()), torch.clone)
    fast = FastGeneration(model, OPS, EngineSettings(precision, 0))
    features = FastStage(model, PRECISIONS[precision])
    index, batch = index_of(model, 1, MatcherMode.CD, CPU), make_batch(model, 1, 4, 4, CPU)
    staging = Staging(Blocks(CPU))
    _, compute = features.read([], 4, staging)
    before, kept = at_once(compute()), map_tensors(batch.features, torch.clone)
    expected = fast.generate(batch.features, SearchTask(batch.users, index, PROFILES[0]))
    assert (expected.leaves != NO_NODE).any()
    assert not expected.corrupt.any()
    assert expected.scores.dtype == torch.float32
    assert all(map(torch.equal, model.state_dict().values(), weights))
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(torch.nan)
    got = fast.generate(kept, SearchTask(batch.users, index, PROFILES[0]))
    assert torch.equal(got.scores, expected.scores)
    after = at_once(compute())
    if before.non_sequence is not None and after.non_sequence is not None:
        assert torch.equal(before.non_sequence, after.non_sequence)
    for one, other in zip(before.sequences, after.sequences, strict=True):
        assert torch.equal(one.states, other.states)


def test_a_precision_without_a_gpu_is_refused() -> None:
    model = make_model("t5", CPU)
    with pytest.raises(ConfigError, match=r"^precision: bf16 needs a GPU; on device"):
        generation_for(model, OPS, EngineSettings("bf16", 0), CONFIG, PlainStage(model))


def test_a_result_that_was_packed_for_one_copy_is_the_same() -> None:
    leaves = torch.arange(15, dtype=torch.int32).view(3, 5)
    found = Generated(leaves, leaves / 7, torch.tensor([False, True, False]))
    again = Generated.unpacked(found.packed(), 3)
    assert torch.equal(again.leaves, found.leaves)
    assert torch.equal(again.scores, found.scores)
    assert torch.equal(again.corrupt, found.corrupt)


BUCKETS = (1, 4, 5)
NARROW, WIDE = PROFILES


@dataclass(frozen=True)
class Both:
    """One model: as graphs on the GPU, and plain on the CPU."""

    model: Model
    stage: FastStage
    fast: FastGeneration
    graphs: GraphGeneration[FastStage, PlacedLookups]
    plain_model: Model

    @staticmethod
    def of(kind: str) -> "Both":
        model = make_model(kind, GPU)
        fast = FastGeneration(model, load_ops(GPU), EngineSettings("fp32", ALL_STEPS))
        stage = FastStage(model, torch.float32)
        graphs = GraphGeneration(fast, stage, BUCKETS, PROFILES)
        return Both(model, stage, fast, graphs, make_model(kind, CPU))

    def batch(self, seed: int, requests: int, bucket: int) -> Batch:
        rng = np.random.default_rng(seed)
        given = [random_features(self.model.spec, rng) for _ in range(requests)]
        _, features = self.stage.read([*map(features_message, given)], bucket, Staging(Blocks(GPU)))
        return replace(make_batch(self.model, seed, requests, bucket, GPU), features=features())

    def start(self, batch: Batch, index: DecodeIndex, profile: BeamProfile) -> Generated:
        """Return a result that is readable once the stream is done; the batch lives till then."""
        users = with_eligible(batch.users, index, self.fast.ops)
        return self.graphs.generate(batch.features, SearchTask(users, index, profile))

    def generate(self, batch: Batch, index: DecodeIndex, profile: BeamProfile) -> Generated:
        found = self.start(batch, index, profile)
        torch.cuda.current_stream().synchronize()
        return found

    def plainly(self, batch: Batch, index: DecodeIndex, profile: BeamProfile) -> Generated:
        given = at_once(batch.features), batch.users, index
        features, users, index = map_tensors(given, torch.Tensor.cpu)
        task = SearchTask(with_eligible(users, index, REFERENCE), index, profile)
        return PlainGeneration(self.plain_model, REFERENCE).generate(features, task)


@pytest.fixture(scope="module", params=sorted(MODELS))
def both(request: pytest.FixtureRequest) -> Both:
    return Both.of(request.param)


def index_on_gpu(both: Both, seed: int, mode: MatcherMode = MatcherMode.UNION) -> DecodeIndex:
    return index_of(both.model, seed, mode, GPU)


@pytest.mark.gpu
@pytest.mark.parametrize("profile", PROFILES, ids=["narrow", "wide"])
@pytest.mark.parametrize("bucket", BUCKETS)
def test_a_replay_gives_what_fast_and_plain_generation_give(
    both: Both, bucket: int, profile: BeamProfile
) -> None:
    index = index_on_gpu(both, 1)
    for seed in range(3):
        batch = both.batch(seed, max(1, bucket - 1), bucket)
        got = both.generate(batch, index, profile)
        fast = both.fast.generate(batch.features, SearchTask(batch.users, index, profile))
        assert torch.equal(got.leaves, fast.leaves)
        assert torch.equal(got.scores, fast.scores)
        assert (got.leaves != NO_NODE).any()
        assert_same_sids(got, both.plainly(batch, index, profile))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", sorted(MODELS))
def test_features_within_a_graph_give_the_same_bits(kind: str, precision: Precision) -> None:
    model = make_model(kind, GPU)
    fast = FastGeneration(model, load_ops(GPU), EngineSettings(precision, ALL_STEPS))
    stage = FastStage(model, PRECISIONS[precision])
    within = GraphGeneration(fast, stage, BUCKETS, PROFILES)
    blocks, index = Blocks(GPU), index_of(model, 1, MatcherMode.UNION, GPU)
    rng, made = np.random.default_rng(3), []
    for turn in range(12):
        bucket = BUCKETS[turn % 3]
        requests = [random_features(model.spec, rng) for _ in range(max(1, bucket - turn % 2))]
        messages = [*map(features_message, requests)]
        users = make_batch(model, turn, len(requests), bucket, GPU).users
        staging = Staging(blocks)
        features = stage.read(messages, bucket, staging)[1]()
        answer = within.generate(features, SearchTask(users, index, PROFILES[turn % 2]))
        expected = fast.generate(features, SearchTask(users, index, PROFILES[turn % 2]))
        made.append((staging, features, users, answer, expected))
    torch.cuda.synchronize()
    for *_, one, other in made:
        assert torch.equal(one.leaves, other.leaves)
        assert torch.equal(one.scores, other.scores)
        assert not one.corrupt.any()
    (_, features, users, *_), (_, other_size, *_) = made[:2]
    with pytest.raises(ValueError, match="must be those of the model"):
        within.generate(at_once(features), SearchTask(users, index, PROFILES[0]))
    with pytest.raises(ValueError, match=r"features must be of 1 requests, got 4"):
        within.generate(other_size, SearchTask(users, index, PROFILES[0]))
    within.generate(features, SearchTask(users, index, PROFILES[0]))


@pytest.mark.gpu
def test_every_batch_sees_its_own_snapshot_without_waiting_for_another(both: Both) -> None:
    """Tries, matcher modes and users change with every replay; each is compared at the end."""
    made = [
        (both.batch(turn, 4, 5), index_on_gpu(both, turn % 3, mode), (WIDE, NARROW)[turn % 2])
        for turn, mode in enumerate([*MatcherMode] * 3)
    ]
    torch.cuda.synchronize()
    got = [both.start(*each) for each in made]
    torch.cuda.synchronize()
    for answer, each in zip(got, made, strict=True):
        assert_same_sids(answer, both.plainly(*each))


@pytest.mark.gpu
def test_another_thread_records_while_this_one_serves(both: Both) -> None:
    index, batch = index_on_gpu(both, 1), both.batch(3, 4, 4)
    expected = both.plainly(batch, index, WIDE)
    made: list[Both] = []
    kind = "t5" if both.model.spec.encoder.t5 else "interformer"

    def record() -> None:
        made.append(Both.of(kind))

    thread = threading.Thread(target=record)
    thread.start()
    served = 0
    while thread.is_alive() or served < 3:
        pinned = torch.ones(63).pin_memory().to(GPU, non_blocking=True)
        assert_same_sids(both.generate(batch, index, WIDE), expected)
        assert float(pinned.sum()) == 63
        served += 1
    thread.join()
    (other,) = made
    assert_same_sids(other.generate(other.batch(3, 4, 4), index, WIDE), expected)


@pytest.mark.gpu
def test_threads_on_different_streams_get_their_own_answers(both: Both) -> None:
    index = index_on_gpu(both, 1)
    batches = [both.batch(seed, 4, 4) for seed in range(3)]
    expected = [both.plainly(batch, index, WIDE) for batch in batches]
    torch.cuda.synchronize()
    got: list[list[Generated]] = [[], [], []]

    def serve(place: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream(GPU)):  # type: ignore[no-untyped-call]
            for _ in range(9):
                answer = both.generate(batches[place], index, WIDE)
                got[place].append(map_tensors(answer, torch.Tensor.cpu))

    threads = [threading.Thread(target=serve, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for answers, right in zip(got, expected, strict=True):
        assert len(answers) == 9
        for answer in answers:
            assert_same_sids(answer, right)


@pytest.mark.gpu
def test_a_batch_that_fails_does_not_change_the_next_one(both: Both) -> None:
    index, batch = index_on_gpu(both, 1), both.batch(2, 4, 4)
    expected = both.plainly(batch, index, WIDE)
    other = make_model("t5" if both.model.spec.encoder.interformer else "interformer", GPU)
    wrong = Batch(make_batch(other, 1, 4, 4, GPU).features, batch.users)
    with pytest.raises(ValueError, match="must be those of the model"):
        both.generate(wrong, index, WIDE)
    with pytest.raises(ConfigError, match=r"a batch of 2 with beams \[1, 5, 17\] was not captured"):
        both.generate(both.batch(1, 2, 2), index, WIDE)
    with pytest.raises(ConfigError, match=r"beams \[1, 9, 9\] was not captured: buckets \[1, 4, 5"):
        both.generate(batch, index, BeamProfile((1, 9, 9), 7))
    assert_same_sids(both.generate(batch, index, WIDE), expected)


@pytest.mark.gpu
def test_a_recording_that_fails_is_ended_and_the_next_one_works() -> None:
    def fails() -> None:
        torch.ones(7, device=GPU)
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("not while a graph is recorded")

    with pytest.raises(RuntimeError, match="not while a graph"):
        GraphedCall(fails, GraphMemory(GPU))
    call = GraphedCall(lambda: torch.ones(63, device=GPU) + 1, GraphMemory(GPU))
    call.replay()
    assert float(call.result.sum()) == 126


@pytest.mark.gpu
def test_only_graphs_of_one_memory_share_a_stream() -> None:
    """A stream owns cuBLAS's workspace. Memories that are gone give their streams back."""
    memory = GraphMemory(GPU)
    stream = memory.stream
    call = GraphedCall(lambda: torch.ones(7, device=GPU), memory)
    del memory
    assert GraphMemory(GPU).stream is not stream, "a graph keeps the stream it was recorded on"
    del call
    gc.collect()
    memories = [GraphMemory(GPU) for _ in range(2)]
    assert stream in [each.stream for each in memories]
