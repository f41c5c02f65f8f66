"""The pipeline's streams and clock on a real GPU; `test_pipeline_streams.py` has a device that is
always late, and `test_fast_serving.py` the answers of a GPU."""

import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch

from grace.server.messages import STAGE_NAMES, PendingRequest, StageName
from grace.server.scheduling.streams import (
    REFERENCE_SECONDS,
    DeviceClock,
    DeviceStream,
    streams_for,
)
from support.pipeline_cases import LONG, Recorder, make_pipeline, plain_stages, request_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

DEVICE = torch.device("cuda:0")
CYCLES_PER_MS = 1_500_000
MILLISECONDS = {"input": 12, "features": 3, "generate": 30, "post": 0}
REQUESTS = 41


def let_the_stream_sleep(stage: StageName, _: Sequence[PendingRequest]) -> None:
    torch.cuda._sleep(MILLISECONDS[stage] * CYCLES_PER_MS)  # type: ignore[no-untyped-call]


def test_the_stages_of_different_batches_overlap_and_spans_are_the_devices() -> None:
    recorder, requests = Recorder(), [request_of(str(number)) for number in range(REQUESTS)]
    stages = plain_stages(let_the_stream_sleep)
    pipeline = make_pipeline(stages, recorder, streams=streams_for(DEVICE))
    begin = time.perf_counter()
    pipeline.start()
    for number, request in enumerate(requests):
        pipeline.scheduler.submit(request)
        time.sleep(0.008 if number % 5 == 0 else 0.0)
    pipeline.close()
    assert pipeline.join(LONG)
    end = time.perf_counter()
    assert recorder.deaths == 0
    assert recorder.reports() == dict.fromkeys(requests, 1)
    batches = [{span.stage: span for span in spans} for _, spans in recorder.done]
    assert len({len(answered.input.requests) for answered, _ in recorder.done}) > 1
    assert any(
        later["features"].begin < before["generate"].end for before, later in pairwise(batches)
    )
    for spans in batches:
        edges = [edge for span in spans.values() for edge in (span.begin, span.end)]
        # Host and device are compared through a reference event: exact to some microseconds.
        assert all(later > before - 1e-3 for before, later in pairwise(edges))
        assert begin - 1e-3 < edges[0] < edges[-1] < end + 1e-3
        for stage in STAGE_NAMES[:-1]:
            assert spans[stage].end - spans[stage].begin > MILLISECONDS[stage] / 2e3
    for before, later in pairwise(batches):
        assert later["generate"].begin > before["generate"].end - 1e-3


def test_times_stay_exact_when_the_clock_is_set_again() -> None:
    late = 0.0
    clock = DeviceClock(DEVICE, lambda: time.perf_counter() + late)
    stream = DeviceStream(DEVICE)
    for late in (0.0, 2 * REFERENCE_SECONDS):
        begin = time.perf_counter() + late
        mark = stream.mark()
        clock.wait_for(mark)
        at, same = clock.times([mark, begin])
        assert same == begin
        assert begin - 1e-3 < at < time.perf_counter() + late + 1e-3
