"""An overloaded engine: the scheduler is real, the clock and the stages are simulated."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random

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
from grace.server.scheduling.predictions import Predictions
from grace.server.scheduling.scheduler import Scheduler
from grace.server.scheduling.under_way import BatchUnderWay, Place
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
    """How a request ended, by its caller's clock. Times are in seconds since the begin.

    reason    the reason of the failure, if it failed
    executed  whether it passed through all stages
    """

    offer: Offer
    sent: float
    ended: float = math.nan
    reason: str = ""
    executed: bool = False
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
    """Stages, each of which works on one batch at a time.

    slow, quick    seconds that a batch takes in the slow stage, and in each other one
    noise          by what share the slow stage's time varies, either way
    reply_seconds  the time from an outcome to its caller, which no prediction includes
    speedup        of a smaller profile
    by_bucket      seconds of the slow stage instead of `slow`, by bucket
    """

    stage: StageName = "generate"
    slow: float = 0.04
    quick: float = 0.001
    noise: float = 0.0
    reply_seconds: float = 0.0
    speedup: float = 4.0
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
        self,
        engine: Engine,
        ladders: dict[str, tuple[str, ...]] | None = None,
        **batching: float,
    ) -> None:
        self.engine = engine
        self.clock = Clock()
        config = BatchingConfig(**batching)  # type: ignore[arg-type]
        predictions = Predictions(self.clock)
        self.scheduler = Scheduler(config, BUCKETS, predictions, self.clock, ladders or {})
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
