"""The pipeline over scripted stages: their order, overlap and end, and the timeline of them."""

import json
import time
from pathlib import Path

import pytest

from grace.server.messages import STAGE_NAMES
from grace.server.observe.timeline import Timeline
from grace.server.scheduling.predictions import Predictions
from support.pipeline_cases import Recorder, request_batch, request_of, spans_of
from support.scripted_stages import Script, Start, occupy


def test_a_lone_request_goes_through_the_stages_in_order(
    start: Start, script: Script, recorder: Recorder
) -> None:
    request, timeline, predictions = request_of("lone"), Timeline(), Predictions()
    pipeline = start(predictions=predictions, timeline=timeline)
    pipeline.submit(request)
    recorder.wait_for(request)
    assert script.batches == [(stage, ("lone",)) for stage in STAGE_NAMES]
    assert recorder.reason(request) is None
    ((answered, spans),) = recorder.done
    assert answered.input.batch.bucket == 1
    assert (request.batch_size, request.spans) == (1, spans)
    assert [span.stage for span in spans] == list(STAGE_NAMES)
    edges = [edge for span in spans for edge in (span.begin, span.end)]
    assert edges == sorted(edges)
    assert request.arrived <= answered.input.batch.formed <= edges[0]
    assert predictions.predict("full", 1).total > 0
    assert timeline.batches == 1


def test_while_generate_works_one_batch_is_prepared_and_the_others_wait_to_fill_the_next(
    start: Start, script: Script, recorder: Recorder
) -> None:
    pipeline = start()
    occupy(pipeline, script)
    requests = [request_of(f"w{i}") for i in range(5)]
    for request in requests:
        pipeline.submit(request)
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
    pipeline.submit(third)
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
    pipeline.submit(request_of("first"))
    script.wait_for("input", "first")
    for request in batch:
        pipeline.submit(request)
    script.close("generate")
    script.open("input")
    script.wait_for("generate", "first")
    script.wait_for("features", "cancelled", "expired")
    assert not pipeline.cancel(batch[0])
    late = 3600.0
    script.open("generate")
    recorder.wait_for(*batch)
    assert [recorder.reason(each) for each in batch] == ["cancelled", "deadline_exceeded"]
    later = request_of("later")
    pipeline.submit(later)
    recorder.wait_for(later)
    assert script.given("generate") == [("first",), ("later",)]


def test_the_timeline_has_a_slice_for_each_span_of_the_latest_batches(tmp_path: Path) -> None:
    timeline = Timeline(max_batches=2)
    for batch, begin in (
        (request_batch(request_of()), 900.0),
        (request_batch(*[request_of()] * 3), 1000.0),
        (request_batch(request_of(), bucket=1, profile="reduced"), 1007.0),
    ):
        timeline.add(batch, spans_of(0.25, 0.5, 0.125, begin=begin))
    timeline.write(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    assert trace["otherData"] == {"batches": 3, "left_out": 1}
    tracks = {
        event["tid"]: event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }
    assert list(tracks.values()) == list(STAGE_NAMES)
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert [tracks[each["tid"]] for each in slices] == [each["name"] for each in slices]
    first, later = (each for each in slices if each["name"] == "generate")
    assert (first["ts"], first["dur"]) == (pytest.approx(2.25e6), pytest.approx(0.5e6))
    assert later["ts"] - first["ts"] == pytest.approx(7e6)
    assert first["args"] == {"batch": 1, "requests": 3, "bucket": 4, "profile": "full"}
    assert later["args"] == {"batch": 2, "requests": 1, "bucket": 1, "profile": "reduced"}
