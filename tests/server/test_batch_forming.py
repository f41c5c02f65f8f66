"""How large a batch is, and when it forms while generate works on another."""

from collections.abc import Sequence

import pytest

from grace.server.messages import Span
from grace.server.scheduling.head_start import HeadStart
from grace.server.scheduling.predictions import Prediction
from grace.server.scheduling.under_way import BatchUnderWay, Place
from support.pipeline_cases import spans_of
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
