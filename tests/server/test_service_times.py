"""What is predicted from the batches before, and how a wrong prediction ends."""

from dataclasses import dataclass

import pytest

from server.service_times import MIN_PATIENCE, REMEMBERED, ServiceTimes, WorkAhead
from support.pipeline_cases import request_batch, request_of, spans_of


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def times(clock: Clock) -> ServiceTimes:
    return ServiceTimes(clock)


@pytest.fixture
def work(times: ServiceTimes, clock: Clock) -> WorkAhead:
    return WorkAhead(times, clock)


def test_what_was_never_observed_takes_no_time_and_refuses_nobody(times: ServiceTimes) -> None:
    times.observe("full", 4, spans_of(1.0, 2.0, 3.0))
    assert times.predict("full", 2).total == 0.0
    assert times.predict("reduced", 4).total == 0.0
    assert not times.too_late("full", 2, ahead=0.0, left=1e-6)


def test_a_prediction_is_the_time_in_stages_without_the_gaps(times: ServiceTimes) -> None:
    times.observe("full", 4, spans_of(0.25, 0.5, 0.125))
    got = times.predict("full", 4)
    assert (got.before, got.generate, got.after) == pytest.approx((0.25, 0.5, 0.125))
    assert got.total == pytest.approx(0.875)


def test_the_stages_before_generate_hide_behind_the_work_ahead(times: ServiceTimes) -> None:
    times.observe("full", 4, spans_of(0.25, 0.5, 0.125))
    got = times.predict("full", 4)
    assert got.end_behind(0.0) == pytest.approx(0.875)
    assert got.end_behind(0.2) == pytest.approx(0.875)
    assert got.end_behind(0.75) == pytest.approx(1.375)


def test_outliers_move_nothing_and_a_new_pace_is_learned_in_a_few_batches(
    times: ServiceTimes,
) -> None:
    for _ in range(REMEMBERED):
        times.observe("full", 1, spans_of(0.0, 0.1, 0.0))
    for _ in range(REMEMBERED // 2):
        times.observe("full", 1, spans_of(0.0, 60.0, 0.0))
    assert times.predict("full", 1).generate == pytest.approx(0.1)
    times.observe("full", 1, spans_of(0.0, 60.0, 0.0))
    assert times.predict("full", 1).generate == pytest.approx(60.0)


def test_too_little_time_is_refused_and_enough_is_not(times: ServiceTimes) -> None:
    times.observe("full", 4, spans_of(0.25, 0.5, 0.125))
    assert times.too_late("full", 4, ahead=0.0, left=0.87)
    assert not times.too_late("full", 4, ahead=0.0, left=0.88)
    assert times.too_late("full", 4, ahead=1.0, left=1.62)
    assert not times.too_late("full", 4, ahead=1.0, left=1.63)
    assert times.too_late("full", 2, ahead=0.0, left=0.0)


def test_a_prediction_far_too_high_does_not_refuse_for_ever(
    times: ServiceTimes, clock: Clock
) -> None:
    for _ in range(REMEMBERED):
        times.observe("full", 1, spans_of(0.0, 1000.0, 0.0))
    begin, tries = clock.now, 0
    while times.too_late("full", 1, ahead=0.0, left=0.25):
        clock.now += 0.5
        tries += 1
    assert clock.now - begin <= 10.5
    assert tries > 1
    # The request that it let in ran, and took much less.
    times.observe("full", 1, spans_of(0.0, 0.125, 0.0))
    assert times.predict("full", 1).generate == pytest.approx(0.125)
    assert not times.too_late("full", 1, ahead=0.0, left=0.25)


def test_a_right_prediction_survives_an_idle_hour_for_whom_it_does_not_refuse(
    times: ServiceTimes, clock: Clock
) -> None:
    times.observe("full", 1, spans_of(0.0, 0.125, 0.0))
    clock.now += 3600
    assert not times.too_late("full", 1, ahead=0.0, left=0.25)
    assert times.predict("full", 1).generate == pytest.approx(0.125)


def test_a_doubtful_prediction_is_no_way_past_the_work_ahead(
    times: ServiceTimes, clock: Clock
) -> None:
    times.observe("full", 1, spans_of(0.0, 0.125, 0.0))
    clock.now += 3600
    assert times.too_late("full", 1, ahead=0.3, left=0.25)
    assert times.predict("full", 1).generate == pytest.approx(0.125)


def test_a_confirmed_prediction_goes_on_refusing(times: ServiceTimes, clock: Clock) -> None:
    for _ in range(50):
        times.observe("full", 1, spans_of(0.0, 0.5, 0.0))
        clock.now += 0.9 * MIN_PATIENCE
        assert times.too_late("full", 1, ahead=0.0, left=0.4)


def test_waiting_requests_take_full_batches_and_a_rest(times: ServiceTimes) -> None:
    times.observe("full", 4, spans_of(9.0, 0.5, 9.0))
    times.observe("full", 2, spans_of(9.0, 0.25, 9.0))
    times.observe("reduced", 1, spans_of(9.0, 0.125, 9.0))
    assert times.generate_seconds({}, (1, 2, 4)) == 0.0
    assert times.generate_seconds({"full": 8}, (1, 2, 4)) == pytest.approx(1.0)
    waiting = {"full": 6, "reduced": 1}
    assert times.generate_seconds(waiting, (1, 2, 4)) == pytest.approx(0.875)


def test_one_batch_is_prepared_ahead_and_no_more(work: WorkAhead) -> None:
    first, second = request_batch(request_of()), request_batch(request_of())
    assert work.may_form()
    work.formed(first)
    assert not work.may_form()
    work.taken(first)
    assert work.may_form()
    work.formed(second)
    assert not work.may_form()
    assert work.ended(first)
    assert not work.may_form()
    work.taken(second)
    assert work.may_form()


def test_where_generate_takes_ahead_of_the_device_a_batch_counts_until_its_turn(
    work: WorkAhead,
) -> None:
    first, second = request_batch(request_of()), request_batch(request_of())
    for batch in (first, second):
        work.formed(batch)
        work.taken(batch)
    assert not work.may_form()
    work.ended(first)
    assert work.may_form()


def test_a_batch_that_ends_early_frees_its_place_once(work: WorkAhead) -> None:
    batch = request_batch(request_of())
    work.formed(batch)
    assert work.ended(batch)
    assert work.may_form()
    assert not work.ended(batch)


def test_the_work_ahead_shrinks_while_generate_works(
    work: WorkAhead, times: ServiceTimes, clock: Clock
) -> None:
    times.observe("full", 4, spans_of(0.0, 0.5, 0.0))
    first, second = request_batch(request_of()), request_batch(request_of())
    work.formed(first)
    work.taken(first)
    work.formed(second)
    assert work.seconds() == pytest.approx(1.0)
    clock.now += 0.125
    assert work.seconds() == pytest.approx(0.875)
    assert work.seconds_until_form() == pytest.approx(0.375)
    assert work.needed("full", 4) == pytest.approx(1.375)
    assert work.too_late("full", 4, left=1.3)
    assert not work.too_late("full", 4, left=1.4)
    assert work.too_late("full", 4, left=1.4, others=0.25)
    clock.now += 99.0  # longer than predicted: it may end at any moment
    assert work.seconds() == pytest.approx(0.5)
    work.ended(first)
    work.taken(second)
    assert work.seconds() == pytest.approx(0.5)
    assert work.seconds_until_form() == 0.0
