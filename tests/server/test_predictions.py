"""How long batches take, by earlier ones, and by how much admission exceeds that."""

import math

import pytest

from grace.server.messages import RequestState
from grace.server.scheduling.margin import (
    GAIN,
    HALF_LIFE,
    MAX_MARGIN,
    TARGET_SHARE,
    Margin,
    is_late,
)
from grace.server.scheduling.predictions import (
    MIN_PATIENCE,
    REMEMBERED,
    Backlog,
    Prediction,
    Predictions,
)
from support.pipeline_cases import Clock, request_of, spans_of

IDLE = Backlog()


def test_a_prediction_is_the_work_of_the_stages_without_the_gaps(predictions: Predictions) -> None:
    predictions.observe("full", 4, spans_of(0.25, 0.5, 0.125))
    got = predictions.predict("full", 4)
    assert (got.before, got.generate, got.after) == pytest.approx((0.25, 0.5, 0.125))
    assert got.total == pytest.approx(0.875)


def test_the_stages_before_generate_run_while_the_batches_ahead_are_generated() -> None:
    batch = Prediction(0.25, 0.5, 0.125)
    assert Backlog().then(batch).after == pytest.approx(0.875)
    assert Backlog(generate=0.2, after=0.3).then(batch).after == pytest.approx(0.875)
    assert Backlog(generate=0.75, after=0.875).then(batch).after == pytest.approx(1.375)


@pytest.mark.parametrize("ahead", [Backlog(), Backlog(0.5, 0.75, 4.0), Backlog(0.0, 3.0, 3.125)])
@pytest.mark.parametrize(
    "batch", [Prediction(4.0, 1.0, 2.0), Prediction(1.0, 4.0, 2.0), Prediction(2.0, 1.0, 4.0)]
)
def test_n_batches_at_once_take_as_long_as_one_after_the_other(
    ahead: Backlog, batch: Prediction
) -> None:
    assert ahead.then(batch, 0) == ahead
    one_by_one = ahead
    for _ in range(7):
        one_by_one = one_by_one.then(batch)
    assert ahead.then(batch, 7) == one_by_one


def test_a_few_slow_batches_change_nothing_and_a_few_more_are_a_new_pace(
    predictions: Predictions,
) -> None:
    for _ in range(REMEMBERED):
        predictions.observe("full", 1, spans_of(0.0, 0.1, 0.0))
    for _ in range(REMEMBERED // 2):
        predictions.observe("full", 1, spans_of(0.0, 60.0, 0.0))
    assert predictions.predict("full", 1).generate == pytest.approx(0.1)
    predictions.observe("full", 1, spans_of(0.0, 60.0, 0.0))
    assert predictions.predict("full", 1).generate == pytest.approx(60.0)


def test_a_prediction_far_too_high_does_not_refuse_for_ever(
    predictions: Predictions, clock: Clock
) -> None:
    for _ in range(REMEMBERED):
        predictions.observe("full", 1, spans_of(0.0, 1000.0, 0.0))
    begin, tries = clock.now, 0
    while predictions.too_late("full", 1, backlog=IDLE, left=0.25):
        clock.now += 0.5
        tries += 1
    assert clock.now - begin <= 10.5
    assert tries > 1
    # The request that it let in ran, and took much less.
    predictions.observe("full", 1, spans_of(0.0, 0.125, 0.0))
    assert predictions.predict("full", 1).generate == pytest.approx(0.125)
    assert not predictions.too_late("full", 1, backlog=IDLE, left=0.25)


def test_a_doubtful_prediction_lets_no_request_past_the_work_ahead(
    predictions: Predictions, clock: Clock
) -> None:
    predictions.observe("full", 1, spans_of(0.0, 0.125, 0.0))
    clock.now += 3600
    assert predictions.too_late("full", 1, backlog=Backlog(generate=0.3, after=0.3), left=0.25)
    assert predictions.predict("full", 1).generate == pytest.approx(0.125)


def test_a_confirmed_prediction_goes_on_refusing(predictions: Predictions, clock: Clock) -> None:
    for _ in range(50):
        predictions.observe("full", 1, spans_of(0.0, 0.5, 0.0))
        clock.now += 0.9 * MIN_PATIENCE
        assert predictions.too_late("full", 1, backlog=IDLE, left=0.4)


def test_waiting_requests_take_full_batches_and_a_rest(predictions: Predictions) -> None:
    predictions.observe("full", 4, spans_of(0.0, 0.5, 0.0))
    predictions.observe("full", 2, spans_of(0.0, 0.25, 0.0))
    predictions.observe("reduced", 1, spans_of(0.0, 0.125, 9.0))
    assert predictions.with_waiting(IDLE, {"full": 0}, (1, 2, 4)) == IDLE
    assert predictions.with_waiting(IDLE, {"full": 8}, (1, 2, 4)).after == pytest.approx(1.0)
    backlog = predictions.with_waiting(IDLE, {"full": 6, "reduced": 1}, (1, 2, 4))
    assert backlog.generate == pytest.approx(0.875)
    assert backlog.after == pytest.approx(9.875)


def test_the_margin_rises_with_broken_promises_up_to_its_bound_and_fades_with_time(
    clock: Clock,
) -> None:
    margin = Margin(clock)
    margin.observe(0, 5)
    assert margin.share == 0
    margin.observe(3, 5)
    assert margin.share == pytest.approx(GAIN * (3 / 5 - TARGET_SHARE))
    for _ in range(9):
        margin.observe(5, 5)
    assert margin.share == MAX_MARGIN
    clock.now += HALF_LIFE
    assert margin.share == pytest.approx(MAX_MARGIN / 2)
    margin.observe(0, 5)
    assert margin.share == pytest.approx(MAX_MARGIN / 2 - GAIN * TARGET_SHARE)


@pytest.mark.parametrize(
    ("state", "late_from"), [(RequestState.TAKEN, 0.95), (RequestState.UNWANTED, 0.9)]
)
def test_an_answer_is_late_a_little_before_the_deadline_and_earlier_for_a_caller_who_has_gone(
    state: RequestState, late_from: float
) -> None:
    request = request_of(arrived=100.0, deadline=101.0)
    request.state = state
    assert not is_late(request, 100.0 + late_from - 0.001)
    assert is_late(request, 100.0 + late_from + 0.001)


def test_a_request_without_a_deadline_is_never_late() -> None:
    request = request_of(arrived=100.0, deadline=math.inf)
    request.state = RequestState.UNWANTED
    assert not is_late(request, 1e9)
