"""The pipeline over stages that do as they are told: order, refusals, its end."""

import time

import pytest

from grace.server.errors import DeadlineUnmeetable, Draining, Overloaded
from grace.server.messages import StageName
from grace.server.observe.timeline import Timeline
from grace.server.scheduling.service_times import ServiceTimes
from support.pipeline_cases import (
    LONG,
    Recorder,
    request_of,
    spans_of,
    wait_until,
)
from support.told_stages import STAGE_NAMES, Start, Told, occupy


def test_a_lone_request_goes_through_the_stages_in_order(
    start: Start, told: Told, recorder: Recorder
) -> None:
    request = request_of("lone")
    times, timeline = ServiceTimes(), Timeline()
    start(times=times, timeline=timeline).submit(request)
    recorder.wait_for(request)
    assert told.batches == [(stage, ("lone",)) for stage in STAGE_NAMES]
    assert recorder.reason(request) is None
    ((answered, spans),) = recorder.done
    assert answered.input.batch.bucket == 1
    assert [span.stage for span in spans] == list(STAGE_NAMES)
    edges = [edge for span in spans for edge in (span.begin, span.end)]
    assert edges == sorted(edges)
    assert request.arrived <= answered.input.batch.formed <= edges[0]
    assert times.predict("full", 1).total > 0
    assert timeline._batches == 1


def test_while_generate_works_one_batch_is_prepared_and_the_others_wait_to_fill_the_next(
    start: Start, told: Told, recorder: Recorder
) -> None:
    pipeline = start()
    occupy(pipeline, told)
    requests = [request_of(f"w{i}") for i in range(5)]
    for request in requests:
        pipeline.submit(request)
    assert (pipeline.waiting, pipeline.in_flight) == (5, 7)
    assert told.given("input") == [("running",), ("prepared",)]
    told.open("generate")
    recorder.wait_for(*requests)
    assert told.given("input")[2:] == [("w0", "w1", "w2", "w3"), ("w4",)]
    assert told.given("generate") == told.given("input")


@pytest.mark.parametrize("stage", ["input", "features"])
def test_while_a_batch_is_being_prepared_no_other_forms(
    start: Start, told: Told, recorder: Recorder, stage: StageName
) -> None:
    pipeline = start()
    told.close(stage)
    pipeline.submit(request_of("first"))
    told.wait_for(stage, "first")
    requests = [request_of(f"w{i}") for i in range(3)]
    for request in requests:
        pipeline.submit(request)
    assert pipeline.waiting == 3
    told.open(stage)
    recorder.wait_for(*requests)
    assert told.given("input") == [("first",), ("w0", "w1", "w2")]


def test_a_full_line_refuses_at_once_and_says_when_to_try_again(
    start: Start, told: Told, recorder: Recorder
) -> None:
    pipeline = start(max_waiting=3)
    occupy(pipeline, told)
    waiting = [request_of(f"w{i}") for i in range(3)]
    for request in waiting:
        pipeline.submit(request)
    for _ in range(5):
        with pytest.raises(Overloaded) as refused:
            pipeline.submit(request_of("late"))
        assert refused.value.reason == "queue_full"
        assert 0.001 <= refused.value.retry_after_seconds <= 10.0
    assert pipeline.in_flight == 5
    told.open("generate")
    recorder.wait_for(*waiting)


def test_a_refused_caller_is_asked_to_wait_until_the_line_has_been_worked_off(
    start: Start, told: Told, recorder: Recorder
) -> None:
    times = ServiceTimes()
    for bucket in (1, 2, 4):
        times.observe("full", bucket, spans_of(0.0, 0.5, 0.0))
    pipeline = start(max_waiting=6, times=times)
    occupy(pipeline, told)
    waiting = [request_of(f"w{i}") for i in range(6)]
    for request in waiting:
        pipeline.submit(request)
    with pytest.raises(Overloaded) as refused:
        pipeline.submit(request_of("late"))
    # Two batches of the line and the prepared one; the running one may be nearly done.
    assert 1.5 <= refused.value.retry_after_seconds <= 2.0
    told.open("generate")
    recorder.wait_for(*waiting)


def test_a_displaced_request_fails_while_the_engine_stands_still(
    start: Start, told: Told, recorder: Recorder
) -> None:
    pipeline = start(max_waiting=1)
    occupy(pipeline, told)
    low, normal = request_of("low", priority="LOW"), request_of("normal")
    pipeline.submit(low)
    pipeline.submit(normal)
    recorder.wait_for(low)
    assert recorder.reason(low) == "displaced"
    assert not pipeline.cancel(low)
    told.open("generate")
    recorder.wait_for(normal)
    assert ("low",) not in told.given("input")


def test_a_request_that_cannot_make_its_deadline_is_refused_and_never_runs(
    start: Start, told: Told
) -> None:
    times = ServiceTimes()
    for bucket in (1, 2, 4):
        times.observe("full", bucket, spans_of(1.0, 60.0, 1.0))
    pipeline = start(times=times)
    with pytest.raises(DeadlineUnmeetable) as refused:
        pipeline.submit(request_of("alone", deadline=time.perf_counter() + 40.0))
    assert refused.value.reason == "deadline_unmeetable"
    occupy(pipeline, told)
    pipeline.submit(request_of("in-time", deadline=time.perf_counter() + 200.0))
    for name, seconds in (("late", 150.0), ("passed", -1.0)):
        with pytest.raises(DeadlineUnmeetable):
            pipeline.submit(request_of(name, deadline=time.perf_counter() + seconds))
    for i in range(3):
        pipeline.submit(request_of(f"w{i}"))
    # A full batch is ahead of it now, one more than before.
    with pytest.raises(DeadlineUnmeetable):
        pipeline.submit(request_of("late", deadline=time.perf_counter() + 200.0))
    pipeline.submit(request_of("patient", deadline=time.perf_counter() + 260.0))
    told.open("generate")
    pipeline.close()
    assert pipeline.join(LONG)
    ran = {name for names in told.given("input") for name in names}
    assert {"in-time", "patient"} <= ran
    assert not ran & {"alone", "late", "passed"}


