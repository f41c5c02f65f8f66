"""The pipeline over scripted stages: their order, overlap and end, and the timeline of them."""

import json
import math
import time

import pytest

from grace.server.messages import STAGE_NAMES
from grace.server.observe.timeline import HostWork, Timeline
from grace.server.scheduling.predictions import Predictions
from support.pipeline_cases import (
    GENERATION,
    LONG,
    Recorder,
    Script,
    Start,
    occupy,
    request_batch,
    request_of,
    spans_of,
)
from support.server_process import wait_until


def test_a_lone_request_goes_through_the_stages_in_order(
    start: Start, script: Script, recorder: Recorder
) -> None:
    request, timeline, predictions = request_of("lone"), Timeline(), Predictions()
    pipeline = start(predictions=predictions, timeline=timeline)
    pipeline.scheduler.submit(request)
    recorder.wait_for(request)
    assert script.batches == [(stage, ("lone",)) for stage in STAGE_NAMES]
    assert recorder.reason(request) is None
    ((answered, spans),) = recorder.done
    assert answered.input.batch.bucket == 1
    assert (request.batch_size, request.spans) == (1, spans)
    assert [span.stage for span in spans] == list(STAGE_NAMES)
    edges = [edge for span in spans for edge in (span.begin, span.end)]
    assert edges == sorted(edges)
    assert request.arrived <= edges[0]
    assert predictions.predict("full", 1).total > 0
    assert timeline.batches == 1
    slices = [each for each in json.loads(timeline.trace())["traceEvents"] if each["ph"] == "X"]
    on_host = {each["name"]: each["args"] for each in slices if "host" in each["name"]}
    assert list(on_host) == [f"{stage}, host" for stage in STAGE_NAMES]
    assert all(args["processor_us"] >= 0 for args in on_host.values())


def test_while_generate_works_one_batch_is_prepared_and_the_others_wait_to_fill_the_next(
    start: Start, script: Script, recorder: Recorder
) -> None:
    pipeline = start()
    occupy(pipeline, script)
    requests = [request_of(f"w{i}") for i in range(5)]
    for request in requests:
        pipeline.scheduler.submit(request)
    assert (pipeline.scheduler.waiting, pipeline.scheduler.in_flight) == (5, 7)
    assert script.given("input") == [("running",), ("prepared",)]
    script.open("generate")
    recorder.wait_for(*requests)
    assert script.given("input")[2:] == [("w0", "w1", "w2", "w3"), ("w4",)]
    assert script.given("generate") == script.given("input")


def test_generate_goes_on_with_what_is_prepared_without_waiting_for_the_stages_before(
    start: Start, script: Script, recorder: Recorder
) -> None:
    pipeline = start()
    occupy(pipeline, script)
    script.close("input")
    third = request_of("third")
    pipeline.scheduler.submit(third)
    script.open("generate")
    script.wait_for("post", "prepared")
    assert script.given("generate") == [("running",), ("prepared",)]
    script.wait_for("input", "third")
    script.open("input")
    recorder.wait_for(third)


def test_a_prepared_batch_is_not_generated_once_all_its_callers_have_gone(
    start: Start, script: Script, recorder: Recorder
) -> None:
    late = 0.0
    pipeline = start(clock=lambda: time.perf_counter() + late)
    in_an_hour = time.perf_counter() + 3600.0
    batch = [request_of("cancelled"), request_of("expired", deadline=in_an_hour)]
    script.close("input")
    pipeline.scheduler.submit(request_of("first"))
    script.wait_for("input", "first")
    for request in batch:
        pipeline.scheduler.submit(request)
    script.close("generate")
    script.open("input")
    script.wait_for("generate", "first")
    script.wait_for("features", "cancelled", "expired")
    assert not pipeline.scheduler.cancel(batch[0])
    late = 3600.0
    script.open("generate")
    recorder.wait_for(*batch)
    assert [recorder.reason(each) for each in batch] == ["cancelled", "deadline_exceeded"]
    later = request_of("later")
    pipeline.scheduler.submit(later)
    recorder.wait_for(later)
    assert script.given("generate") == [("first",), ("later",)]


