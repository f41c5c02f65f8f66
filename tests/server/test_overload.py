"""Batches form late enough to be full, and under an overload the engine wastes no time."""

import math
from collections.abc import Sequence

import pytest

from grace.server.messages import STAGE_NAMES, StageName
from support.simulated_overload import Engine, Fate, Offer, Simulation

SECONDS = 3.0
GPU_SECONDS = {1: 0.0023, 2: 0.0029, 4: 0.0039, 8: 0.0058, 16: 0.01}
"""What generate takes for a batch of the paper's model on an H200, in bfloat16."""

BEGUN = 1.0
"""Requests of the first second do not count where the server must first learn the load."""


def goodput(fates: Sequence[Fate], engine: Engine, seconds: float = SECONDS) -> float:
    """The requests answered in time, as a share of the engine's capacity."""
    return sum(fate.in_time for fate in fates) / (engine.capacity * seconds)


def late_share(fates: Sequence[Fate]) -> float:
    executed = [fate for fate in fates if fate.executed]
    return sum(not fate.in_time for fate in executed) / len(executed)


def percentile(fates: Sequence[Fate], share: float) -> float:
    """A percentile of the seconds to the answers."""
    seconds = sorted(fate.seconds for fate in fates if fate.executed)
    return seconds[int(share * len(seconds))]


def reasons(fates: Sequence[Fate]) -> set[str]:
    return {fate.reason for fate in fates if not fate.executed}


@pytest.mark.parametrize("stage", STAGE_NAMES)
def test_whichever_stage_is_slow_at_twice_the_capacity_its_time_is_not_wasted(
    stage: StageName,
) -> None:
    engine = Engine(stage)
    fates = Simulation(engine).run([Offer(2 * engine.capacity, 0.0, SECONDS, 0.25)])
    assert goodput(fates, engine) > 0.97
    assert late_share(fates) < 0.01


@pytest.mark.parametrize(("times", "deadline"), [(2, 0.8), (5, 0.2)])
def test_unpredictable_times_and_slow_replies_make_few_answers_late(
    times: int, deadline: float
) -> None:
    engine = Engine(noise=0.15, reply_seconds=0.005)
    seconds = 5.0  # what is learned at the begin must be a small part
    fates = Simulation(engine).run([Offer(times * engine.capacity, 0.0, seconds, deadline)])
    assert goodput(fates, engine, seconds) > 0.95
    assert late_share(fates) < 0.03
    in_vain = sum(fate.reason == "deadline_exceeded" for fate in fates)
    assert in_vain < 0.1 * sum(fate.executed for fate in fates)


def test_without_deadlines_a_long_queue_is_shed_down_to_its_target() -> None:
    engine = Engine()
    fates = Simulation(engine, target_queue_ms=100.0).run([Offer(800.0, 0.0, SECONDS)])
    assert goodput(fates, engine) > 0.97
    assert reasons(fates) == {"overloaded"}
    # The queue's target, and the two batches ahead of it with its own.
    assert percentile([fate for fate in fates if fate.sent > BEGUN], 0.99) < 0.1 + 3 * engine.slow
    assert all(fate.seconds == 0.0 for fate in fates if not fate.executed)


def test_a_burst_that_is_worked_off_within_the_target_loses_no_request() -> None:
    engine = Engine()
    bursts = [Offer(20_000.0, at, at + 0.008) for at in (0.0, 1.0, 2.0)]
    fates = Simulation(engine).run(bursts)
    assert len(fates) > 400
    assert reasons(fates) == set()


def test_a_second_after_the_overload_every_request_is_answered_as_before_it() -> None:
    engine = Engine()
    normal = 0.7 * engine.capacity
    fates = Simulation(engine).run(
        [Offer(normal, 0.0, 5.0, 0.8), Offer(5 * engine.capacity, 1.0, 3.0, 0.8)]
    )
    before = [fate for fate in fates if 0.5 < fate.sent < 1.0]
    after = [fate for fate in fates if fate.sent > 4.0]
    assert reasons(before) == reasons(after) == set()
    assert percentile(after, 0.95) < 1.5 * percentile(before, 0.95)


def test_low_requests_are_shed_before_normal_ones() -> None:
    engine = Engine()
    fates = Simulation(engine).run(
        [
            Offer(0.8 * engine.capacity, 0.0, SECONDS, priority="NORMAL"),
            Offer(2 * engine.capacity, 0.0, SECONDS, priority="LOW"),
        ]
    )
    normal = [fate for fate in fates if fate.offer.priority == "NORMAL"]
    low = [fate for fate in fates if fate.offer.priority == "LOW" and fate.sent > BEGUN]
    assert reasons(normal) == set()
    assert "overloaded" in reasons(low)
    assert goodput(fates, engine) > 0.97
    assert percentile(normal, 0.99) < 0.25


def test_while_normal_requests_are_shed_every_low_one_is() -> None:
    engine = Engine()
    low = Offer(10.0, 2.0, SECONDS, priority="LOW")
    fates = Simulation(engine).run([Offer(2 * engine.capacity, 0.0, SECONDS), low])
    of_low = [fate for fate in fates if fate.offer is low]
    assert {fate.reason for fate in of_low} == {"overloaded"}


def test_callers_with_short_deadlines_are_served_next_to_callers_with_none() -> None:
    engine = Engine(noise=0.1)
    fates = Simulation(engine, target_queue_ms=100.0).run(
        [
            Offer(engine.capacity, 0.0, SECONDS, deadline, connection=f"{deadline}")
            for deadline in (0.4, 2.0, math.inf)
        ]
    )
    assert goodput(fates, engine) > 0.95
    assert late_share(fates) < 0.02
    answered = [fate.offer.deadline for fate in fates if fate.in_time]
    assert min(answered.count(deadline) for deadline in set(answered)) > 0.25 * len(answered)


def test_a_smaller_profile_answers_requests_that_would_be_shed_and_only_under_load() -> None:
    engine = Engine()
    overload = Offer(1.5 * engine.capacity, 1.0, 4.0)
    offers = [Offer(0.5 * engine.capacity, 0.0, 7.0), overload]
    fates = Simulation(engine, {"full": ("reduced",)}, max_waiting=1000).run(offers)
    assert reasons(fates) == set()
    assert not any(fate.degraded for fate in fates if fate.sent < 1.0 or fate.sent > 6.0)
    assert any(fate.degraded for fate in fates)
    assert "overloaded" in reasons(Simulation(engine, max_waiting=1000).run(offers))


def test_deadlines_that_leave_no_room_for_a_margin_are_met_again_when_it_has_gone() -> None:
    """The margin must not refuse for ever a deadline just above the time of an answer."""
    engine = Engine(reply_seconds=0.01)
    fates = Simulation(engine).run([Offer(10.0, 0.0, 60.0, 0.0505)])
    last = [fate for fate in fates if fate.sent > 30.0]
    assert any(fate.executed for fate in last)


def test_a_refusal_for_want_of_time_says_that_more_is_needed_than_is_left() -> None:
    """The margin counts in what an answer takes: callers would read a contradiction without it."""
    engine = Engine(noise=0.15, reply_seconds=0.01)
    fates = Simulation(engine).run([Offer(2 * engine.capacity, 0.0, SECONDS, 0.2)])
    refused = [fate.trailers for fate in fates if fate.reason == "deadline_unmeetable"]
    assert refused
    for trailers in refused:
        assert int(trailers["grace-predicted-ms"]) >= int(trailers["grace-deadline-left-ms"])


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
