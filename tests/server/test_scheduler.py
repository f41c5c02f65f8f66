"""Which requests wait, start, are refused and are too late: the scheduler under a test's clock."""

import gc
import math
import re
import threading
import time
import weakref
from collections.abc import Mapping

import pytest

from grace.configs.serving import BatchingConfig
from grace.server.errors import Draining, Overloaded, ServiceError
from grace.server.messages import Answer, Failure, PendingRequest, Priority
from grace.server.scheduling.batch_choice import MOST_LATE
from grace.server.scheduling.predictions import Predictions, bucket_for
from grace.server.scheduling.request_queue import STALE_DEADLINES
from grace.server.scheduling.scheduler import Departure, Scheduler
from grace.server.scheduling.under_way import BatchUnderWay, Place
from support.pipeline_cases import LONG, Clock, request_of, spans_of, wait_until

BUCKETS = (1, 2, 4, 7)


class Desk:
    """A scheduler, its clock, and short words for what a test does with it."""

    def __init__(self, max_waiting: int = 63, max_wait_ms: float = 0.0) -> None:
        self.clock = Clock()
        self.predictions = Predictions(self.clock)
        config = BatchingConfig(max_waiting, max_wait_ms)
        self.scheduler = Scheduler(config, BUCKETS, self.predictions, self.clock)

    def learn(self, seconds: Mapping[int, float], profile: str = "full") -> None:
        """Batches of each bucket take so long from now on, all of it in generate."""
        for bucket, generate in seconds.items():
            self.predictions.observe(profile, bucket, spans_of(0.0, generate, 0.0))

    def submit(
        self,
        *names: str,
        left: float = math.inf,
        priority: Priority = "NORMAL",
        profile: str = "full",
    ) -> list[PendingRequest]:
        now = self.clock.now
        made = [request_of(name, profile, priority, now + left, arrived=now) for name in names]
        for request in made:
            self.scheduler.submit(request)
        return made

    def refusal(self, **fields: object) -> ServiceError:
        with pytest.raises(ServiceError) as refused:
            self.submit("refused", **fields)  # type: ignore[arg-type]
        return refused.value

    def departs(self) -> Departure:
        departure = self.scheduler.poll()
        assert departure is not None
        return departure

    def forms(self) -> BatchUnderWay:
        departure = self.departs()
        assert departure.batch is not None
        assert not departure.failures
        return departure.batch

    def runs(self) -> tuple[str, ...]:
        """Let the next batch form and end; return its requests."""
        return names_of(self.ends(self.forms()))

    def ends(self, batch: BatchUnderWay | None) -> tuple[PendingRequest, ...]:
        assert batch is not None
        self.scheduler.end([Answer(each, b"") for each in batch.requests], batch)
        return batch.requests

    def occupies(self) -> BatchUnderWay:
        """One batch is in generate and one is prepared, so that no other forms."""
        batches = []
        for _ in range(2):
            self.submit("occupies")
            batches.append(self.forms())
            self.scheduler.advance(batches[0], Place.QUEUED)
        return batches[1]

    def needed(self, profile: str = "full") -> float:
        """The seconds that an answer takes, as a refusal says."""
        refused = self.refusal(left=1e-9, profile=profile)
        match = re.search(r"0 ms are left, an answer takes (\d+) ms now", refused.text)
        assert match is not None
        return int(match[1]) / 1000


@pytest.fixture
def desk() -> Desk:
    return Desk()


SECONDS = {1: 0.1, 2: 0.2, 4: 0.3, 7: 0.4}


def names_of(requests: tuple[PendingRequest, ...]) -> tuple[str, ...]:
    return tuple(request.retrieval.request_id for request in requests)


def failed(departure: Departure) -> dict[str, str]:
    """The reasons by request id."""
    return {each.request.retrieval.request_id: each.error.reason for each in departure.failures}


@pytest.mark.parametrize(("requests", "bucket"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 7), (7, 7)])
def test_the_bucket_is_the_smallest_that_holds_the_requests(requests: int, bucket: int) -> None:
    assert bucket_for(requests, BUCKETS) == bucket


