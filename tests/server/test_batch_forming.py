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
from grace.server.scheduling.under_way import BatchUnderWay, Place
from support.pipeline_cases import request_of, spans_of, wait_until
from support.scheduler_desk import BUCKETS, Desk, names_of
from support.simulated_overload import Engine, Fate, Offer, Simulation

GPU_SECONDS = {1: 0.0023, 2: 0.0029, 4: 0.0039, 8: 0.0058, 16: 0.01}
"""What generate takes for a batch of the paper's model on an H200, in bfloat16."""


@pytest.fixture
def desk() -> Desk:
    return Desk()


FITTING = {
    "five of seven rows answer fewer requests a second than four of four": ("01234", "0123 4"),
    "six of seven answer more": ("012345", "012345"),
    "LOW ones count, as they fill the rows": ("01234a", "01234a"),
    "but not those of another profile": ("01234a'", "0123 4 a'"),
    "a request without time for two batches is not left behind": ("01234@600", "01234"),
    "one with time for them is": ("01234@800", "0123 4"),
    "three of four rows are better than two of two": ("012", "012"),
}


@pytest.mark.parametrize(("submitted", "leave"), FITTING.values(), ids=FITTING)
def test_a_batch_has_the_bucket_that_answers_most_requests_a_second(
    desk: Desk, submitted: str, leave: str
) -> None:
    desk.submit(submitted)
    desk.learn({1: 0.15, 2: 0.25, 4: 0.3, 7: 0.4})
    assert desk.runs() == leave


def works(desk: Desk) -> BatchUnderWay:
    """Let generate work on a batch, which takes 0.5 s there, and 0.1 s before."""
    for bucket in BUCKETS:
        desk.predictions.observe("full", bucket, spans_of(0.1, 0.5, 0.0))
    desk.submit("X")
    batch = desk.forms()
    desk.scheduler.advance(batch, Place.QUEUED)
    return batch


def test_while_generate_works_the_next_batch_forms_just_in_time(desk: Desk) -> None:
    works(desk)
    desk.submit("0")
    assert desk.scheduler.poll() is None
    desk.clock.now += 0.39
    desk.submit("1")
    assert desk.scheduler.poll() is None
    desk.clock.now += 0.01
    assert names_of(desk.forms().requests) == ["0", "1"]


def test_a_full_batch_forms_at_once(desk: Desk) -> None:
    works(desk)
    desk.submit("0123456")
    assert len(desk.forms().requests) == BUCKETS[-1]


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


def test_batches_that_waited_to_fill_do_not_let_later_ones_form_earlier() -> None:
    desk = Desk(max_wait_ms=50.0)
    for _ in range(30):
        desk.submit("0")
        assert desk.scheduler.poll() is None
        desk.clock.now += 0.05
        batch = desk.forms()
        spans = spans_of(0.1, 0.5, 0.0, begin=desk.clock.now)
        desk.clock.now += 10.0
        desk.scheduler.end([], batch, spans)
    desk.submit("X")
    assert desk.scheduler.poll() is None
    desk.clock.now += 0.05
    desk.scheduler.advance(desk.forms(), Place.QUEUED)
    desk.submit("1")
    desk.clock.now += 0.39
    assert desk.scheduler.poll() is None
    desk.clock.now += 0.01
    assert names_of(desk.forms().requests) == ["1"]


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
