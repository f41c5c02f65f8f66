"""By how much admission exceeds its predictions, and when an answer is late."""

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
from support.pipeline_cases import Clock, request_of


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
