"""Batches form late enough to be full, and under an overload the engine wastes no time."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random

import pytest

from grace.configs.serving import BatchingConfig
from grace.server.errors import ServiceError
from grace.server.messages import (
    PRIORITY_NAMES,
    STAGE_NAMES,
    Answer,
    PendingRequest,
    Priority,
    Span,
    StageName,
)
from grace.server.scheduling.controller import Controller
from grace.server.scheduling.predictions import BatchUnderWay, Place, Predictions
from grace.server.scheduling.scheduler import Scheduler
from support.pipeline_cases import Clock, request_of

BUCKETS = (1, 2, 4, 8, 16)
RETRIEVALS = {name: request_of("r", priority=name).retrieval for name in PRIORITY_NAMES}


@dataclass(frozen=True)
class Offer:
    """Requests at random times, `rate` a second from `begin` to `end`."""

    rate: float
    begin: float
    end: float
    deadline: float = math.inf
    priority: Priority = "NORMAL"
    connection: str = ""


@dataclass
class Fate:
    """How a request ended, by its caller's clock. Times are in seconds since the start."""

    offer: Offer
    sent: float
    ended: float = math.nan
    reason: str = ""  # the reason of the failure, if it failed
    executed: bool = False  # whether it passed through all stages
    degraded: bool = False
    trailers: dict[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return self.ended - self.sent

    @property
    def in_time(self) -> bool:
        return self.executed and self.seconds <= self.offer.deadline


@dataclass
class Engine:
    """Stages, each of which works on one batch at a time."""

    stage: StageName = "generate"
    slow: float = 0.04  # seconds that a batch takes in this stage
    quick: float = 0.001  # in each other one
    noise: float = 0.0  # by what share the slow stage's time varies, either way
    # the time from an outcome to its caller, which no prediction includes
    reply_seconds: float = 0.0
    speedup: float = 4.0  # of a smaller profile
    # seconds of the slow stage instead of `slow`, by bucket
    by_bucket: Mapping[int, float] = field(default_factory=dict)
    random: Random = field(default_factory=lambda: Random(7))

    def seconds(self, stage: StageName, batch: BatchUnderWay) -> float:
        if stage != self.stage:
            return self.quick
        slow = self.by_bucket.get(batch.bucket, self.slow)
        slow *= 1 + self.random.uniform(-self.noise, self.noise)
        return slow / self.speedup if batch.profile == "reduced" else slow

    @property
    def capacity(self) -> float:
        """Requests a second. One batch at a time is prepared, by input and features."""
        prepared = self.stage in ("input", "features")
        return BUCKETS[-1] / (self.slow + self.quick if prepared else self.slow)


class Simulation:
    def __init__(
        self, engine: Engine, ladders: dict[str, tuple[str, ...]] | None = None, **batching: float
    ) -> None:
        self.engine = engine
        self.clock = Clock()
        config = BatchingConfig(**batching)  # type: ignore[arg-type]
        predictions = Predictions(self.clock)
        controller = Controller(config, BUCKETS, predictions, ladders or {})
        self.scheduler = Scheduler(controller, self.clock)
        self.fates: list[Fate] = []
        self._fate_of: dict[PendingRequest, Fate] = {}
        self._numbers = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._free = dict.fromkeys(STAGE_NAMES, 0.0)
        self._spans: dict[BatchUnderWay, list[Span]] = {}

    def run(self, offers: Sequence[Offer]) -> list[Fate]:
        """Return the fates in the order of arrival."""
        for offer in offers:
            at = offer.begin
            while (at := at + self.engine.random.expovariate(offer.rate)) < offer.end:
                self._after(at, lambda offer=offer: self._arrive(offer))  # type: ignore[misc]
        while self._events:
            self.clock.now, _, act = heappop(self._events)
            act()
            self._form()
        assert self.scheduler.in_flight == 0
        return self.fates

    @property
    def now(self) -> float:
        return self.clock.now - Clock.now

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        heappush(self._events, (self.clock.now + seconds, next(self._numbers), act))

    def _arrive(self, offer: Offer) -> None:
        now = self.clock.now
        retrieval = RETRIEVALS[offer.priority]
        request = PendingRequest(retrieval, now, now + offer.deadline, offer.connection)
        self._fate_of[request] = fate = Fate(offer, self.now)
        self.fates.append(fate)
        try:
            self.scheduler.submit(request)
        except ServiceError as refusal:
            self._fails(request, refusal)
        fate.degraded = request.degraded

    def _fails(self, request: PendingRequest, error: ServiceError) -> None:
        fate = self._fate_of.pop(request)
        fate.reason, fate.ended = error.reason, self.now
        fate.trailers = dict(error.trailers)

    def _form(self) -> None:
        departure = self.scheduler.poll()
        if departure is None:
            wait = self.scheduler.asleep_until - self.clock.now
            if 0 < wait < math.inf:
                self._after(wait, lambda: None)
        else:
            for failure in departure.failures:
                self._fails(failure.request, failure.error)
            self.scheduler.end(departure.failures)
            if departure.batch is not None:
                self._spans[departure.batch] = []
                self._reach(departure.batch, "input")

    def _reach(self, batch: BatchUnderWay, stage: StageName) -> None:
        """Work on the batch as soon as the stage has ended those before it."""
        begin = max(self._free[stage], self.clock.now)
        seconds = self.engine.seconds(stage, batch)
        self._free[stage] = begin + seconds
        self._after(begin - self.clock.now, lambda: self._begin(batch, stage, seconds))

    def _begin(self, batch: BatchUnderWay, stage: StageName, seconds: float) -> None:
        if stage == "generate":
            self.scheduler.advance(batch, Place.QUEUED)
        elif stage == "post":
            self.scheduler.advance(batch, Place.POST)
        self._spans[batch].append(Span(stage, self.clock.now, self.clock.now + seconds))
        self._after(seconds, lambda: self._end(batch, stage))

    def _end(self, batch: BatchUnderWay, stage: StageName) -> None:
        if stage == "generate":
            self.scheduler.advance(batch, Place.GENERATED)
        if stage != "post":
            self._reach(batch, STAGE_NAMES[STAGE_NAMES.index(stage) + 1])
            return
        for request in batch.requests:
            fate = self._fate_of.pop(request)
            fate.executed, fate.ended = True, self.now + self.engine.reply_seconds
        answers = [Answer(each, b"") for each in batch.requests]
        self.scheduler.end(answers, batch, self._spans.pop(batch))


SECONDS = 3.0
GPU_SECONDS = {1: 0.0023, 2: 0.0029, 4: 0.0039, 8: 0.0058, 16: 0.01}
"""What generate takes for a batch of the paper's model on an H200, in bfloat16."""

BEGUN = 1.0
"""Requests of the first second do not count where the server must first learn the load."""


def goodput(fates: Sequence[Fate], engine: Engine, seconds: float = SECONDS) -> float:
    """The requests answered in time, as a share of the engine's capacity."""
    return sum(fate.in_time for fate in fates) / (engine.capacity * seconds)


def late_share(fates: Sequence[Fate]) -> float:
    executed = [fate for fate in fates if fate.executed]
    return sum(not fate.in_time for fate in executed) / len(executed)


def percentile(fates: Sequence[Fate], share: float) -> float:
    """A percentile of the seconds to the answers."""
    seconds = sorted(fate.seconds for fate in fates if fate.executed)
    return seconds[int(share * len(seconds))]


def reasons(fates: Sequence[Fate]) -> set[str]:
    return {fate.reason for fate in fates if not fate.executed}


@pytest.mark.parametrize("stage", STAGE_NAMES)
def test_whichever_stage_is_slow_at_twice_the_capacity_its_time_is_not_wasted(
    stage: StageName,
) -> None:
    engine = Engine(stage)
    fates = Simulation(engine).run([Offer(2 * engine.capacity, 0.0, SECONDS, 0.25)])
    assert goodput(fates, engine) > 0.97
    assert late_share(fates) < 0.01


@pytest.mark.parametrize(("times", "deadline"), [(2, 0.8), (5, 0.2)])
def test_unpredictable_times_and_slow_replies_make_few_answers_late(
    times: int, deadline: float
) -> None:
    engine = Engine(noise=0.15, reply_seconds=0.005)
    seconds = 5.0  # what is learned at the begin must be a small part
    fates = Simulation(engine).run([Offer(times * engine.capacity, 0.0, seconds, deadline)])
    assert goodput(fates, engine, seconds) > 0.95
    assert late_share(fates) < 0.03
    in_vain = sum(fate.reason == "deadline_exceeded" for fate in fates)
    assert in_vain < 0.1 * sum(fate.executed for fate in fates)


def test_without_deadlines_a_long_queue_is_shed_down_to_its_target() -> None:
    engine = Engine()
    fates = Simulation(engine, target_queue_ms=100.0).run([Offer(800.0, 0.0, SECONDS)])
    assert goodput(fates, engine) > 0.97
    assert reasons(fates) == {"overloaded"}
    # The queue's target, and the two batches ahead of it with its own.
    assert percentile([fate for fate in fates if fate.sent > BEGUN], 0.99) < 0.1 + 3 * engine.slow
    assert all(fate.seconds == 0.0 for fate in fates if not fate.executed)


def test_a_burst_that_is_worked_off_within_the_target_loses_no_request() -> None:
    engine = Engine()
    bursts = [Offer(20_000.0, at, at + 0.008) for at in (0.0, 1.0, 2.0)]
    fates = Simulation(engine).run(bursts)
    assert len(fates) > 400
    assert reasons(fates) == set()


def test_a_second_after_the_overload_every_request_is_answered_as_before_it() -> None:
    engine = Engine()
    normal = 0.7 * engine.capacity
    fates = Simulation(engine).run(
        [Offer(normal, 0.0, 5.0, 0.8), Offer(5 * engine.capacity, 1.0, 3.0, 0.8)]
    )
    before = [fate for fate in fates if 0.5 < fate.sent < 1.0]
    after = [fate for fate in fates if fate.sent > 4.0]
    assert reasons(before) == reasons(after) == set()
    assert percentile(after, 0.95) < 1.5 * percentile(before, 0.95)


def test_low_requests_are_shed_before_normal_ones() -> None:
    engine = Engine()
    fates = Simulation(engine).run(
        [
            Offer(0.8 * engine.capacity, 0.0, SECONDS, priority="NORMAL"),
            Offer(2 * engine.capacity, 0.0, SECONDS, priority="LOW"),
        ]
    )
    normal = [fate for fate in fates if fate.offer.priority == "NORMAL"]
    low = [fate for fate in fates if fate.offer.priority == "LOW" and fate.sent > BEGUN]
    assert reasons(normal) == set()
    assert "overloaded" in reasons(low)
    assert goodput(fates, engine) > 0.97
    assert percentile(normal, 0.99) < 0.25


def test_while_normal_requests_are_shed_every_low_one_is() -> None:
    engine = Engine()
    low = Offer(10.0, 2.0, SECONDS, priority="LOW")
    fates = Simulation(engine).run([Offer(2 * engine.capacity, 0.0, SECONDS), low])
    of_low = [fate for fate in fates if fate.offer is low]
    assert {fate.reason for fate in of_low} == {"overloaded"}


def test_callers_with_short_deadlines_are_served_next_to_callers_with_none() -> None:
    engine = Engine(noise=0.1)
    fates = Simulation(engine, target_queue_ms=100.0).run(
        [
            Offer(engine.capacity, 0.0, SECONDS, deadline, connection=f"{deadline}")
            for deadline in (0.4, 2.0, math.inf)
        ]
    )
    assert goodput(fates, engine) > 0.95
    assert late_share(fates) < 0.02
    answered = [fate.offer.deadline for fate in fates if fate.in_time]
    assert min(answered.count(deadline) for deadline in set(answered)) > 0.25 * len(answered)


def test_a_smaller_profile_answers_requests_that_would_be_shed_and_only_under_load() -> None:
    engine = Engine()
    overload = Offer(1.5 * engine.capacity, 1.0, 4.0)
    offers = [Offer(0.5 * engine.capacity, 0.0, 7.0), overload]
    fates = Simulation(engine, {"full": ("reduced",)}, max_waiting=1000).run(offers)
    assert reasons(fates) == set()
    assert not any(fate.degraded for fate in fates if fate.sent < 1.0 or fate.sent > 6.0)
    assert any(fate.degraded for fate in fates)
    assert "overloaded" in reasons(Simulation(engine, max_waiting=1000).run(offers))


def test_deadlines_that_leave_no_room_for_a_margin_are_met_again_when_it_has_gone() -> None:
    """The margin must not refuse for ever a deadline just above the time of an answer."""
    engine = Engine(reply_seconds=0.01)
    fates = Simulation(engine).run([Offer(10.0, 0.0, 60.0, 0.0505)])
    last = [fate for fate in fates if fate.sent > 30.0]
    assert any(fate.executed for fate in last)


def test_a_refusal_for_want_of_time_says_that_more_is_needed_than_is_left() -> None:
    """The margin counts in what an answer takes: callers would read a contradiction without it."""
    engine = Engine(noise=0.15, reply_seconds=0.01)
    fates = Simulation(engine).run([Offer(2 * engine.capacity, 0.0, SECONDS, 0.2)])
    refused = [fate.trailers for fate in fates if fate.reason == "deadline_unmeetable"]
    assert refused
    for trailers in refused:
        assert int(trailers["grace-predicted-ms"]) >= int(trailers["grace-deadline-left-ms"])


def simulated(share: float, seconds: float) -> tuple[Engine, Sequence[Fate]]:
    """Offer a share of the capacity to an engine of the GPU's times."""
    engine = Engine(slow=GPU_SECONDS[16], by_bucket=GPU_SECONDS, noise=0.03, reply_seconds=0.0025)
    offer = Offer(share * engine.capacity, 0.0, seconds)
    return engine, Simulation(engine, max_waiting=1000).run([offer])


@pytest.mark.parametrize(("share", "most"), [(0.6, 0.022), (0.75, 0.0265), (0.85, 0.031)])
def test_below_the_capacity_answers_come_soon(share: float, most: float) -> None:
    """Batches that form as soon as they can, of all that wait, take 0.03, 0.035 and 0.04."""
    _, fates = simulated(share, seconds=6.0)
    latencies = sorted(fate.seconds for fate in fates if fate.sent > 1.0)
    assert latencies[int(0.99 * len(latencies))] < most


def test_at_more_than_the_capacity_generate_always_works() -> None:
    engine, fates = simulated(1.2, seconds=3.0)
    answered = sum(fate.executed for fate in fates)
    assert answered / max(fate.ended for fate in fates) > 0.98 * engine.capacity
