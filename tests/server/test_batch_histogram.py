"""A batch's values at once: what prometheus_client makes of them one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from grace.server.observe.batch_histogram import BatchHistogram

BOUNDS = (0, 0.5, 1, 63)


def both() -> tuple[BatchHistogram, CollectorRegistry, Histogram, CollectorRegistry]:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    return (
        *(BatchHistogram("h_seconds", "What it is.", BOUNDS, ours), ours),
        *(Histogram("h_seconds", "What it is.", buckets=BOUNDS, registry=theirs), theirs),
    )


def page(registry: CollectorRegistry) -> list[bytes]:
    """Without the time of creation, which the service does not show."""
    return [line for line in generate_latest(registry).splitlines() if b"_created" not in line]


@given(st.lists(st.lists(st.sampled_from((-1, 0, 0.25, 0.5, 1, 62.5, 63, 64, 1e9)), max_size=17)))
def test_the_page_is_that_of_single_values(batches: list[list[float]]) -> None:
    batch, ours, single, theirs = both()
    for values in batches:
        batch.observe_all(values)
        for value in values:
            single.observe(value)
    assert page(ours) == page(theirs)


def test_a_name_is_registered_once() -> None:
    registry = CollectorRegistry()
    BatchHistogram("h", "What it is.", BOUNDS, registry)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        BatchHistogram("h", "What it is.", BOUNDS, registry)
