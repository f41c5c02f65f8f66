"""What can fail in a stage: one request, one batch, or the stage itself; and that whatever fails,
every request that was taken ends once: reported, or taken back by cancel.
"""

import math
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grace.configs.serving import BatchingConfig, LimitsConfig
from grace.proto.retrieval_pb2 import RetrieveRequest
from grace.server.errors import ServiceError
from grace.server.messages import (
    STAGE_NAMES,
    AnsweredBatch,
    GeneratedBatch,
    PendingRequest,
    Priority,
    Span,
    StageName,
)
from grace.server.scheduling.pipeline import Pipeline
from grace.server.scheduling.stage_faults import FAILURES_OF_A_BROKEN_STAGE, FailedBatches
from grace.server.stages.requests import read_request
from support.pipeline_cases import (
    GENERATION,
    LONG,
    Recorder,
    Script,
    Start,
    make_pipeline,
    no_answers,
    plain_stages,
    request_of,
)


def test_a_batch_that_succeeds_in_between_forgives_the_failures_before_it(
    start: Start, script: Script, recorder: Recorder
) -> None:
    pipeline = start()
    for turn in range(3 * FAILURES_OF_A_BROKEN_STAGE):
        if turn % FAILURES_OF_A_BROKEN_STAGE:
            script.raises["generate"] = ValueError()
        else:
            script.raises.clear()
        request = request_of(str(turn))
        pipeline.scheduler.submit(request)
        recorder.wait_for(request)
    assert recorder.deaths == 0


def test_a_request_that_fails_alone_counts_once_however_often_it_is_sent() -> None:
    message = RetrieveRequest()
    for name in ("country", "device", "x" * 99):
        message.user[name].values.extend(["a", "value", "value"])
    message.features.bags["pages"].ids.extend(range(999))
    message.features.sequences["clicks"].sids.extend([1, 2] * 64)
    message.exclude_ads.extend(range(63))
    failed, error = FailedBatches(), ValueError()
    for i in range(9):
        message.request_id = str(i)
        retrieval = read_request(message.SerializeToString(), LimitsConfig(), GENERATION)
        assert not failed.broken_by(error, [replace(request_of(), retrieval=retrieval)])
    assert not failed.broken_by(error, [request_of("another")])
    assert failed.broken_by(error, [request_of("third")])


def forgetful_post(batch: GeneratedBatch, spans: tuple[Span, ...]) -> AnsweredBatch:
    answered = no_answers(batch, spans)
    return replace(answered, answers=answered.answers[1:])


def test_a_request_that_a_stage_forgets_fails_with_its_batch(
    start: Start, script: Script, recorder: Recorder
) -> None:
    pipeline = start(stages=replace(plain_stages(script), post=forgetful_post))
    request = request_of()
    pipeline.scheduler.submit(request)
    recorder.wait_for(request)
    assert recorder.reason(request) == "internal"


DEADLY: dict[str, tuple[BaseException, int]] = {
    "exits": (SystemExit("SECRET"), 1),
    "loses-its-device": (torch.AcceleratorError("SECRET"), 1),
    "keeps-failing": (ValueError("SECRET"), FAILURES_OF_A_BROKEN_STAGE),
}


@pytest.mark.parametrize("stage", STAGE_NAMES)
@pytest.mark.parametrize(("error", "batches"), DEADLY.values(), ids=DEADLY)
def test_a_dead_stage_fails_all_requests_in_flight_and_is_reported_once(
    start: Start,
    script: Script,
    recorder: Recorder,
    stage: StageName,
    error: BaseException,
    batches: int,
) -> None:
    pipeline = start()
    script.close(stage)
    requests = [request_of(f"r{i}") for i in range(63)]
    for request in requests:
        pipeline.scheduler.submit(request)
    script.raises[stage] = error
    script.open(stage)
    recorder.wait_for(*requests)
    assert pipeline.join(LONG)
    assert recorder.deaths == 1
    assert len(script.given(stage)) == batches
    reasons = {recorder.reason(request) for request in requests}
    assert "stage_died" in reasons
    assert reasons <= {"stage_died", "internal"}
    assert [recorder.reason(request) for request in requests].count("internal") <= 4 * (batches - 1)
    assert not any(pipeline.scheduler.cancel(request) for request in requests)
    with pytest.raises(ServiceError, match="draining"):
        pipeline.scheduler.submit(request_of())


