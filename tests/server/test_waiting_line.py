"""Who waits, in which order they leave, and who never starts."""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from grace.configs.serving import BatchingConfig
from grace.server.messages import PendingRequest
from grace.server.scheduling.waiting_line import (
    MOST_FORGOTTEN,
    MOST_LATE,
    Departure,
    WaitingLine,
    bucket_for,
)
from support.pipeline_cases import LONG, request_of, wait_until

BUCKETS = (1, 2, 4, 7)


@dataclass
class Now:
    """A clock and a plan that do as they are told."""

    now: float = 100.0
    forms: bool = True
    seconds: dict[int, float] = field(default_factory=dict)  # that a bucket needs

    def __call__(self) -> float:
        return self.now

    def may_form(self) -> bool:
        return self.forms

    def needed(self, profile: str, *buckets: int) -> float:  # noqa: ARG002
        return sum(self.seconds.get(bucket, 0.0) for bucket in buckets)

    def too_late(self, profile: str, bucket: int, left: float) -> bool:
        return left <= 0 or left < self.needed(profile, bucket)


@pytest.fixture
def plan() -> Now:
    return Now()


MakeLine = Callable[..., WaitingLine]


@pytest.fixture
def make_line(plan: Now) -> MakeLine:
    def make(places: int = 63, max_wait_ms: float = 0.0) -> WaitingLine:
        return WaitingLine(BatchingConfig(places, max_wait_ms), BUCKETS, plan, plan)

    return make


def push(line: WaitingLine, *requests: PendingRequest) -> None:
    assert [line.push(request) for request in requests] == [True] * len(requests)


def taken(line: WaitingLine) -> Departure:
    departure = line.take()
    assert departure is not None
    return departure


def started(line: WaitingLine) -> tuple[str, ...]:
    departure = taken(line)
    assert not departure.late
    assert not departure.displaced
    return tuple(request.retrieval.request_id for request in departure.requests)


@pytest.mark.parametrize(("requests", "bucket"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 7), (7, 7)])
def test_the_bucket_is_the_smallest_that_holds_the_requests(requests: int, bucket: int) -> None:
    assert bucket_for(requests, BUCKETS) == bucket


def test_a_batch_has_the_first_to_come_and_at_most_the_largest_bucket(make_line: MakeLine) -> None:
    line = make_line()
    push(line, *(request_of(str(i)) for i in range(9)))
    assert started(line) == tuple("0123456")
    assert started(line) == ("7", "8")
    assert len(line) == 0


def test_normal_requests_go_before_low_ones_and_low_ones_fill_up(make_line: MakeLine) -> None:
    line = make_line()
    push(line, *(request_of(f"low{i}", priority="LOW") for i in range(9)))
    push(line, request_of("a"), request_of("b"))
    assert started(line) == ("a", "b", "low0", "low1", "low2", "low3", "low4")
    assert started(line) == ("low5", "low6", "low7", "low8")


def test_a_batch_has_the_profile_of_its_first_and_the_others_keep_their_places(
    make_line: MakeLine,
) -> None:
    line = make_line()
    for name in ("f0", "r1", "f2", "r3", "f4"):
        push(line, request_of(name, profile="full" if name[0] == "f" else "reduced"))
    push(line, request_of("low", "reduced", "LOW"))
    assert started(line) == ("f0", "f2", "f4")
    assert started(line) == ("r1", "r3", "low")


def test_low_ones_take_only_free_rows_while_normal_ones_are_left_behind(
    make_line: MakeLine,
) -> None:
    line = make_line()
    push(line, *(request_of(f"low{i}", priority="LOW") for i in range(9)))
    push(line, *(request_of(f"a{i}") for i in range(3)), request_of("b", "reduced"))
    assert started(line) == ("a0", "a1", "a2", "low0")
    assert started(line) == ("b",)
    assert started(line) == tuple(f"low{i}" for i in range(1, 8))


def test_low_ones_make_no_normal_one_late(make_line: MakeLine, plan: Now) -> None:
    plan.seconds = {1: 0.1, 2: 0.2, 4: 0.3, 7: 0.4}
    line = make_line()
    push(line, *(request_of(f"low{i}", priority="LOW") for i in range(6)))
    push(line, request_of("tight", deadline=plan.now + 0.35))
    assert started(line) == ("tight", "low0", "low1", "low2")


def test_a_low_one_without_the_time_keeps_no_row_from_those_behind_it(
    make_line: MakeLine, plan: Now
) -> None:
    plan.seconds = {1: 0.1, 2: 0.2, 4: 0.3, 7: 0.4}
    line = make_line()
    late = request_of("late", priority="LOW", deadline=plan.now + 0.05)
    push(line, late, request_of("tight", priority="LOW", deadline=plan.now + 0.15))
    push(line, request_of("low", priority="LOW"), *(request_of(str(i)) for i in range(3)))
    departure = taken(line)
    assert departure.late == (late,)
    assert [each.retrieval.request_id for each in departure.requests] == ["0", "1", "2", "low"]
    assert started(line) == ("tight",)


