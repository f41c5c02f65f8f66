"""Offered far more than it can do, with deadlines: whichever stage is slow, time is not wasted."""

import time
from dataclasses import dataclass, field

import pytest

from grace.server.errors import ServiceError
from grace.server.messages import (
    Answer,
    Failure,
    InputBatch,
    PendingRequest,
    RequestBatch,
    StageName,
)
from support.pipeline_cases import (
    GENERATION,
    LONG,
    Recorder,
    make_pipeline,
    plain_stages,
    request_of,
)
from support.told_stages import STAGE_NAMES

SLOW, QUICK = 0.02, 0.005
SECONDS = 0.8
DEADLINE = 6 * SLOW


@dataclass
class TimedRecorder(Recorder):
    in_time: set[PendingRequest] = field(default_factory=set)

    def ended(self, answers: list[Answer], failures: list[Failure]) -> None:  # type: ignore[override]
        now = time.perf_counter()
        self.in_time |= {each.request for each in answers if now <= each.request.deadline}
        super().ended(answers, failures)


@pytest.mark.parametrize("slow", STAGE_NAMES)
def test_under_overload_most_of_what_is_taken_in_is_answered_in_time(slow: StageName) -> None:
    def befall(stage: StageName, _: InputBatch | RequestBatch) -> None:
        time.sleep(SLOW if stage == slow else QUICK)

    recorder = TimedRecorder()
    pipeline = make_pipeline(plain_stages(befall), recorder)
    pipeline.start()
    capacity = GENERATION.max_batch * SECONDS / SLOW
    begin, offered, taken = time.perf_counter(), 0, 0
    while (passed := time.perf_counter() - begin) < SECONDS:
        while offered < 2 * capacity * passed / SECONDS:
            offered += 1
            try:
                pipeline.submit(request_of(deadline=time.perf_counter() + DEADLINE))
            except ServiceError:
                continue
            taken += 1
        time.sleep(0.001)
    pipeline.close()
    assert pipeline.join(LONG)
    # Generous, for a busy machine: it is nearly all. Of work that is late before it is done, and
    # goes on, not a tenth would be.
    assert len(recorder.in_time) > 0.4 * taken
    assert len(recorder.in_time) > 0.3 * capacity