def test_a_batch_has_the_first_to_come_and_at_most_the_largest_bucket(desk: Desk) -> None:
    desk.submit(*"012345678")
    assert desk.runs() == tuple("0123456")
    assert desk.runs() == ("7", "8")
    assert desk.scheduler.poll() is None
    assert (desk.scheduler.waiting, desk.scheduler.in_flight) == (0, 0)


def test_normal_requests_go_first_and_low_ones_fill_the_free_rows(desk: Desk) -> None:
    desk.submit(*(f"low{i}" for i in range(9)), priority="LOW")
    desk.submit("a", "b")
    assert desk.runs() == ("a", "b", "low0", "low1", "low2", "low3", "low4")
    assert desk.runs() == ("low5", "low6", "low7", "low8")


def test_a_batch_has_the_profile_of_its_first_and_other_profiles_keep_their_places(
    desk: Desk,
) -> None:
    for name in ("f0", "r1", "f2", "r3", "f4"):
        desk.submit(name, profile="full" if name[0] == "f" else "reduced")
    desk.submit("low", profile="reduced", priority="LOW")
    assert desk.runs() == ("f0", "f2", "f4")
    assert desk.runs() == ("r1", "r3", "low")


def test_low_requests_take_no_further_rows_while_normal_ones_are_left_behind(desk: Desk) -> None:
    desk.submit(*(f"low{i}" for i in range(9)), priority="LOW")
    desk.submit("a0", "a1", "a2")
    desk.submit("b", profile="reduced")
    assert desk.runs() == ("a0", "a1", "a2", "low0")
    assert desk.runs() == ("b",)
    assert desk.runs() == tuple(f"low{i}" for i in range(1, 8))


def test_low_requests_make_no_normal_one_late(desk: Desk) -> None:
    desk.learn(SECONDS)
    desk.submit(*(f"low{i}" for i in range(6)), priority="LOW")
    desk.submit("tight", left=0.35)
    assert desk.runs() == ("tight", "low0", "low1", "low2")


def test_a_late_low_request_keeps_no_row_from_those_after_it(desk: Desk) -> None:
    desk.submit("late", priority="LOW", left=0.05)
    desk.submit("tight", priority="LOW", left=0.15)
    desk.submit("low", priority="LOW")
    desk.submit("0", "1", "2")
    desk.learn(SECONDS)
    departure = desk.departs()
    assert failed(departure) == {"late": "deadline_unmeetable"}
    assert names_of(desk.ends(departure.batch)) == ("0", "1", "2", "low")
    assert desk.runs() == ("tight",)


def test_a_batch_is_made_smaller_for_a_request_with_little_time(desk: Desk) -> None:
    desk.learn(SECONDS)
    desk.submit("0")
    desk.submit("1", left=0.9)
    desk.submit("tight", left=0.35)
    desk.clock.now += 0.1
    assert desk.runs() == ("1", "tight")
    assert desk.runs() == ("0",)


@pytest.mark.parametrize(
    ("others", "left"),
    [(2, 0.55), (3, 9.0)],
    ids=["those-left-behind-could-not-wait-for-a-full-batch", "half-a-batch-waits"],
)
def test_a_batch_is_not_made_smaller_at_the_cost_of_others(
    desk: Desk, others: int, left: float
) -> None:
    desk.submit("tight", left=0.25)
    desk.submit(*map(str, range(others)), left=left)
    desk.learn(SECONDS)
    departure = desk.departs()
    assert failed(departure) == {"tight": "deadline_unmeetable"}
    assert len(desk.ends(departure.batch)) == others


def test_a_full_queue_refuses_and_says_when_it_will_have_been_worked_off() -> None:
    desk = Desk(max_waiting=9)
    desk.learn({1: 0.5, 2: 0.5, 7: 0.5})
    desk.occupies()
    desk.submit(*"012345678")
    for priority in ("NORMAL", "LOW"):
        refused = desk.refusal(priority=priority)
        assert isinstance(refused, Overloaded)
        assert refused.reason == "queue_full"
        assert refused.retry_after_seconds == pytest.approx(2.0)  # two under way, two of the queue
    assert desk.scheduler.in_flight == 11