@pytest.mark.parametrize("stage", STAGE_NAMES)
def test_a_stage_dies_when_it_works_on_one_batch_for_too_long(
    start: Start,
    script: Script,
    recorder: Recorder,
    stage: StageName,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pipeline = start()
    limit = round(BatchingConfig().hang_seconds)
    slow, hanging, waiting = map(request_of, ("slow", "hanging", "waiting"))
    for request in slow, hanging:
        script.close(stage)
        pipeline.scheduler.submit(request)
        script.wait_for(stage, request.retrieval.request_id)
        for _ in range(limit):
            pipeline.beat()
        if request is slow:
            script.open(stage)
            recorder.wait_for(request)
    assert recorder.deaths == 0
    pipeline.scheduler.submit(waiting)
    pipeline.beat()
    assert recorder.deaths == 1
    assert recorder.reason(hanging) == recorder.reason(waiting) == "stage_died"
    assert recorder.reason(slow) is None
    (died,) = (vars(each) for each in caplog.records if each.message == "stage_died")
    assert (died["stage"], died["requests"]) == (stage, ["hanging"])
    for _ in range(2 * limit):
        pipeline.beat()
    assert recorder.deaths == 1


CALLERS = 3
REQUESTS = 40  # of each caller


@dataclass(frozen=True)
class Fate:
    """The shares of a stage's batches that fail, kill the stage, and are slow."""

    failing: float
    dying: float
    slow: float


FATES = st.builds(
    Fate,
    failing=st.sampled_from([0.0, 0.0, 0.1, 0.4]),
    dying=st.sampled_from([0.0, 0.0, 0.0, 0.03]),
    slow=st.sampled_from([0.0, 0.5]),
)


@dataclass
class Caller:
    """Submits requests, and cancels some of them, at random."""

    pipeline: Pipeline
    chance: random.Random
    taken: list[PendingRequest] = field(default_factory=list)
    cancelled: list[PendingRequest] = field(default_factory=list)
    refused: int = 0

    def run(self) -> None:
        for _ in range(REQUESTS):
            request = self._request()
            try:
                self.pipeline.scheduler.submit(request)
            except ServiceError:
                self.refused += 1
            else:
                self.taken.append(request)
            if self.taken and self.chance.random() < 0.3:
                withdrawn = self.chance.choice(self.taken)
                if self.pipeline.scheduler.cancel(withdrawn):
                    self.cancelled.append(withdrawn)
            if self.chance.random() < 0.5:
                time.sleep(self.chance.random() * 0.0005)

    def _request(self) -> PendingRequest:
        priority: Priority = "LOW" if self.chance.random() < 0.4 else "NORMAL"
        soon = time.perf_counter() + self.chance.random() * 0.01
        deadline = soon if self.chance.random() < 0.4 else math.inf
        return request_of("r", self.chance.choice(["full", "reduced"]), priority, deadline)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    fates=st.tuples(FATES, FATES, FATES, FATES),
    max_waiting=st.sampled_from([1, 5, 100]),
    max_wait_ms=st.sampled_from([0.0, 1.0]),
    closes_early=st.booleans(),
)
def test_every_request_ends_exactly_once(
    seed: int,
    fates: tuple[Fate, Fate, Fate, Fate],
    max_waiting: int,
    max_wait_ms: float,
    closes_early: bool,
) -> None:
    chances = {
        stage: (fate, random.Random(seed + place))
        for place, (stage, fate) in enumerate(zip(STAGE_NAMES, fates, strict=True))
    }

    def disturb(stage: StageName, _: Sequence[PendingRequest]) -> None:
        fate, chance = chances[stage]
        if chance.random() < fate.slow:
            time.sleep(chance.random() * 0.001)
        if chance.random() < fate.failing:
            raise ValueError
        if chance.random() < fate.dying:
            raise SystemExit

    recorder = Recorder()
    pipeline = make_pipeline(plain_stages(disturb), recorder, max_waiting, max_wait_ms)
    callers = [Caller(pipeline, random.Random(seed + 10 + i)) for i in range(CALLERS)]
    threads = [threading.Thread(target=caller.run) for caller in callers]
    pipeline.start()
    for thread in threads:
        thread.start()
    if closes_early:
        pipeline.close()
    for thread in threads:
        thread.join(LONG)
    pipeline.close()
    assert pipeline.join(LONG)

    taken = {request for caller in callers for request in caller.taken}
    cancelled = [request for caller in callers for request in caller.cancelled]
    reports = recorder.reports()
    assert set(reports.values()) <= {1}
    assert len(cancelled) == len(set(cancelled))
    assert not set(cancelled) & reports.keys()
    assert set(cancelled) | reports.keys() == taken
    assert len(taken) + sum(caller.refused for caller in callers) == CALLERS * REQUESTS
    assert (pipeline.scheduler.in_flight, pipeline.scheduler.waiting) == (0, 0)
    assert recorder.deaths <= 1
