"""What is predicted from the batches before, and how a wrong prediction ends."""

import pytest

from grace.server.scheduling.service_times import (
    MIN_PATIENCE,
    REMEMBERED,
    Horizon,
    Prediction,
    ServiceTimes,
)
from support.pipeline_cases import Clock, spans_of

IDLE = Horizon()


def test_what_was_never_observed_takes_no_time_and_refuses_nobody(times: ServiceTimes) -> None:
    times.observe("full", 4, spans_of(1.0, 2.0, 3.0))
    assert times.predict("full", 2).total == 0.0
    assert times.predict("reduced", 4).total == 0.0
    assert not times.too_late("full", 2, ahead=IDLE, left=1e-6)


def test_a_prediction_is_the_time_in_stages_without_the_gaps(times: ServiceTimes) -> None:
    times.observe("full", 4, spans_of(0.25, 0.5, 0.125))
    got = times.predict("full", 4)
    assert (got.before, got.generate, got.after) == pytest.approx((0.25, 0.5, 0.125))
    assert got.total == pytest.approx(0.875)


def test_the_stages_before_generate_hide_behind_the_work_ahead() -> None:
    batch = Prediction(0.25, 0.5, 0.125)
    assert Horizon().behind(batch).after == pytest.approx(0.875)
    assert Horizon(generate=0.2, after=0.3).behind(batch).after == pytest.approx(0.875)
    assert Horizon(generate=0.75, after=0.875).behind(batch).after == pytest.approx(1.375)


def test_a_batch_waits_for_post_where_post_is_behind() -> None:
    batch = Prediction(0.25, 0.5, 0.125)
    assert Horizon(generate=0.75, after=5.0).behind(batch).after == pytest.approx(5.125)


@pytest.mark.parametrize("ahead", [Horizon(), Horizon(0.5, 0.75, 4.0), Horizon(0.0, 3.0, 3.125)])
@pytest.mark.parametrize(
    "batch", [Prediction(4.0, 1.0, 2.0), Prediction(1.0, 4.0, 2.0), Prediction(2.0, 1.0, 4.0)]
)
def test_many_batches_take_as_long_as_one_behind_the_other(
    ahead: Horizon, batch: Prediction
) -> None:
    assert ahead.behind(batch, 0) == ahead
    one_by_one = ahead
    for _ in range(7):
        one_by_one = one_by_one.behind(batch)
    assert ahead.behind(batch, 7) == one_by_one


def test_one_outlier_soon_after_start_refuses_nobody(times: ServiceTimes) -> None:
    times.observe("full", 1, spans_of(0.0, 0.02, 0.0))
    times.observe("full", 1, spans_of(0.0, 4.0, 0.0))
    assert times.predict("full", 1).generate == pytest.approx(0.02)


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
    assert times.too_late("full", 4, ahead=IDLE, left=0.87)
    assert not times.too_late("full", 4, ahead=IDLE, left=0.88)
    assert times.too_late("full", 4, ahead=Horizon(generate=1.0), left=1.62)
    assert not times.too_late("full", 4, ahead=Horizon(generate=1.0), left=1.63)
    assert times.too_late("full", 2, ahead=IDLE, left=0.0)


def test_a_prediction_far_too_high_does_not_refuse_for_ever(
    times: ServiceTimes, clock: Clock
) -> None:
    for _ in range(REMEMBERED):
        times.observe("full", 1, spans_of(0.0, 1000.0, 0.0))
    begin, tries = clock.now, 0
    while times.too_late("full", 1, ahead=IDLE, left=0.25):
        clock.now += 0.5
        tries += 1
    assert clock.now - begin <= 10.5
    assert tries > 1
    # The request that it let in ran, and took much less.
    times.observe("full", 1, spans_of(0.0, 0.125, 0.0))
    assert times.predict("full", 1).generate == pytest.approx(0.125)
    assert not times.too_late("full", 1, ahead=IDLE, left=0.25)


def test_a_right_prediction_survives_an_idle_hour_for_whom_it_does_not_refuse(
    times: ServiceTimes, clock: Clock
) -> None:
    times.observe("full", 1, spans_of(0.0, 0.125, 0.0))
    clock.now += 3600
    assert not times.too_late("full", 1, ahead=IDLE, left=0.25)
    assert times.predict("full", 1).generate == pytest.approx(0.125)


def test_a_doubtful_prediction_is_no_way_past_the_work_ahead(
    times: ServiceTimes, clock: Clock
) -> None:
    times.observe("full", 1, spans_of(0.0, 0.125, 0.0))
    clock.now += 3600
    assert times.too_late("full", 1, ahead=Horizon(generate=0.3, after=0.3), left=0.25)
    assert times.predict("full", 1).generate == pytest.approx(0.125)


def test_a_confirmed_prediction_goes_on_refusing(times: ServiceTimes, clock: Clock) -> None:
    for _ in range(50):
        times.observe("full", 1, spans_of(0.0, 0.5, 0.0))
        clock.now += 0.9 * MIN_PATIENCE
        assert times.too_late("full", 1, ahead=IDLE, left=0.4)


def test_waiting_requests_take_full_batches_and_a_rest(times: ServiceTimes) -> None:
    times.observe("full", 4, spans_of(0.0, 0.5, 0.0))
    times.observe("full", 2, spans_of(0.0, 0.25, 0.0))
    times.observe("reduced", 1, spans_of(0.0, 0.125, 9.0))
    assert times.behind(IDLE, {"full": 0}, (1, 2, 4)) == IDLE
    assert times.behind(IDLE, {"full": 8}, (1, 2, 4)).after == pytest.approx(1.0)
    behind = times.behind(IDLE, {"full": 6, "reduced": 1}, (1, 2, 4))
    assert behind.generate == pytest.approx(0.875)
    assert behind.after == pytest.approx(9.875)