def test_a_normal_request_takes_the_place_of_the_youngest_low_one() -> None:
    desk = Desk(max_waiting=3)
    prepared = desk.occupies()
    _, young = desk.submit("old", "young", priority="LOW")
    desk.submit("n0")
    assert desk.refusal(priority="LOW").reason == "queue_full"
    desk.submit("n1")
    assert desk.scheduler.waiting == 3
    assert not desk.scheduler.cancel(young)  # its failure follows
    departure = desk.departs()
    assert departure.batch is None
    assert failed(departure) == {"young": "displaced"}
    desk.submit("n2")
    assert failed(desk.departs()) == {"old": "displaced"}
    assert desk.refusal().reason == "queue_full"
    desk.scheduler.end((), prepared)
    assert desk.runs() == ("n0", "n1", "n2")


def test_a_cancelled_request_leaves_the_queue_at_once() -> None:
    desk = Desk(max_waiting=3)
    requests = desk.submit("0", "1", "2")
    assert desk.scheduler.cancel(requests[1])
    assert not desk.scheduler.cancel(requests[1])
    desk.submit("3")
    assert desk.runs() == ("0", "2", "3")
    assert not desk.scheduler.cancel(requests[0])


def test_a_request_is_refused_by_what_goes_before_it(desk: Desk) -> None:
    desk.learn({1: 1.0, 2: 2.0, 4: 4.0, 7: 7.0})
    desk.learn({1: 10.0, 2: 20.0}, "reduced")
    assert (desk.needed(), desk.needed("reduced")) == (1.0, 10.0)
    desk.submit("0", "1", "2")
    desk.submit("reduced", profile="reduced")
    desk.submit("low", priority="LOW")
    # After the other profile's batch, and with the waiting requests of its own.
    assert desk.needed() == 14.0
    assert desk.needed("reduced") == 24.0
    assert desk.refusal(left=13.9).reason == "deadline_unmeetable"
    assert desk.refusal(left=16.9, priority="LOW").reason == "deadline_unmeetable"
    desk.submit("in time", left=14.1)
    desk.submit("3", "4", "5")
    assert desk.needed() == 18.0  # a full batch goes before it


def test_expired_requests_leave_even_while_no_batch_may_form(desk: Desk) -> None:
    prepared = desk.occupies()
    desk.submit("a")
    desk.submit("expired", left=0.5)
    desk.submit("b", left=9.0)
    desk.clock.now += 0.5
    departure = desk.departs()
    assert departure.batch is None
    assert failed(departure) == {"expired": "deadline_exceeded"}
    desk.scheduler.end((), prepared)
    assert desk.runs() == ("a", "b")


def test_many_late_requests_leave_some_at_a_time_and_delay_no_batch() -> None:
    desk = Desk(max_waiting=1000)
    late = desk.submit(*["late"] * (3 * MOST_LATE), left=0.5)
    desk.submit("in-time", left=9.0, profile="reduced")
    desk.clock.now += 0.5
    gone: list[PendingRequest] = []
    formed: list[tuple[str, ...]] = []
    while desk.scheduler.waiting:
        departure = desk.departs()
        assert len(departure.failures) <= 2 * MOST_LATE
        gone += [each.request for each in departure.failures]
        if departure.batch is not None:
            formed.append(names_of(departure.batch.requests))
            assert len(gone) < len(late) or not desk.scheduler.waiting
    assert formed == [("in-time",)]
    assert gone == late


class WatchedRequest(PendingRequest):
    """A request that a weak reference may point to."""


def test_requests_that_have_left_are_not_kept_for_their_deadlines(desk: Desk) -> None:
    desk.submit("waiting", left=0.5)
    left = []
    for _ in range(5 * STALE_DEADLINES):
        request = WatchedRequest(request_of().retrieval, 0.0, desk.clock.now + 3600.0)
        left.append(weakref.ref(request))
        desk.scheduler.submit(request)
        assert desk.scheduler.cancel(request)
    del request
    gc.collect()
    assert sum(each() is not None for each in left) <= STALE_DEADLINES + 4
    desk.clock.now += 0.5
    assert failed(desk.departs()) == {"waiting": "deadline_exceeded"}


