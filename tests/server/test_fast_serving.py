"""The service over the fast engine: the same replies as over the plain definition."""

from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
import torch

from grace.kernels import load_ops
from grace.model.checkpoints.checkpoint import load_encoder_decoder
from grace.model.checkpoints.init import write_random
from grace.model.engine.encoder_decoder.generation import FastGeneration
from grace.model.engine.generation import EngineSettings
from grace.proto.retrieval_pb2 import RetrieveResponse
from grace.server.engine.serving_pair import EngineFacts, ServingPair, engine_facts, precision_of
from support.fast_serving import (
    CPU,
    MEMO_BYTES,
    answers_of,
    assert_same_answers,
    captured_pair,
    fast_cpu_pair,
    two_snapshots,
    whole,
)
from support.serving_files import ServingFiles, model_spec
from support.stage_cases import GENERATION, load_cpu_pair

GPU = torch.device("cuda:0")
gpu = pytest.mark.gpu
REQUESTS = 23


def asked(files: ServingFiles) -> list[dict[str, object]]:
    profiles = [*GENERATION.profiles]
    return [
        whole(request, f"r{number}", profiles[number % 2])
        for number, request in enumerate(files.requests[:REQUESTS])
    ]


Load = Callable[[Path, Path], ServingPair]
Two = Callable[[ServingFiles, Path, Load], tuple[ServingPair, ServingPair]]


def snapshots(files: ServingFiles, _: Path, load: Load) -> tuple[ServingPair, ServingPair]:
    return two_snapshots(load(files.snapshots, files.checkpoint), files)


def checkpoints(files: ServingFiles, other: Path, load: Load) -> tuple[ServingPair, ServingPair]:
    """A load of a checkpoint keeps the snapshot."""
    first = load(files.snapshots, files.checkpoint)
    return first, replace(first, model=load(files.snapshots, other).model)


@pytest.mark.parametrize("device", [CPU, pytest.param(GPU, marks=gpu, id="recorded on a GPU")])
@pytest.mark.parametrize("two", [snapshots, checkpoints])
def test_batches_of_two_pairs_in_turn_get_their_own_answers(
    serving_files: ServingFiles, tmp_path: Path, two: Two, device: torch.device
) -> None:
    def served(reply: RetrieveResponse) -> tuple[int, str]:
        return reply.snapshot_version, reply.checkpoint

    write_random(model_spec(), tmp_path, seed=2, dtype=torch.float32)
    on_gpu = device.type == "cuda"
    fast = two(serving_files, tmp_path, captured_pair if on_gpu else fast_cpu_pair)
    requests = asked(serving_files)
    expected = {
        (name, *served(reply)): reply
        for pair in two(serving_files, tmp_path, load_cpu_pair)
        for name, reply in answers_of(cycle([pair]), requests, CPU).items()
    }
    for _ in range(3):
        got = answers_of(cycle(fast), requests, device)
        assert len({served(reply) for reply in got.values()}) == 2
        for name, reply in got.items():
            assert_same_answers(reply, expected[name, *served(reply)])
    if on_gpu:
        engine = fast[0].model.engine
        assert engine.graphs == len(GENERATION.batch_buckets) * len(GENERATION.profiles)
        assert 0 < engine.memo_bytes <= MEMO_BYTES


def test_the_size_of_one_more_step_of_the_memo_is_reported(serving_files: ServingFiles) -> None:
    model = load_encoder_decoder(serving_files.checkpoint)

    def engine(memo_bytes: int) -> EngineFacts:
        generation = FastGeneration(model, load_ops(CPU), EngineSettings("fp32", memo_bytes))
        return engine_facts(generation, "fp32", seconds=0.0)

    now = engine(0)
    steps = [now.memo_steps]
    while now.next_memo_bytes:
        enough = now.memo_bytes + now.next_memo_bytes
        assert engine(enough - 1).memo_steps == now.memo_steps
        now = engine(enough)
        assert now.memo_bytes == enough
        steps.append(now.memo_steps)
    assert steps == list(range(1, model.spec.sid_length + 1))


@pytest.mark.parametrize(
    ("setting", "device", "precision"),
    [("auto", CPU, "fp32"), ("fp32", CPU, "fp32"), ("auto", GPU, "bf16"), ("fp32", GPU, "fp32")],
)
def test_a_precision_follows_from_setting_and_device(
    setting: str, device: torch.device, precision: str
) -> None:
    assert precision_of(setting, device) == precision  # type: ignore[arg-type]


@gpu
def test_a_lower_precision_returns_most_of_the_same_sids(
    pair: ServingPair, serving_files: ServingFiles
) -> None:
    low = captured_pair(serving_files.snapshots, serving_files.checkpoint, "bf16")
    got = answers_of(cycle((low,)), asked(serving_files), GPU)
    expected = answers_of(cycle((pair,)), asked(serving_files), CPU)
    shared = [
        len({*got[name].ad_ids} & {*reply.ad_ids}) / len({*reply.ad_ids})
        for name, reply in expected.items()
        if reply.ad_ids
    ]
    assert len(shared) > REQUESTS // 2
    assert sum(shared) / len(shared) > 0.8
