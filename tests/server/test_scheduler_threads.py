"""When the thread that waits for the next batch wakes."""

import math
import threading
import time

from grace.configs.serving import BatchingConfig
from grace.server.messages import PendingRequest
from grace.server.scheduling.predictions import Predictions
from grace.server.scheduling.scheduler import Departure, Scheduler
from grace.server.scheduling.under_way import Place
from support.pipeline_cases import request_of, spans_of, wait_until

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