def test_a_batch_is_made_smaller_for_who_has_little_time_left(
    make_line: MakeLine, plan: Now
) -> None:
    plan.seconds = {1: 0.1, 2: 0.2, 4: 0.3, 7: 0.4}
    line = make_line()
    push(line, request_of("0"), request_of("1", deadline=plan.now + 0.9))
    push(line, request_of("tight", deadline=plan.now + 0.25))
    assert started(line) == ("1", "tight")
    assert started(line) == ("0",)


@pytest.mark.parametrize(
    ("beside", "seconds"),
    [(2, 0.55), (3, 9.0)],
    ids=["left-behind-could-not-wait-for-a-full-one", "half-a-batch-waits"],
)
def test_a_batch_is_not_made_smaller_at_the_cost_of_others(
    make_line: MakeLine, plan: Now, beside: int, seconds: float
) -> None:
    plan.seconds = {1: 0.1, 2: 0.2, 4: 0.3, 7: 0.4}
    line = make_line()
    tight = request_of("tight", deadline=plan.now + 0.25)
    push(line, tight)
    push(line, *(request_of(str(i), deadline=plan.now + seconds) for i in range(beside)))
    departure = taken(line)
    assert departure.late == (tight,)
    assert len(departure.requests) == beside


def test_into_a_full_line_nobody_comes(make_line: MakeLine) -> None:
    line = make_line(places=3)
    push(line, *(request_of(str(i)) for i in range(3)))
    assert not line.push(request_of("late"))
    assert not line.push(request_of("low", priority="LOW"))
    assert started(line) == ("0", "1", "2")
    push(line, request_of("again"))


def test_a_normal_request_takes_the_place_of_the_youngest_low_one(
    make_line: MakeLine, plan: Now
) -> None:
    plan.forms = False
    line = make_line(places=3)
    old, young = request_of("old", priority="LOW"), request_of("young", priority="LOW")
    push(line, old, young, request_of("n0"))
    assert not line.push(request_of("low", priority="LOW"))
    push(line, request_of("n1"))
    assert len(line) == 3
    assert not line.remove(young)
    assert taken(line) == Departure((), (), (young,))
    push(line, request_of("n2"))
    assert taken(line) == Departure((), (), (old,))
    assert not line.push(request_of("n3"))
    plan.forms = True
    assert started(line) == ("n0", "n1", "n2")


def test_what_is_removed_is_gone_and_its_place_is_free(make_line: MakeLine) -> None:
    line = make_line(places=3)
    requests = [request_of(str(i)) for i in range(3)]
    push(line, *requests)
    assert line.remove(requests[1])
    assert not line.remove(requests[1])
    push(line, request_of("3"))
    assert started(line) == ("0", "2", "3")
    assert not line.remove(requests[0])


def test_who_waits_before_a_new_request_is_counted_by_profile(make_line: MakeLine) -> None:
    line = make_line(places=5)
    cancelled = request_of()
    push(line, request_of(), request_of(profile="reduced"), cancelled)
    push(line, request_of(priority="LOW"), request_of(priority="LOW", profile="reduced"))
    line.remove(cancelled)
    assert line.before("NORMAL") == {"full": 1, "reduced": 1}
    assert line.before("LOW") == {"full": 2, "reduced": 2}
    taken(line)
    assert line.before("LOW") == {"full": 1, "reduced": 2}


def test_the_expired_leave_even_while_no_batch_may_form(make_line: MakeLine, plan: Now) -> None:
    plan.forms = False
    line = make_line()
    expired = request_of("expired", deadline=plan.now + 0.5)
    push(line, request_of("a"), expired, request_of("b", deadline=plan.now + 9.0))
    plan.now += 0.5
    assert taken(line) == Departure((), (expired,), ())
    plan.forms = True
    assert started(line) == ("a", "b")


def test_many_who_are_late_leave_some_at_a_time_and_delay_no_start(
    make_line: MakeLine, plan: Now
) -> None:
    line = make_line(places=1000)
    expired = [request_of(deadline=plan.now + 0.5) for _ in range(3 * MOST_LATE)]
    push(line, *expired, request_of("in-time", "reduced", deadline=plan.now + 9.0))
    plan.now += 0.5
    gone: list[PendingRequest] = []
    while len(line) > 1:
        departure = taken(line)
        assert 0 < len(departure.late) <= 2 * MOST_LATE
        gone += departure.late
        if departure.requests:
            break
    assert [each.retrieval.request_id for each in departure.requests] == ["in-time"]
    while len(line):
        gone += taken(line).late
    assert gone == expired


