"""How predictions are learned from earlier batches, and how a wrong one ends."""

from collections.abc import Sequence

import pytest

from grace.server.scheduling.predictions import (
    MIN_PATIENCE,
    REMEMBERED,
    Backlog,
    Prediction,
    Predictions,
)
from support.pipeline_cases import Clock, spans_of

IDLE = Backlog()


def test_a_prediction_is_the_work_of_the_stages_without_the_gaps(predictions: Predictions) -> None:
    predictions.observe("full", 4, spans_of(0.25, 0.5, 0.125))
    got = predictions.predict("full", 4)
    assert got == pytest.approx((0.125, 0.125, 0.5, 0.125))
    assert got.total == pytest.approx(0.875)


def one_after_the_other(ahead: Backlog, batches: Sequence[Prediction]) -> Backlog:
    """The plain reference: each batch enters a stage once it and the batch ahead can."""
    free = list(ahead)
    for batch in batches:
        reached = 0.0
        for stage, seconds in enumerate(batch):
            reached = free[stage] = max(reached, free[stage]) + seconds
    return Backlog(*free)


@pytest.mark.parametrize("batches", range(8))
@pytest.mark.parametrize("slowest", range(4))
@pytest.mark.parametrize(
    "ahead", [Backlog(), Backlog(0.5, 0.75, 4.0, 4.25), Backlog(1.0, 9.0, 9.5, 16.0)]
)
def test_each_stage_has_one_batch_at_a_time(batches: int, slowest: int, ahead: Backlog) -> None:
    seconds = [0.5, 1.0, 1.5, 0.25]
    seconds[slowest] = 4.0
    batch = Prediction(*seconds)
    assert ahead.then(batch, batches) == one_after_the_other(ahead, [batch] * batches)


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
    assert predictions.too_late("full", 1, backlog=Backlog(generate=0.3, post=0.3), left=0.25)
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
    assert predictions.with_waiting(IDLE, {"full": 8}, (1, 2, 4)).post == pytest.approx(1.0)
    backlog = predictions.with_waiting(IDLE, {"full": 6, "reduced": 1}, (1, 2, 4))
    assert backlog.generate == pytest.approx(0.875)
    assert backlog.post == pytest.approx(9.875)