@pytest.mark.parametrize("reason", ["displaced", "deadline_exceeded"])
def test_a_request_that_is_displaced_or_expires_ends_while_no_batch_may_form(
    start: Start, script: Script, recorder: Recorder, reason: str
) -> None:
    pipeline = start(max_waiting=1)
    occupy(pipeline, script)
    time.sleep(0.1)  # until input sleeps: only the right wake-up may end the request
    expires = reason == "deadline_exceeded"
    soon = time.perf_counter() + 1.0
    request = request_of(priority="LOW", deadline=soon if expires else math.inf)
    pipeline.scheduler.submit(request)
    if not expires:
        pipeline.scheduler.submit(request_of())
    wait_until(lambda: request in recorder.reports(), "it ends", LONG / 2)  # generate ends later
    assert recorder.reason(request) == reason


def test_a_batch_that_was_held_long_enough_starts(start: Start, recorder: Recorder) -> None:
    request = request_of()
    start(max_wait_ms=5.0).scheduler.submit(request)
    recorder.wait_for(request)


def test_input_ends_when_the_last_waiting_request_is_cancelled_after_the_end(
    start: Start, script: Script
) -> None:
    pipeline = start()
    occupy(pipeline, script)
    waiting = request_of()
    pipeline.scheduler.submit(waiting)
    pipeline.close()
    time.sleep(0.1)  # until input sleeps again: what `close` wakes would also see the empty queue
    assert pipeline.scheduler.cancel(waiting)
    script.open("generate")
    assert pipeline.join(LONG)


def test_a_request_starts_at_once_if_the_held_one_was_cancelled_and_generate_ended_early(
    start: Start, script: Script, recorder: Recorder
) -> None:
    predictions = Predictions()
    for bucket in GENERATION.batch_buckets:
        predictions.observe("full", bucket, spans_of(0.0, 9 * LONG, 0.0))
    pipeline = start(predictions=predictions)
    script.close("generate")
    ahead, held, later = request_of("ahead"), request_of("held"), request_of("later")
    pipeline.scheduler.submit(ahead)
    script.wait_for("generate", "ahead")
    pipeline.scheduler.submit(held)
    wait_until(lambda: 0.0 < pipeline.scheduler.asleep_until < math.inf, "it is held")
    assert pipeline.scheduler.cancel(held)
    script.open("generate")
    recorder.wait_for(ahead)
    pipeline.scheduler.submit(later)
    recorder.wait_for(later)


def test_the_timeline_has_a_slice_for_each_span_of_the_latest_batches() -> None:
    timeline = Timeline(max_batches=2)
    for batch, begin in (
        (request_batch(request_of()), 900.0),
        (request_batch(*[request_of()] * 3), 1000.0),
        (request_batch(request_of(), bucket=1, profile="reduced"), 1007.0),
    ):
        host = HostWork("generate", begin, begin + 0.5, 0.125)
        timeline.add(batch, spans_of(0.25, 0.5, 0.125, begin=begin), [host])
    trace = json.loads(timeline.trace())
    assert trace["otherData"] == {"batches": 3, "left_out": 1}
    tracks = {
        event["tid"]: event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }
    assert set(tracks.values()) == {*STAGE_NAMES, *(f"{stage}, host" for stage in STAGE_NAMES)}
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [tracks[each["tid"]] for each in slices] == [each["name"] for each in slices]
    first, later = (each for each in slices if each["name"] == "generate")
    assert (first["ts"], first["dur"]) == (pytest.approx(2.25e6), pytest.approx(0.5e6))
    on_host = [each for each in slices if each["name"] == "generate, host"]
    assert [(each["ts"], each["dur"]) for each in on_host] == [(0.0, 0.5e6), (7e6, 0.5e6)]
    assert on_host[0]["args"] == {**first["args"], "processor_us": 0.125e6}
    assert later["ts"] - first["ts"] == pytest.approx(7e6)
    assert first["args"] == {"batch": 1, "requests": 3, "bucket": 4, "profile": "full"}
    assert later["args"] == {"batch": 2, "requests": 1, "bucket": 1, "profile": "reduced"}
