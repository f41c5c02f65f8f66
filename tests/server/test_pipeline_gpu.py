"""The pipeline on a GPU, with a stream for each stage: every number must be right.

Each stage lets its stream sleep before it writes or reads. So a missing wait between streams, or
memory that is freed too early, makes wrong numbers every time.
"""

import time
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from grace.kernels import UserTensors
from grace.model.definition.inputs import FeatureTensors
from grace.server.messages import (
    Answer,
    AnsweredBatch,
    FeatureBatch,
    GeneratedBatch,
    InputBatch,
    PendingRequest,
    RequestBatch,
    Span,
)
from grace.server.scheduling.streams import (
    REFERENCE_SECONDS,
    DeviceClock,
    DeviceStream,
    streams_for,
)
from grace.server.stages.stages import Stages
from support.pipeline_cases import (
    LONG,
    Recorder,
    empty_features,
    empty_generated,
    empty_input,
    make_pipeline,
    no_answers,
    request_of,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

DEVICE = "cuda:0"
WIDTH = 65_537  # numbers of each request: half a megabyte
PRIME = 1_000_003
GARBAGE = -7
CYCLES_PER_MS = 1_500_000
REQUESTS = 41


def sleep(milliseconds: float) -> None:
    """Let the current stream sleep, not the host."""
    torch.cuda._sleep(int(milliseconds * CYCLES_PER_MS))  # type: ignore[no-untyped-call]


def numbers_of(request: PendingRequest) -> Tensor:
    return torch.arange(WIDTH) + int(request.retrieval.request_id)


def mixed(numbers: Tensor, rounds: int) -> Tensor:
    """Integers, so that every device must agree to the last bit.   [B, n] -> [B, n]"""
    for turn in range(rounds):
        numbers = (numbers * (turn + 31) + numbers.roll(1, dims=1)) % PRIME
    return numbers


def digest(numbers: Tensor) -> Tensor:
    """[B, n] -> int32 [B, 1]"""
    return (numbers.sum(dim=1, keepdim=True) % PRIME).to(torch.int32)


def expected(request: PendingRequest) -> int:
    return int(digest(mixed(mixed(numbers_of(request)[None], 2), 3)))


def agreed(early: Tensor, late: Tensor) -> Tensor:
    """Return the values that were the same when read twice, and garbage elsewhere."""
    return torch.where(early == late, late, GARBAGE)


def read(batch: RequestBatch) -> InputBatch:
    numbers = torch.zeros(batch.bucket, WIDTH, dtype=torch.int64, pin_memory=True)
    for row, request in enumerate(batch.requests):
        numbers[row] = numbers_of(request)
    on_device = torch.full(numbers.shape, GARBAGE, device=DEVICE)
    sleep(12)
    on_device.copy_(numbers, non_blocking=True)
    return replace(empty_input(batch), users=UserTensors.asking(on_device))


def features(batch: InputBatch) -> FeatureBatch:
    given = batch.users.bitmask
    early = given.clone()
    # Only after this may the stage get memory: the batch before has reached generate by now.
    time.sleep(0.005)
    made = torch.full(given.shape, GARBAGE, device=DEVICE)
    sleep(3)
    made.copy_(mixed(agreed(early, given), 2))
    return replace(empty_features(batch), features=FeatureTensors(made, ()))


def generate(batch: FeatureBatch) -> GeneratedBatch:
    given = batch.features.non_sequence
    assert given is not None
    early = given.clone()
    sleep(30)
    leaves = digest(mixed(agreed(early, given), 3))
    on_host = torch.full(leaves.shape, GARBAGE, dtype=torch.int32, pin_memory=True)
    on_host.copy_(leaves, non_blocking=True)
    return replace(empty_generated(batch), leaves=on_host)


def post(batch: GeneratedBatch, spans: tuple[Span, ...]) -> AnsweredBatch:
    answers = tuple(
        Answer(request, str(int(leaf)).encode())
        for request, leaf in zip(batch.input.requests, batch.leaves[:, 0].tolist(), strict=False)
    )
    return replace(no_answers(batch, spans), answers=answers)


STAGES = Stages(read, features, generate, post)


def run(stages: Stages = STAGES) -> Recorder:
    """Send all requests through a pipeline, in batches of several sizes."""
    recorder, requests = Recorder(), [request_of(str(number)) for number in range(REQUESTS)]
    streams = streams_for(torch.device(DEVICE))
    pipeline = make_pipeline(stages, recorder, streams=streams)
    pipeline.start()
    for number, request in enumerate(requests):
        pipeline.submit(request)
        time.sleep(0.008 if number % 5 == 0 else 0.0)
    pipeline.close()
    assert pipeline.join(LONG)
    assert recorder.deaths == 0
    assert recorder.reports() == dict.fromkeys(requests, 1)
    return recorder


def right_and_wrong(recorder: Recorder) -> tuple[int, int]:
    answers = [end for end in recorder.ends if isinstance(end, Answer)]
    right = sum(int(answer.reply) == expected(answer.request) for answer in answers)
    return right, len(answers) - right


def test_every_answer_is_what_the_host_computes() -> None:
    run()  # allocates; the second time memory is used again and again
    recorder = run()
    assert right_and_wrong(recorder) == (REQUESTS, 0)
    sizes = {len(answered.input.requests) for answered, _ in recorder.done}
    assert len(sizes) > 1


def test_the_stages_of_different_batches_overlap_and_spans_are_the_devices() -> None:
    run()
    begin = time.perf_counter()
    recorder = run()
    end = time.perf_counter()
    batches = [{span.stage: span for span in spans} for _, spans in recorder.done]
    assert any(
        later["features"].begin < before["generate"].end for before, later in pairwise(batches)
    )
    for spans in batches:
        edges = [edge for span in spans.values() for edge in (span.begin, span.end)]
        # Host and device are compared through a reference event: exact to some microseconds.
        assert all(later > before - 1e-3 for before, later in pairwise(edges))
        assert begin - 1e-3 < edges[0] < edges[-1] < end + 1e-3
        assert spans["generate"].end - spans["generate"].begin > 0.005
    for before, later in pairwise(batches):
        assert later["generate"].begin > before["generate"].end - 1e-3


def test_times_stay_exact_when_the_clock_is_set_again() -> None:
    device, late = torch.device(DEVICE), 0.0
    clock = DeviceClock(device, lambda: time.perf_counter() + late)
    stream = DeviceStream(device)
    for late in (0.0, 2 * REFERENCE_SECONDS):
        begin = time.perf_counter() + late
        mark = stream.mark()
        clock.wait_for(mark)
        at, same = clock.times([mark, begin])
        assert same == begin
        assert begin - 1e-3 < at < time.perf_counter() + late + 1e-3