def test_a_request_that_expires_while_it_waits_ends_there(
    start: Start, told: Told, recorder: Recorder
) -> None:
    pipeline = start()
    occupy(pipeline, told)
    expiring = request_of("expiring", deadline=time.perf_counter() + 0.05)
    pipeline.submit(expiring)
    recorder.wait_for(expiring)  # although generate stands still
    assert recorder.reason(expiring) == "deadline_exceeded"
    assert time.perf_counter() >= expiring.deadline
    assert pipeline.waiting == 0
    assert ("expiring",) not in told.given("input")


def test_what_is_cancelled_while_it_waits_never_runs_and_frees_its_place(
    start: Start, told: Told, recorder: Recorder
) -> None:
    pipeline = start(max_waiting=2)
    occupy(pipeline, told)
    cancelled, kept, later = (request_of(name) for name in ("cancelled", "kept", "later"))
    pipeline.submit(cancelled)
    pipeline.submit(kept)
    assert pipeline.cancel(cancelled)
    assert not pipeline.cancel(cancelled)
    pipeline.submit(later)
    told.open("generate")
    recorder.wait_for(kept, later)
    assert told.given("input")[2:] == [("kept", "later")]
    assert cancelled not in recorder.times_told()
    assert not pipeline.cancel(kept)


def test_what_is_cancelled_under_way_stays_in_its_batch_and_its_end_is_told(
    start: Start, told: Told, recorder: Recorder
) -> None:
    pipeline = start()
    occupy(pipeline, told)
    batch = [request_of(name) for name in ("gone", "kept")]
    for request in batch:
        pipeline.submit(request)
    told.close("features")
    told.open("generate")
    told.wait_for("features", "gone", "kept")
    assert not pipeline.cancel(batch[0])
    told.open("features")
    recorder.wait_for(*batch)
    assert [recorder.reason(request) for request in batch] == [None, None]
    assert told.given("generate")[-1] == ("gone", "kept")


def test_a_prepared_batch_that_nobody_waits_for_is_not_generated(
    start: Start, told: Told, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = start()
    told.close("generate")
    running = request_of("running")
    pipeline.submit(running)
    told.wait_for("generate", "running")
    in_an_hour = time.perf_counter() + 3600.0
    batch = [request_of("cancelled"), request_of("expired", deadline=in_an_hour)]
    told.close("input")
    pipeline.submit(request_of("first"))
    told.wait_for("input", "first")
    for request in batch:
        pipeline.submit(request)
    told.open("input")
    told.wait_for("features", "first")
    told.close("features")
    told.open("generate")
    told.wait_for("features", "cancelled", "expired")
    assert not pipeline.cancel(batch[0])
    monkeypatch.setattr("grace.server.scheduling.pipeline.perf_counter", lambda: in_an_hour)
    told.open("features")
    recorder.wait_for(running, *batch)
    assert [recorder.reason(each) for each in batch] == ["cancelled", "deadline_exceeded"]
    later = request_of("later")
    pipeline.submit(later)
    recorder.wait_for(later)
    assert told.given("generate") == [("running",), ("first",), ("later",)]


def test_closing_finishes_what_was_taken_in_and_takes_nothing_new(
    start: Start, told: Told, recorder: Recorder
) -> None:
    pipeline = start(max_wait_ms=60_000.0)
    told.close("generate")
    requests = [request_of(f"r{i}") for i in range(11)]
    for request in requests:
        pipeline.submit(request)
    pipeline.close()
    with pytest.raises(Draining):
        pipeline.submit(request_of("late"))
    assert not pipeline.join(0.01)
    told.open("generate")
    assert pipeline.join(LONG)
    assert [recorder.reason(request) for request in requests] == [None] * 11


def test_generate_goes_on_with_what_is_prepared_without_waiting_for_the_stages_before(
    start: Start, told: Told, recorder: Recorder
) -> None:
    pipeline = start()
    occupy(pipeline, told)
    told.close("input")
    third = request_of("third")
    pipeline.submit(third)
    told.open("generate")
    told.wait_for("post", "prepared")
    assert told.given("generate") == [("running",), ("prepared",)]
    told.wait_for("input", "third")
    told.open("input")
    recorder.wait_for(third)


def test_nothing_forms_behind_a_batch_that_post_has_not_taken(
    start: Start, told: Told, recorder: Recorder
) -> None:
    pipeline = start()
    told.close("post")
    names = ("posted", "generated", "last")
    for name in names[:2]:
        pipeline.submit(request_of(name))
        told.wait_for("generate", name)
    told.wait_for("post", "posted")
    wait_until(lambda: not pipeline._work.may_form())  # generate has ended the second
    last = request_of("last")
    pipeline.submit(last)
    assert pipeline.waiting == 1
    told.open("post")
    recorder.wait_for(last)
    assert told.given("input") == [(name,) for name in names]