def test_deadlines_of_those_that_have_left_are_forgotten(make_line: MakeLine, plan: Now) -> None:
    line = make_line()
    waiting = request_of("waiting", deadline=plan.now + 0.5)
    push(line, waiting)
    for _ in range(10 * MOST_FORGOTTEN):
        request = request_of(deadline=plan.now + 3600.0)
        push(line, request)
        assert line.remove(request)
        assert len(line._deadlines) <= MOST_FORGOTTEN + 4
    plan.now += 0.5
    assert taken(line).late == (waiting,)


def test_who_has_less_time_than_is_needed_leaves_instead_of_starting(
    make_line: MakeLine, plan: Now
) -> None:
    plan.seconds = {4: 0.25, 2: 0.125, 1: 0.125}
    line = make_line()
    late = request_of("late", deadline=plan.now + 0.1)
    push(line, late, request_of("tight", deadline=plan.now + 0.3), request_of("free"))
    departure = taken(line)
    assert departure.late == (late,)
    assert [request.retrieval.request_id for request in departure.requests] == ["tight", "free"]


def test_the_place_of_a_late_one_in_a_batch_goes_to_the_next(
    make_line: MakeLine, plan: Now
) -> None:
    plan.seconds = dict.fromkeys(BUCKETS, 0.25)
    line = make_line()
    late = request_of("late", deadline=plan.now + 0.2)
    push(line, late, *(request_of(str(i)) for i in range(8)))
    departure = taken(line)
    assert departure.late == (late,)
    assert [request.retrieval.request_id for request in departure.requests] == list("0123456")


def test_a_batch_is_held_back_to_fill(make_line: MakeLine, plan: Now) -> None:
    line = make_line(max_wait_ms=250.0)
    push(line, *(request_of(str(i), arrived=plan.now) for i in range(6)))
    assert line._leaving(plan.now + 0.24) is None
    assert line._asleep_until == pytest.approx(plan.now + 0.25)
    push(line, request_of("6", arrived=plan.now))
    assert started(line) == tuple("0123456")
    push(line, request_of("7", arrived=plan.now), request_of("8", arrived=plan.now + 0.2))
    plan.now += 0.25
    assert started(line) == ("7", "8")


def test_no_batch_is_held_back_until_one_of_it_is_late(make_line: MakeLine, plan: Now) -> None:
    plan.seconds = {2: 0.125}
    line = make_line(max_wait_ms=250.0)
    push(line, request_of("0", arrived=plan.now))
    push(line, request_of("tight", arrived=plan.now, deadline=plan.now + 0.2))
    assert line._leaving(plan.now) is None
    assert line._asleep_until == pytest.approx(plan.now + 0.075)
    plan.now = line._asleep_until
    assert started(line) == ("0", "tight")


def test_a_closed_line_gives_out_the_rest_at_once(make_line: MakeLine, plan: Now) -> None:
    line = make_line(max_wait_ms=60_000.0)
    push(line, request_of("0", arrived=plan.now))
    line.close()
    assert started(line) == ("0",)
    assert line.take() is None


def test_an_abandoned_line_is_empty(make_line: MakeLine) -> None:
    line = make_line()
    waiting = request_of()
    push(line, waiting)
    line.abandon()
    assert not line.remove(waiting)
    assert line.take() is None


class Taker:
    """A thread that takes until the line ends."""

    def __init__(self, line: WaitingLine) -> None:
        self.got: list[Departure] = []
        self._line = line
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _take(self) -> None:
        while (departure := self._line.take()) is not None:
            self.got.append(departure)

    def wait_for(self, departures: int) -> None:
        wait_until(lambda: len(self.got) == departures)

    def end(self) -> None:
        self._line.close()
        self._thread.join(LONG)
        assert not self._thread.is_alive()


def test_a_sleeping_taker_wakes_for_a_request_a_changed_plan_and_a_displacement() -> None:
    plan = Now(forms=True)
    line = WaitingLine(BatchingConfig(max_waiting=1), BUCKETS, plan)
    taker = Taker(line)
    push(line, request_of())
    taker.wait_for(1)
    plan.forms = False
    push(line, request_of(priority="LOW"))
    push(line, request_of())
    taker.wait_for(2)
    plan.forms = True
    line.wake()
    taker.wait_for(3)
    assert [len(each.requests) for each in taker.got] == [1, 0, 1]
    assert [len(each.displaced) for each in taker.got] == [0, 1, 0]
    taker.end()


def test_a_sleeping_taker_wakes_when_a_deadline_passes_or_a_batch_was_held_long_enough() -> None:
    plan = Now(forms=False)
    line = WaitingLine(BatchingConfig(max_wait_ms=5.0), BUCKETS, plan)
    taker = Taker(line)
    now = request_of().arrived
    push(line, request_of(deadline=math.inf), request_of(deadline=now + 0.01))
    taker.wait_for(1)
    assert len(taker.got[0].late) == 1
    plan.forms = True
    line.wake()
    taker.wait_for(2)
    push(line, request_of())
    taker.wait_for(3)
    taker.end()
