"""The service over the fast engine: the same replies as over the plain definition."""

from itertools import cycle

import pytest
import torch

from grace.kernels import load_ops
from grace.model.checkpoints.checkpoint import load_checkpoint
from grace.model.engine.generation import EngineSettings, FastGeneration
from grace.server.engine.serving_pair import EngineFacts, engine_facts, precision_of
from support.fast_serving import (
    CPU,
    MEMO_BYTES,
    TwoPairs,
    answers_of,
    assert_same_answers,
    captured_pairs,
    fast_cpu_pairs,
    plain_pairs,
    whole,
)
from support.serving_files import ServingFiles
from support.stage_cases import GENERATION, answer, replies_of, request_batch

GPU = torch.device("cuda:0")
gpu = pytest.mark.gpu
EAGER_OR_RECORDED = [CPU, pytest.param(GPU, marks=gpu, id="recorded on a GPU")]


@pytest.fixture(scope="module")
def plain(serving_files: ServingFiles) -> TwoPairs:
    torch.set_num_threads(1)
    return plain_pairs(serving_files)


@pytest.fixture(scope="module", params=EAGER_OR_RECORDED)
def fast(serving_files: ServingFiles, request: pytest.FixtureRequest) -> TwoPairs:
    return fast_pairs(serving_files, request.param)


def fast_pairs(files: ServingFiles, device: torch.device) -> TwoPairs:
    return fast_cpu_pairs(files) if device == CPU else captured_pairs(files, "fp32")


@pytest.mark.parametrize("profile", GENERATION.profiles)
@pytest.mark.parametrize("bucket", GENERATION.batch_buckets, ids=lambda n: f"bucket={n}")
def test_the_fast_engine_gives_the_plain_one_s_replies(
    plain: TwoPairs, fast: TwoPairs, serving_files: ServingFiles, bucket: int, profile: str
) -> None:
    requests = [
        whole(request, f"r{number}", profile)
        for number, request in enumerate(serving_files.requests[: max(1, bucket - 1)])
    ]
    for slow, quick in ((plain.first, fast.first), (plain.second, fast.second)):
        expected = replies_of(answer(request_batch(slow, requests, bucket, profile)))
        got = replies_of(answer(request_batch(quick, requests, bucket, profile)))
        assert sum(len(reply.ad_ids) for reply in expected.values()) > 0
        for name, reply in expected.items():
            assert_same_answers(got[name], reply)


def test_the_size_of_one_more_step_of_the_memo_is_reported(serving_files: ServingFiles) -> None:
    model = load_checkpoint(serving_files.checkpoint)

    def engine(memo_bytes: int) -> EngineFacts:
        generation = FastGeneration(model, load_ops(CPU), EngineSettings("fp32", memo_bytes))
        settings = EngineSettings("fp32", memo_bytes)
        return engine_facts(generation, model.spec, settings, GENERATION, seconds=0.0)

    now = engine(0)
    steps = [now.memo_steps]
    while now.next_memo_bytes:
        enough = now.memo_bytes + now.next_memo_bytes
        assert engine(enough - 1).memo_steps == now.memo_steps
        now = engine(enough)
        assert now.memo_bytes == enough
        steps.append(now.memo_steps)
    assert steps == list(range(1, model.spec.sid_length + 1))


def expected_replies(
    plain: TwoPairs, serving_files: ServingFiles, count: int
) -> dict[tuple[str, int], object]:
    """The plain replies, by request and snapshot version."""
    found: dict[tuple[str, int], object] = {}
    for number, request in enumerate(serving_files.requests[:count]):
        for pair in (plain.first, plain.second):
            asked = whole(request, f"r{number}", list(GENERATION.profiles)[number % 2])
            batch = request_batch(pair, [asked], 1, str(asked["profile"]))
            (reply,) = replies_of(answer(batch)).values()
            found[f"r{number}", reply.snapshot_version] = reply
    return found


def assert_answers_of_alternating_snapshots(
    plain: TwoPairs, quick: TwoPairs, serving_files: ServingFiles
) -> None:
    device = quick.first.device
    count, turns = (41, 3) if device.type == "cuda" else (11, 1)
    expected = expected_replies(plain, serving_files, count)
    asked = [
        whole(request, f"r{number}", list(GENERATION.profiles)[number % 2])
        for number, request in enumerate(serving_files.requests[:count])
    ]
    for _ in range(turns):
        got = answers_of(cycle((quick.first, quick.second)), asked, device)
        versions = {reply.snapshot_version for reply in got.values()}
        assert len(versions) == 2
        for name, reply in got.items():
            assert_same_answers(reply, expected[name, reply.snapshot_version])  # type: ignore[arg-type]


def test_batches_of_two_snapshots_in_turn_get_their_own_answers(
    plain: TwoPairs, fast: TwoPairs, serving_files: ServingFiles
) -> None:
    assert_answers_of_alternating_snapshots(plain, fast, serving_files)


@pytest.mark.parametrize(
    ("setting", "device", "precision"),
    [("auto", CPU, "fp32"), ("fp32", CPU, "fp32"), ("auto", GPU, "bf16"), ("fp32", GPU, "fp32")],
)
def test_a_precision_follows_from_setting_and_device(
    setting: str, device: torch.device, precision: str
) -> None:
    assert precision_of(setting, device) == precision  # type: ignore[arg-type]


@gpu
def test_the_graphs_of_a_gpu_are_reported(serving_files: ServingFiles) -> None:
    captured = fast_pairs(serving_files, GPU)
    engine = captured.first.model.engine
    assert engine.precision == "fp32"
    assert engine.graphs == len(GENERATION.batch_buckets) * len(GENERATION.profiles)
    assert 0 < engine.memo_bytes <= MEMO_BYTES
    assert engine.capture_seconds > 0
    assert captured.second.model is captured.first.model


@gpu
def test_a_lower_precision_returns_most_of_the_same_sids(
    plain: TwoPairs, serving_files: ServingFiles
) -> None:
    pairs = captured_pairs(serving_files, "bf16")
    asked = [whole(request, f"r{i}") for i, request in enumerate(serving_files.requests[:32])]
    got = answers_of(cycle((pairs.first,)), asked, GPU)
    expected = answers_of(cycle((plain.first,)), asked, CPU)
    shared = [
        len({*got[name].ad_ids} & {*reply.ad_ids}) / len({*reply.ad_ids})
        for name, reply in expected.items()
        if reply.ad_ids
    ]
    assert len(shared) > 16
    assert sum(shared) / len(shared) > 0.8
