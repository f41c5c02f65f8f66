"""Which requests wait, start, are refused and are too late: the scheduler under a test's clock."""

from contextlib import suppress

import pytest

from grace.server.errors import ServiceError
from grace.server.messages import PendingRequest
from grace.server.scheduling.controller import MOST_LATE
from grace.server.scheduling.feedback import Margin
from grace.server.scheduling.predictions import MIN_PATIENCE, REMEMBERED
from grace.server.scheduling.under_way import Place
from support.pipeline_cases import spans_of
from support.scheduler_desk import BUCKETS, Desk, failed, names_of


@pytest.fixture
def desk() -> Desk:
    return Desk()


ORDERS = {
    "a batch has the first to come, up to the largest bucket": ("012345678", "0123456 78"),
    "NORMAL requests go first, and LOW ones fill the free rows": ("abcdefghi01", "01abcde fghi"),
    "a batch has one profile, and others keep their places": ("01'23'4a'", "024 1'3'a'"),
    "LOW ones take no further rows while NORMAL ones wait": ("abcdefghi0123'", "012a 3' bcdefgh i"),
}


@pytest.mark.parametrize(("submitted", "leave"), ORDERS.values(), ids=ORDERS)
def test_requests_leave_in_order(desk: Desk, submitted: str, leave: str) -> None:
    desk.submit(submitted)
    assert desk.runs() == leave


DEADLINES = {
    "LOW ones make no NORMAL one late": ("abcdef0@350", "0abc def"),
    "a late LOW one keeps no row from those after it": ("a@50 b@150 c012", "-a 012c b"),
    "a batch is made smaller for a request with little time": ("01@900 2@250", "12 0"),
    "but not if the rest had no time for a full batch first": ("0@250 1@550 2@550", "-0 12"),
    "nor if half of the largest batch waits": ("0@250 1@9000 2@9000 3@9000", "-0 123"),
    "a late request leaves its row to the next": ("0@50 12345678", "-0 1234567 8"),
}


@pytest.mark.parametrize(("submitted", "leave"), DEADLINES.values(), ids=DEADLINES)
def test_deadlines_decide_who_starts(desk: Desk, submitted: str, leave: str) -> None:
    desk.submit(submitted)
    desk.learn({1: 0.1, 2: 0.2, 4: 0.3, 7: 0.4})  # unknown before, so that no request was refused
    assert desk.runs() == leave


def test_refusals_have_one_text_and_their_numbers_in_trailers(desk: Desk) -> None:
    desk.learn({1: 0.25})
    refused = [desk.refusal(request) for request in ("0@110", "1@249")]
    assert len({error.text for error in refused}) == 1
    assert [error.trailers for error in refused] == [
        (
            ("grace-reason", "deadline_unmeetable"),
            ("grace-deadline-left-ms", left),
            ("grace-predicted-ms", "250"),
        )
        for left in ("110", "249")
    ]


def test_the_reason_distinguishes_requests_that_waited_in_vain_from_those_that_did_not_wait(
    desk: Desk,
) -> None:
    desk.submit("0@200 1@900")
    desk.learn({1: 0.25, 2: 0.25, 4: 0.25})
    assert desk.refusal("2@200").reason == "deadline_unmeetable"
    assert failed(desk.scheduler.poll()) == {"0": "deadline_exceeded"}


def test_a_full_queue_refuses_and_says_when_it_will_have_been_worked_off() -> None:
    desk = Desk(max_waiting=9)
    desk.learn({1: 0.5, 2: 0.5, 7: 0.5})
    desk.occupies("XXXXXXX")
    desk.submit("012345678")
    for request in "9", "a":
        refused = desk.refusal(request)
        assert refused.reason == "queue_full"
        assert refused.retry_seconds == pytest.approx(2.0)  # two under way, two of the queue
    assert (desk.scheduler.waiting, desk.scheduler.in_flight) == (9, 23)


def test_a_cancelled_request_leaves_the_queue_at_once() -> None:
    desk = Desk(max_waiting=3)
    requests = desk.submit("012")
    assert desk.scheduler.cancel(requests[1])
    assert not desk.scheduler.cancel(requests[1])
    desk.submit("3")
    assert desk.runs() == "023"
    assert not desk.scheduler.cancel(requests[0])
    assert (desk.scheduler.waiting, desk.scheduler.in_flight) == (0, 0)


def test_a_request_is_refused_by_what_goes_before_it(desk: Desk) -> None:
    desk.learn({1: 1.0, 2: 2.0, 4: 4.0, 7: 7.0})
    desk.learn({1: 10.0, 2: 20.0}, "reduced")
    desk.submit("0123'a")
    # It waits for the other profile's batch, and then for a batch with its own profile's requests.
    assert desk.needed() == 14.0
    assert desk.needed("X'@0.001") == 24.0
    for request in "X@13900", "x@16900":
        assert desk.refusal(request).reason == "deadline_unmeetable"
    desk.submit("4@14100 567")
    assert desk.needed() == 18.0  # a full batch goes before it


