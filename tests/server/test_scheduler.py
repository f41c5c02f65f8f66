"""Which requests wait, start, are refused and are too late: the scheduler under a test's clock."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from grace.server.errors import MAX_RETRY_SECONDS, MIN_RETRY_SECONDS, ServiceError, queue_full
from grace.server.messages import PendingRequest, Span
from grace.server.scheduling.controller import MOST_LATE
from grace.server.scheduling.feedback import HeadStart, Margin
from grace.server.scheduling.predictions import MIN_PATIENCE, REMEMBERED, Prediction
from support.scheduler_desk import BUCKETS, Desk, names_of

READ: Mapping[str, Any] = yaml.safe_load(
    Path(__file__).with_name("scheduler_stories.yaml").read_text(encoding="utf-8")
)


def who_leaves(learned: str, cases: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Return stories. They learn times after they submit, so that no request is refused."""
    learn = f"learn {learned}; " if learned else ""
    return {name: f"submit {given}; {learn}leave {left}" for name, (given, left) in cases.items()}


STORIES = READ["stories"]
for learned, cases in READ["leaves"].items():
    STORIES |= who_leaves(learned, cases)
LATER = "what waited to fill does not let later batches form earlier"
HELD = READ["held"] | {
    LATER: (
        "learn_stages 0.1 0.5 0;"
        + 30 * "submit 0; stay; wait 0.25; form; answer 0.1 0.5 0; wait 10;"
        + "submit X; stay; wait 0.25; form; go QUEUED; submit 1; wait 0.39; stay; wait 0.01; form 1"
    ),
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_the_scheduler(story: str) -> None:
    Desk().plays(story)


@pytest.mark.parametrize("story", HELD.values(), ids=HELD)
def test_with_a_wait_of_250_ms(story: str) -> None:
    Desk(max_wait_ms=250.0).plays(story)


def test_refusals_have_one_text_and_their_numbers_in_trailers() -> None:
    desk = Desk()
    desk.plays("learn 1:0.25")
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


def test_a_full_queue_refuses_and_says_when_it_will_have_been_worked_off() -> None:
    desk = Desk(max_waiting=9)
    desk.plays("learn 1:0.5 2:0.5 7:0.5; occupy XXXXXXX; submit 012345678")
    for request in "9", "a":
        refused = desk.refusal(request)
        assert refused.reason == "queue_full"
        assert refused.retry_seconds == pytest.approx(2.0)  # two under way, two of the queue
    assert (desk.scheduler.waiting, desk.scheduler.in_flight) == (9, 23)


@pytest.mark.parametrize(
    ("seconds", "advised"),
    [(0.0, MIN_RETRY_SECONDS), (0.25, 0.25), (1e9, MAX_RETRY_SECONDS), (float("inf"), 10.0)],
)
def test_the_advice_to_try_again_is_neither_at_once_nor_in_hours(
    seconds: float, advised: float
) -> None:
    trailers = dict(queue_full(9, seconds).trailers)
    assert trailers["grpc-retry-pushback-ms"] == str(round(1000 * advised))


def test_a_few_slow_batches_change_no_prediction_and_a_few_more_do() -> None:
    desk = Desk()
    desk.learn(*["1:0.1"] * REMEMBERED)
    for slow in range(1, REMEMBERED // 2 + 2):
        desk.plays(f"learn 1:60; need {0.1 if slow <= REMEMBERED // 2 else 60.0}")


def test_a_prediction_far_too_high_does_not_refuse_for_ever() -> None:
    desk = Desk()
    desk.learn(*["1:1000"] * REMEMBERED)
    begin = desk.clock.now
    while not desk.scheduler.waiting:
        desk.clock.now += 0.5
        with suppress(ServiceError):
            desk.submit("0@250")
    assert 0.5 < desk.clock.now - begin <= 10.5
    desk.plays("form; answer 0 0.125 0; need 0.125")


def test_a_prediction_that_no_batch_confirms_refuses_only_what_the_work_ahead_refuses() -> None:
    desk = Desk()
    for _ in range(9):
        desk.plays(f"learn 1:0.25 7:0.25; wait {0.9 * MIN_PATIENCE}; refuse 0@200")
    desk.plays("occupy XXXXXXX; wait 3600; refuse 0@200; submit 0@300")  # 0.25 s are ahead of it


@pytest.mark.parametrize(("one", "other", "margin"), [("a", "b", 0.0), ("0", "1", 0.16)])
def test_normal_requests_that_wait_in_vain_raise_the_margin_and_low_ones_do_not(
    one: str, other: str, margin: float
) -> None:
    desk = Desk()
    desk.plays(f"occupy; submit {one}@500 {other}@500; wait 0.5; leave -{one} -{other}; end")
    assert desk.scheduler.margin == pytest.approx(margin, abs=0.01)


@pytest.mark.parametrize(("gone", "share"), [(False, 0.95), (True, 0.9)])
def test_an_answer_is_late_a_little_before_the_deadline_and_earlier_for_a_caller_who_has_gone(
    gone: bool, share: float
) -> None:
    desk = Desk()
    for seconds, late in ((share - 0.001, False), (share + 0.001, True)):
        desk.plays("submit 0@1000; form" + ("; cancel 0 False" if gone else ""))
        desk.plays(f"wait {seconds}; end")
        assert (desk.scheduler.margin > 0) == late


def test_the_margin_rises_to_its_bound_and_falls_with_answers_in_time_and_with_time() -> None:
    desk = Desk()
    desk.plays("; ".join(["submit 0@1000; form; wait 1; end"] * 9))
    assert desk.scheduler.margin == Margin.MOST
    desk.clock.now += Margin.HALF_LIFE
    assert desk.scheduler.margin == pytest.approx(Margin.MOST / 2)
    desk.plays("submit 0@1000 1; form; end")
    assert 0 < desk.scheduler.margin < Margin.MOST / 2


def test_many_late_requests_leave_some_at_a_time_and_delay_no_batch() -> None:
    desk = Desk(max_waiting=1000)
    late = desk.submit("0@500 " * (3 * MOST_LATE))
    desk.plays("submit 1'@9000; wait 0.5")
    gone: list[PendingRequest] = []
    batches = []
    while (departure := desk.scheduler.poll()) is not None:
        assert len(departure.failures) <= 2 * MOST_LATE
        gone += [each.request for each in departure.failures]
        batches.append(names_of(departure.batch.requests if departure.batch else ()))
    assert batches == [[], ["1'"]]
    assert gone == late


@pytest.mark.parametrize("how", ["cancelled", "expired"])
def test_a_queue_that_empties_without_a_batch_ends_the_degradation(how: str) -> None:
    desk = Desk(full=("reduced",))
    desk.learn(*[f"{bucket}:0.1" for bucket in BUCKETS])
    waiting = desk.submit("0@9000 " * 36)
    desk.plays("form; end; wait 0.13; form; end; wait 0.13")
    waiting += desk.submit("1@9000")
    assert waiting[-1].degraded
    if how == "cancelled":
        assert sum(map(desk.scheduler.cancel, waiting)) == 23
    desk.plays("wait 60; leave" + ("" if how == "cancelled" else " -0" * 22 + " -1") + "; wait 60")
    assert not any(each.degraded for each in desk.submit("0123456789"))
    desk.form()
    assert not desk.submit("Z")[0].degraded, "a new queue must last before it counts"


def test_a_batch_is_unwanted_once_all_of_it_is_cancelled_or_expired() -> None:
    desk = Desk()
    desk.submit("01@500")
    batch = desk.form()
    assert desk.scheduler.unwanted(batch.requests) == []
    desk.cancel("0", "False")
    assert desk.scheduler.unwanted(batch.requests) == []
    desk.clock.now += 0.5
    failures = desk.scheduler.unwanted(batch.requests)
    assert [each.error.reason for each in failures] == ["cancelled", "deadline_exceeded"]


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
