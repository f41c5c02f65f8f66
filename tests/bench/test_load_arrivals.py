"""Arrivals are a Poisson process, and the same one for the same seed."""

import numpy as np
import pytest

from grace.bench.load.arrivals import poisson_arrivals


def test_equal_seeds_make_equal_arrivals_and_others_do_not() -> None:
    first = poisson_arrivals(111, 7, seed=3)
    assert np.array_equal(first, poisson_arrivals(111, 7, seed=3))
    assert not np.array_equal(first[:50], poisson_arrivals(111, 7, seed=4)[:50])


def test_arrivals_ascend_within_the_load() -> None:
    arrivals = poisson_arrivals(37, 5, seed=1)
    assert (np.diff(arrivals) >= 0).all()
    assert arrivals[0] >= 0
    assert arrivals[-1] < 5


@pytest.mark.parametrize("rate", [37, 1511])
def test_gaps_are_exponential_with_the_rate_s_mean(rate: float) -> None:
    gaps = np.diff(poisson_arrivals(rate, 60_000 / rate, seed=5)) * rate
    assert gaps.mean() == pytest.approx(1, abs=0.02)
    assert gaps.std() == pytest.approx(1, abs=0.02)
    assert np.quantile(gaps, 0.9) == pytest.approx(np.log(10), rel=0.02)


def test_counts_in_windows_vary_as_a_poisson_process_s_do() -> None:
    counts = np.histogram(poisson_arrivals(63, 2000, seed=9), bins=2000)[0]
    assert counts.var() == pytest.approx(counts.mean(), rel=0.1)


def test_a_load_too_short_for_a_call_has_none() -> None:
    assert poisson_arrivals(1e-9, 1, seed=1).size == 0
