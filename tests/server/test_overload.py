"""Offered twice what it can do, with deadlines: whichever stage is slow, its time is not wasted.

The scheduler is real; clock and stages are simulated.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

import pytest

from grace.configs.serving import BatchingConfig
from grace.server.errors import ServiceError
from grace.server.messages import STAGE_NAMES, Answer, PendingRequest, Span, StageName
from grace.server.scheduling.predictions import Predictions
from grace.server.scheduling.scheduler import Scheduler
from grace.server.scheduling.under_way import BatchUnderWay, Place
from support.pipeline_cases import GENERATION, Clock, request_of

SLOW, QUICK = 0.02, 0.005
SECONDS = 20.0
DEADLINE = 6 * SLOW
OFFERED = 2 * GENERATION.max_batch / SLOW  # requests a second


class Simulation:
    """Stages that have one batch at a time each, and take the time that they are said to take."""

    def __init__(self, slow: StageName) -> None:
        self.clock = Clock()
        self.scheduler = Scheduler(
            BatchingConfig(), GENERATION.batch_buckets, Predictions(self.clock), self.clock
        )
        self.seconds = {stage: SLOW if stage == slow else QUICK for stage in STAGE_NAMES}
        self.in_time: list[PendingRequest] = []
        self.taken = 0
        self._numbers = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._free = dict.fromkeys(STAGE_NAMES, 0.0)
        self._spans: dict[BatchUnderWay, list[Span]] = {}

    def run(self) -> None:
        self._after(0.0, self._arrive)
        while self._events:
            self.clock.now, _, act = heappop(self._events)
            act()
            self._form()

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        heappush(self._events, (self.clock.now + seconds, next(self._numbers), act))

    def _arrive(self) -> None:
        if self.clock.now < Clock.now + SECONDS:
            self._after(1 / OFFERED, self._arrive)
        try:
            self.scheduler.submit(request_of("r", deadline=self.clock.now + DEADLINE))
        except ServiceError:
            return
        self.taken += 1

    def _form(self) -> None:
        departure = self.scheduler.poll()
        if departure is not None:
            self.scheduler.end(departure.failures)
            if departure.batch is not None:
                self._spans[departure.batch] = []
                self._reach(departure.batch, "input")

    def _reach(self, batch: BatchUnderWay, stage: StageName) -> None:
        """Work on the batch as soon as the stage has ended those before it."""
        begin = max(self._free[stage], self.clock.now)
        self._free[stage] = begin + self.seconds[stage]
        self._after(begin - self.clock.now, lambda: self._begin(batch, stage))

    def _begin(self, batch: BatchUnderWay, stage: StageName) -> None:
        if stage == "generate":
            self.scheduler.advance(batch, Place.QUEUED)
        elif stage == "post":
            self.scheduler.advance(batch, Place.POST)
        end = self.clock.now + self.seconds[stage]
        self._spans[batch].append(Span(stage, self.clock.now, end))
        self._after(self.seconds[stage], lambda: self._end(batch, stage))

    def _end(self, batch: BatchUnderWay, stage: StageName) -> None:
        if stage == "generate":
            self.scheduler.advance(batch, Place.GENERATED)
        if stage != "post":
            self._reach(batch, STAGE_NAMES[STAGE_NAMES.index(stage) + 1])
            return
        self.in_time += [each for each in batch.requests if self.clock.now <= each.deadline]
        answers = [Answer(each, b"") for each in batch.requests]
        self.scheduler.end(answers, batch, self._spans.pop(batch))


@pytest.mark.parametrize("slow", STAGE_NAMES)
def test_at_twice_the_capacity_nearly_all_that_the_stages_can_do_is_in_time(
    slow: StageName,
) -> None:
    simulation = Simulation(slow)
    simulation.run()
    assert simulation.scheduler.in_flight == 0
    # One batch at a time is prepared, by input and features.
    seconds = SLOW + QUICK if slow in ("input", "features") else SLOW
    capacity = GENERATION.max_batch / seconds
    assert len(simulation.in_time) > 0.97 * capacity * SECONDS
    assert len(simulation.in_time) > 0.85 * simulation.taken