def test_a_request_with_too_little_time_leaves_and_the_next_has_its_row(desk: Desk) -> None:
    desk.submit("late", left=0.2)
    desk.submit("tight", left=0.3)
    desk.submit(*"0123456")
    desk.learn(dict.fromkeys(BUCKETS, 0.25))
    departure = desk.departs()
    assert failed(departure) == {"late": "deadline_unmeetable"}
    (failure,) = departure.failures
    assert failure.error.text.startswith("200 ms are left, an answer takes 250 ms now")
    assert names_of(desk.ends(departure.batch)) == ("tight", *"012345")


def test_a_batch_is_held_back_to_fill() -> None:
    desk = Desk(max_wait_ms=250.0)
    desk.submit(*"012345")
    desk.clock.now += 0.24
    assert desk.scheduler.poll() is None
    desk.submit("6")
    assert desk.runs() == tuple("0123456")
    desk.submit("7")
    desk.clock.now += 0.2
    desk.submit("8")
    assert desk.scheduler.poll() is None
    desk.clock.now += 0.05
    assert desk.runs() == ("7", "8")


def test_a_batch_is_not_held_back_until_one_of_it_is_late() -> None:
    desk = Desk(max_wait_ms=250.0)
    desk.learn({2: 0.125})
    desk.submit("0")
    desk.submit("tight", left=0.1875)
    desk.clock.now += 0.03125
    assert desk.scheduler.poll() is None
    desk.clock.now += 0.03125
    assert desk.runs() == ("0", "tight")


def test_a_closed_scheduler_takes_nothing_and_holds_nothing_back() -> None:
    desk = Desk(max_wait_ms=60_000.0)
    desk.submit("0")
    desk.scheduler.close()
    assert isinstance(desk.refusal(), Draining)
    assert desk.runs() == ("0",)
    assert desk.scheduler.next_batch() is None


def test_one_batch_is_prepared_ahead_of_generate_and_no_more(desk: Desk) -> None:
    scheduler = desk.scheduler
    desk.submit("first")
    first = desk.forms()
    desk.submit("second")
    assert scheduler.poll() is None
    scheduler.advance(first, Place.QUEUED)
    second = desk.forms()
    desk.submit("third")
    for place in (Place.GENERATED, Place.POST):
        scheduler.advance(first, place)
        assert scheduler.poll() is None
    scheduler.advance(second, Place.QUEUED)
    assert desk.runs() == ("third",)


def test_no_batch_forms_while_a_generated_one_waits_for_post(desk: Desk) -> None:
    scheduler = desk.scheduler
    desk.submit("first")
    first = desk.forms()
    desk.submit("second")
    scheduler.advance(first, Place.QUEUED)
    scheduler.advance(first, Place.GENERATED)
    assert scheduler.poll() is None
    scheduler.advance(first, Place.POST)
    second = desk.forms()
    desk.submit("third")
    scheduler.advance(second, Place.QUEUED)
    scheduler.advance(second, Place.GENERATED)
    desk.ends(first)
    assert scheduler.poll() is None
    scheduler.advance(second, Place.POST)
    assert desk.runs() == ("third",)


def test_a_batch_that_the_device_has_not_begun_counts_as_prepared(desk: Desk) -> None:
    second = desk.occupies()
    desk.scheduler.advance(second, Place.QUEUED)
    desk.submit("third")
    assert desk.scheduler.poll() is None


def test_the_work_ahead_shrinks_while_generate_works(desk: Desk) -> None:
    desk.learn({1: 0.5})
    prepared = desk.occupies()
    assert desk.needed() == 1.5
    desk.clock.now += 0.125
    assert desk.needed() == 1.375
    assert desk.refusal(left=1.3).reason == "deadline_unmeetable"
    desk.scheduler.cancel(*desk.submit("in time", left=1.4))
    desk.clock.now += 99.0  # longer than predicted: generate may end at any moment
    assert desk.needed() == 1.0
    desk.scheduler.advance(prepared, Place.QUEUED)
    assert desk.needed() == 1.0