@pytest.mark.parametrize("seconds", [(4.0, 1.0, 1.0), (1.0, 4.0, 1.0), (1.0, 1.0, 4.0)])
def test_batches_one_after_the_other_take_as_long_as_their_slowest_stage(
    desk: Desk, seconds: tuple[float, float, float]
) -> None:
    for bucket in BUCKETS:
        desk.predictions.observe("full", bucket, spans_of(*seconds))
    desk.submit("01234567890123")
    assert desk.needed() == 3 * 4.0 + 2 * 1.0


def test_a_few_slow_batches_change_no_prediction_and_a_few_more_do(desk: Desk) -> None:
    for _ in range(REMEMBERED):
        desk.learn({1: 0.1})
    for slow in range(1, REMEMBERED // 2 + 2):
        desk.learn({1: 60.0})
        assert desk.needed() == (0.1 if slow <= REMEMBERED // 2 else 60.0)


def test_a_prediction_far_too_high_does_not_refuse_for_ever(desk: Desk) -> None:
    for _ in range(REMEMBERED):
        desk.learn({1: 1000.0})
    begin = desk.clock.now
    while not desk.scheduler.waiting:
        desk.clock.now += 0.5
        with suppress(ServiceError):
            desk.submit("0@250")
    assert 0.5 < desk.clock.now - begin <= 10.5
    desk.scheduler.end((), desk.forms(), spans_of(0.0, 0.125, 0.0))
    assert desk.needed() == 0.125


def test_a_prediction_that_no_batch_confirms_refuses_only_what_the_work_ahead_refuses(
    desk: Desk,
) -> None:
    for _ in range(9):
        desk.learn({1: 0.25, 7: 0.25})
        desk.clock.now += 0.9 * MIN_PATIENCE
        assert desk.refusal("0@200").reason == "deadline_unmeetable"
    desk.occupies("XXXXXXX")
    desk.clock.now += 3600.0
    assert desk.refusal("0@200").reason == "deadline_unmeetable"  # 0.25 s are ahead of it
    desk.submit("0@300")


def test_expired_requests_leave_even_while_no_batch_may_form(desk: Desk) -> None:
    prepared = desk.occupies()
    desk.submit("0 1@500 2@9000")
    desk.clock.now += 0.5
    assert desk.runs() == "-1"
    desk.scheduler.end((), prepared)
    assert desk.runs() == "02"


@pytest.mark.parametrize(("late", "margin"), [("ab", 0.0), ("01", 0.16)])
def test_normal_requests_that_wait_in_vain_raise_the_margin_and_low_ones_do_not(
    late: str, margin: float, desk: Desk
) -> None:
    prepared = desk.occupies()
    desk.submit(f"{late[0]}@500 {late[1]}@500")
    desk.clock.now += 0.5
    assert desk.runs() == f"-{late[0]} -{late[1]}"
    desk.ends(prepared)
    assert desk.scheduler.margin == pytest.approx(margin, abs=0.01)


@pytest.mark.parametrize(("gone", "share"), [(False, 0.95), (True, 0.9)])
def test_an_answer_is_late_a_little_before_the_deadline_and_earlier_for_a_caller_who_has_gone(
    gone: bool, share: float, desk: Desk
) -> None:
    for seconds, late in ((share - 0.001, False), (share + 0.001, True)):
        (request,) = desk.submit("0@1000")
        batch = desk.forms()
        assert not (gone and desk.scheduler.cancel(request))
        desk.clock.now += seconds
        desk.ends(batch)
        assert (desk.scheduler.margin > 0) == late


def test_the_margin_rises_to_its_bound_and_falls_with_answers_in_time_and_with_time(
    desk: Desk,
) -> None:
    for _ in range(9):
        desk.submit("0@1000")
        batch = desk.forms()
        desk.clock.now += 1.0
        desk.ends(batch)
    assert desk.scheduler.margin == Margin.MOST
    desk.clock.now += Margin.HALF_LIFE
    assert desk.scheduler.margin == pytest.approx(Margin.MOST / 2)
    desk.submit("0@1000 1")
    desk.ends(desk.forms())
    assert 0 < desk.scheduler.margin < Margin.MOST / 2


def test_many_late_requests_leave_some_at_a_time_and_delay_no_batch() -> None:
    desk = Desk(max_waiting=1000)
    late = desk.submit("0@500 " * (3 * MOST_LATE))
    desk.submit("1'@9000")
    desk.clock.now += 0.5
    gone: list[PendingRequest] = []
    batches = []
    while (departure := desk.scheduler.poll()) is not None:
        assert len(departure.failures) <= 2 * MOST_LATE
        gone += [each.request for each in departure.failures]
        batches.append(departure.batch and names_of(departure.batch.requests))
    assert batches == [None, ["1'"]]
    assert gone == late


def test_a_batch_is_held_back_to_fill() -> None:
    desk = Desk(max_wait_ms=250.0)
    desk.submit("012345")
    desk.clock.now += 0.24
    assert desk.runs() == ""
    desk.submit("6")
    assert desk.runs() == "0123456"
    desk.submit("7")
    desk.clock.now += 0.2
    desk.submit("8")
    assert desk.runs() == ""
    desk.clock.now += 0.05
    assert desk.runs() == "78"


def test_a_batch_is_not_held_back_until_one_of_it_is_late() -> None:
    desk = Desk(max_wait_ms=250.0)
    desk.learn({2: 0.125})
    desk.submit("0 1@250")
    desk.clock.now += 0.09
    assert desk.runs() == ""
    desk.clock.now += 0.02
    assert desk.runs() == "01"


def test_a_closed_scheduler_takes_nothing_and_holds_nothing_back() -> None:
    desk = Desk(max_wait_ms=60_000.0)
    desk.submit("0")
    desk.scheduler.close()
    assert desk.refusal("1").reason == "draining"
    assert desk.runs() == "0"
    assert desk.scheduler.next_batch() is None


def test_one_batch_is_prepared_ahead_of_generate_and_no_more(desk: Desk) -> None:
    second = desk.occupies()
    desk.submit("0")
    assert desk.scheduler.poll() is None
    desk.scheduler.advance(second, Place.QUEUED)  # the device has not begun it
    assert desk.scheduler.poll() is None


def test_no_batch_forms_while_a_generated_one_waits_for_post(desk: Desk) -> None:
    scheduler = desk.scheduler
    desk.submit("0")
    first = desk.forms()
    desk.submit("1")
    for place in (Place.QUEUED, Place.GENERATED):
        scheduler.advance(first, place)
    assert scheduler.poll() is None
    scheduler.advance(first, Place.POST)
    second = desk.forms()
    desk.submit("2")
    for place in (Place.QUEUED, Place.GENERATED):
        scheduler.advance(second, place)
    desk.ends(first)
    assert scheduler.poll() is None
    scheduler.advance(second, Place.POST)
    assert desk.runs() == "2"


@pytest.mark.parametrize("how", ["cancelled", "expired"])
def test_a_queue_that_empties_without_a_batch_ends_the_degradation(how: str) -> None:
    desk = Desk(full=("reduced",))
    desk.learn(dict.fromkeys(BUCKETS, 0.1))
    waiting = desk.submit("0@9000 " * 36)
    for _ in range(2):
        desk.ends(desk.forms())
        desk.clock.now += 0.13
    waiting += desk.submit("1@9000")
    assert waiting[-1].degraded
    if how == "cancelled":
        assert sum(map(desk.scheduler.cancel, waiting)) == 23
    desk.clock.now += 60.0
    assert desk.runs() == ("" if how == "cancelled" else "-0 -1")
    desk.clock.now += 60.0
    assert not any(each.degraded for each in desk.submit("0123456789"))
    desk.forms()
    assert not desk.submit("Z")[0].degraded, "a new queue must last before it counts"


def test_the_work_ahead_shrinks_while_generate_works(desk: Desk) -> None:
    desk.learn({1: 0.5, 7: 0.5})
    prepared = desk.occupies("XXXXXXX")
    assert desk.needed() == 1.5
    desk.clock.now += 0.125
    assert desk.needed() == 1.375
    assert desk.refusal("0@1300").reason == "deadline_unmeetable"
    desk.scheduler.cancel(*desk.submit("0@1400"))
    desk.clock.now += 99.0  # longer than predicted: generate may end at any moment
    assert desk.needed() == 1.0
    desk.scheduler.advance(prepared, Place.QUEUED)
    assert desk.needed() == 1.0


def test_a_batch_counts_until_post_has_ended_it(desk: Desk) -> None:
    desk.predictions.observe("full", 1, spans_of(0.25, 0.5, 2.0))
    desk.submit("0")
    first = desk.forms()
    assert desk.needed() == 4.75  # post of the first, then of the next
    desk.clock.now += 0.25
    for place in (Place.QUEUED, Place.GENERATED, Place.POST):
        desk.scheduler.advance(first, place)
    desk.clock.now += 0.5
    assert desk.needed() == 3.5
    desk.scheduler.end((), first, spans_of(0.25, 0.5, 1.0))  # and is learned from
    assert desk.needed() == 1.75


def test_a_batch_is_unwanted_once_all_of_it_is_cancelled_or_expired(desk: Desk) -> None:
    cancelled, _ = desk.submit("01@500")
    batch = desk.forms()
    assert desk.scheduler.unwanted(batch.requests) == []
    assert not desk.scheduler.cancel(cancelled)
    assert desk.scheduler.unwanted(batch.requests) == []
    desk.clock.now += 0.5
    failures = desk.scheduler.unwanted(batch.requests)
    assert [each.error.reason for each in failures] == ["cancelled", "deadline_exceeded"]
