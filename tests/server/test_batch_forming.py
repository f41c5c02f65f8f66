"""How large a batch is, when it forms while generate works on another, and who wakes for it."""

import math
import threading
import time
from collections.abc import Sequence

import pytest

from grace.configs.serving import BatchingConfig
from grace.server.messages import PendingRequest, Span
from grace.server.scheduling.controller import Departure
from grace.server.scheduling.feedback import HeadStart
from grace.server.scheduling.predictions import Prediction, Predictions
from grace.server.scheduling.scheduler import Scheduler
from grace.server.scheduling.under_way import Place
from support.pipeline_cases import request_of, spans_of, wait_until
from support.simulated_overload import Engine, Fate, Offer, Simulation

GPU_SECONDS = {1: 0.0023, 2: 0.0029, 4: 0.0039, 8: 0.0058, 16: 0.01}
"""What generate takes for a batch of the paper's model on an H200, in bfloat16."""


def generated(begin: float, end: float) -> tuple[Span, ...]:
    return (Span("input", 0.0, 0.0), Span("generate", begin, end), Span("post", end, end))


def test_batches_form_earlier_once_generate_waited_for_some_and_later_once_it_did_not() -> None:
    head_start, batch = HeadStart(), Prediction(before=0.25, generate=1.0)
    at_first = head_start.seconds(batch)
    assert at_first > batch.before
    for begin in range(7):
        head_start.observe(generated(begin, begin + 0.9), held=False)
    assert head_start.seconds(batch) == at_first
    for begin in range(7, 14):
        head_start.observe(generated(begin, begin + 0.9), held=True)
    late = head_start.seconds(batch)
    assert late > at_first + 0.1
    for begin in range(14, 200):
        head_start.observe(generated(begin, begin + 1.0), held=True)
    assert head_start.seconds(batch) < late - 0.1


def test_a_short_batch_does_not_undo_what_long_batches_need() -> None:
    head_start, batch = HeadStart(), Prediction(generate=1.0)
    for begin in range(7):
        head_start.observe(generated(begin, begin + 0.9), held=True)
    before = head_start.seconds(batch)
    head_start.observe(generated(6.9, 6.91), held=True)
    assert head_start.seconds(batch) == pytest.approx(before, rel=0.02)


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


WAKE_SECONDS = 10.0
"""A thread that has not woken after this time has not been notified."""


class Taker:
    """A thread that takes what leaves the queue until the scheduler is closed and empty."""

    def __init__(self, max_waiting: int = 63, max_wait_ms: float = 0.0) -> None:
        config = BatchingConfig(max_waiting, max_wait_ms)
        self.predictions = Predictions()
        self.scheduler = Scheduler(config, (1, 2, 4), self.predictions)
        self.got: list[Departure] = []
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _take(self) -> None:
        while (departure := self.scheduler.next_batch()) is not None:
            self.got.append(departure)

    def submit(self, *requests: PendingRequest) -> None:
        for request in requests:
            self.scheduler.submit(request)

    def waits_for(self, departures: int) -> Departure:
        wait_until(lambda: len(self.got) == departures, WAKE_SECONDS)
        return self.got[-1]

    def ends(self) -> None:
        self._thread.join(WAKE_SECONDS)
        assert not self._thread.is_alive()


def reasons(departure: Departure) -> list[str]:
    return [each.error.reason for each in departure.failures]


def test_next_batch_wakes_for_a_request_a_displacement_and_a_free_place() -> None:
    taker = Taker(max_waiting=1)
    taker.submit(request_of())
    prepared = taker.waits_for(1).batch
    taker.submit(request_of(priority="LOW"), request_of())
    assert reasons(taker.waits_for(2)) == ["displaced"]
    taker.scheduler.end((), prepared)
    assert taker.waits_for(3).batch is not None
    taker.scheduler.close()
    taker.ends()


def test_next_batch_wakes_when_a_deadline_passes_and_when_a_batch_was_held_long_enough() -> None:
    taker = Taker(max_wait_ms=5.0)
    taker.submit(request_of())
    prepared = taker.waits_for(1).batch
    taker.submit(request_of(deadline=time.perf_counter() + 1.0))
    assert reasons(taker.waits_for(2)) == ["deadline_exceeded"]
    taker.scheduler.end((), prepared)
    taker.submit(request_of())
    assert taker.waits_for(3).batch is not None
    taker.scheduler.close()
    taker.ends()


def test_next_batch_ends_when_the_last_waiting_request_of_a_closed_scheduler_is_cancelled() -> None:
    taker = Taker()
    taker.submit(request_of())
    taker.waits_for(1)
    waiting = request_of()
    taker.submit(waiting)
    taker.scheduler.close()
    time.sleep(0.1)  # until it sleeps again: what `close` wakes would also see the empty queue
    assert taker.scheduler.cancel(waiting)
    taker.ends()
    assert len(taker.got) == 1


def test_a_request_starts_at_once_if_the_held_one_was_cancelled_and_generate_ended_early() -> None:
    taker = Taker()
    for bucket in (1, 2, 4):
        taker.predictions.observe("full", bucket, spans_of(0.0, 6 * WAKE_SECONDS, 0.0))
    taker.submit(request_of())
    ahead = taker.waits_for(1).batch
    assert ahead is not None
    taker.scheduler.advance(ahead, Place.QUEUED)
    held = request_of()
    taker.submit(held)
    wait_until(lambda: 0.0 < taker.scheduler.asleep_until < math.inf, WAKE_SECONDS)
    assert taker.scheduler.cancel(held)
    taker.scheduler.end((), ahead)
    later = request_of()
    taker.submit(later)
    assert taker.waits_for(2).requests == (later,)
    taker.scheduler.close()
    taker.ends()