def test_a_batch_counts_until_post_has_ended_it(desk: Desk) -> None:
    desk.predictions.observe("full", 1, spans_of(0.25, 0.5, 2.0))
    desk.submit("first")
    first = desk.forms()
    assert desk.needed() == 4.75  # post of the first, then of the next
    desk.clock.now += 0.25
    for place in (Place.QUEUED, Place.GENERATED, Place.POST):
        desk.scheduler.advance(first, place)
    desk.clock.now += 0.5
    assert desk.needed() == 3.5
    desk.ends(first)
    assert desk.needed() == 2.75


def test_a_batch_that_has_passed_all_stages_is_learned_from(desk: Desk) -> None:
    desk.submit("0")
    batch = desk.forms()
    outcomes = [Answer(each, b"") for each in batch.requests]
    assert desk.scheduler.end(outcomes, batch, spans_of(0.0, 3.0, 0.0)) == outcomes
    assert desk.needed() == 3.0


def test_a_batch_is_unwanted_once_all_of_it_is_cancelled_or_expired(desk: Desk) -> None:
    desk.submit("expiring", left=0.5)
    (cancelled,) = desk.submit("cancelled")
    batch = desk.forms()
    assert desk.scheduler.unwanted(batch.requests) == []
    assert not desk.scheduler.cancel(cancelled)
    assert desk.scheduler.unwanted(batch.requests) == []
    desk.clock.now += 0.5
    failures = tuple(desk.scheduler.unwanted(batch.requests))
    assert failed(Departure(None, failures)) == {
        "expiring": "deadline_exceeded",
        "cancelled": "cancelled",
    }


def test_after_abandon_every_request_has_ended_wherever_it_was() -> None:
    desk = Desk(max_waiting=2)
    batch = desk.occupies()
    desk.submit("low", priority="LOW")
    desk.submit("0", "1")
    assert desk.scheduler.in_flight == 5
    lost = desk.scheduler.abandon()
    assert lost is not None
    assert sorted(names_of(tuple(lost))) == ["0", "1", "low", "occupies", "occupies"]
    assert desk.scheduler.abandon() is None
    assert desk.scheduler.end([Failure(each, Draining()) for each in lost], batch) == []
    assert not any(desk.scheduler.cancel(request) for request in lost)
    assert (desk.scheduler.in_flight, desk.scheduler.waiting) == (0, 0)
    assert desk.scheduler.next_batch() is None


class Taker:
    """A thread that takes what leaves the queue until the scheduler is closed and empty."""

    def __init__(self, max_waiting: int = 63, max_wait_ms: float = 0.0) -> None:
        config = BatchingConfig(max_waiting, max_wait_ms)
        self.scheduler = Scheduler(config, BUCKETS, Predictions())
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
        wait_until(lambda: len(self.got) == departures)
        return self.got[-1]

    def ends(self) -> None:
        self._thread.join(LONG)
        assert not self._thread.is_alive()


def test_next_batch_wakes_for_a_request_a_displacement_and_a_free_place() -> None:
    taker = Taker(max_waiting=1)
    taker.submit(request_of())
    prepared = taker.waits_for(1).batch
    taker.submit(request_of(priority="LOW"), request_of())
    assert failed(taker.waits_for(2)) == {"r": "displaced"}
    taker.scheduler.end((), prepared)
    assert taker.waits_for(3).batch is not None
    taker.scheduler.close()
    taker.ends()


def test_next_batch_wakes_when_a_deadline_passes_and_when_a_batch_was_held_long_enough() -> None:
    taker = Taker(max_wait_ms=5.0)
    taker.submit(request_of())
    prepared = taker.waits_for(1).batch
    taker.submit(request_of("expiring", deadline=time.perf_counter() + 0.05))
    assert failed(taker.waits_for(2)) == {"expiring": "deadline_exceeded"}
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
    assert taker.scheduler.cancel(waiting)
    taker.ends()
    assert len(taker.got) == 1
