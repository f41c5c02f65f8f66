"""Whatever happens, every request that was taken ends once: reported, or taken back by cancel."""

import math
import random
import threading
import time
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from grace.server.errors import ServiceError
from grace.server.messages import InputBatch, PendingRequest, Priority, RequestBatch, StageName
from grace.server.scheduling.pipeline import Pipeline
from support.pipeline_cases import LONG, Recorder, make_pipeline, plain_stages, request_of

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
                self.pipeline.submit(request)
            except ServiceError:
                self.refused += 1
            else:
                self.taken.append(request)
            if self.taken and self.chance.random() < 0.3:
                withdrawn = self.chance.choice(self.taken)
                if self.pipeline.cancel(withdrawn):
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
    chances: dict[StageName, tuple[Fate, random.Random]] = {
        "input": (fates[0], random.Random(seed)),
        "features": (fates[1], random.Random(seed + 1)),
        "generate": (fates[2], random.Random(seed + 2)),
        "post": (fates[3], random.Random(seed + 3)),
    }

    def disturb(stage: StageName, _: InputBatch | RequestBatch) -> None:
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
