"""When the next batch may form, and how long the batches under way will take."""

import pytest

from grace.server.scheduling.service_times import ServiceTimes
from grace.server.scheduling.work_ahead import WorkAhead
from support.pipeline_cases import Clock, request_batch, request_of, spans_of


@pytest.fixture
def work(times: ServiceTimes, clock: Clock) -> WorkAhead:
    return WorkAhead(times, clock)


def test_one_batch_is_prepared_ahead_and_no_more(work: WorkAhead) -> None:
    first, second = request_batch(request_of()), request_batch(request_of())
    assert work.may_form()
    work.formed(first)
    assert not work.may_form()
    work.taken(first)
    assert work.may_form()
    work.formed(second)
    assert not work.may_form()
    work.generated(first)
    work.posted(first)
    assert not work.may_form()
    work.taken(second)
    assert work.may_form()


def test_nothing_forms_behind_a_batch_that_post_has_not_taken(work: WorkAhead) -> None:
    first, second = request_batch(request_of()), request_batch(request_of())
    work.formed(first)
    work.taken(first)
    work.generated(first)
    assert not work.may_form()
    work.posted(first)
    assert work.may_form()
    for step in (work.formed, work.taken, work.generated):
        step(second)
    assert not work.may_form()
    work.ended(first)
    assert not work.may_form()
    work.posted(second)
    assert work.may_form()


def test_where_generate_takes_ahead_of_the_device_a_batch_counts_until_its_turn(
    work: WorkAhead,
) -> None:
    first, second = request_batch(request_of()), request_batch(request_of())
    for batch in (first, second):
        work.formed(batch)
        work.taken(batch)
    assert not work.may_form()
    work.posted(first)
    assert work.may_form()


def test_a_batch_that_ends_early_frees_its_place(work: WorkAhead) -> None:
    batch = request_batch(request_of())
    work.formed(batch)
    work.ended(batch)
    assert work.may_form()
    work.ended(batch)
    assert work.horizon().after == 0.0


def test_the_work_ahead_shrinks_while_generate_works(
    work: WorkAhead, times: ServiceTimes, clock: Clock
) -> None:
    times.observe("full", 4, spans_of(0.0, 0.5, 0.0))
    first, second = request_batch(request_of()), request_batch(request_of())
    work.formed(first)
    work.taken(first)
    work.formed(second)
    assert work.horizon().generate == pytest.approx(1.0)
    clock.now += 0.125
    assert work.horizon().generate == pytest.approx(0.875)
    assert work.needed("full", 4) == pytest.approx(1.375)
    assert work.needed("full", 4, 4) == pytest.approx(1.875)
    assert work.too_late("full", 4, left=1.3)
    assert not work.too_late("full", 4, left=1.4)
    clock.now += 99.0  # longer than predicted: it may end at any moment
    assert work.horizon().generate == pytest.approx(0.5)
    work.posted(first)
    work.taken(second)
    assert work.horizon().generate == pytest.approx(0.5)


def test_a_batch_counts_until_post_has_ended_it(
    work: WorkAhead, times: ServiceTimes, clock: Clock
) -> None:
    times.observe("full", 4, spans_of(0.25, 0.5, 2.0))
    first, second = request_batch(request_of()), request_batch(request_of())
    work.formed(first)
    assert work.horizon().after == pytest.approx(2.75)
    clock.now += 0.125
    assert work.horizon().after == pytest.approx(2.625)
    clock.now += 0.125
    for step in (work.taken, work.generated, work.posted):
        step(first)
    clock.now += 0.5
    assert work.horizon().after == pytest.approx(1.5)
    for step in (work.formed, work.taken, work.generated):
        step(second)
    assert work.horizon().generate == 0.0
    assert work.horizon().after == pytest.approx(3.5)
    assert work.needed("full", 4) == pytest.approx(5.5)
    work.ended(first)
    assert work.horizon().after == pytest.approx(2.0)
