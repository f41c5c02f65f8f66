"""The load client against servers of known behaviour: it makes every call and records its end."""

import gc
import itertools
import threading
import time
from multiprocessing import active_children
from typing import Any

import grpc
import numpy as np
import pytest

from grace.bench.load.client import ClosedLoop, OpenLoop, Target, poisson_arrivals, run_load
from grace.bench.load.client_process import run_together
from grace.bench.load.shots import Shot
from grace.configs.errors import InputError
from grace.proto.retrieval_pb2 import RetrieveRequest
from support.known_server import REPLY, SHOTS, known_server

CLOSED_ADDRESS = "127.0.0.1:9"
PROCESSES = pytest.mark.parametrize("processes", [1, pytest.param(3, marks=pytest.mark.subprocess)])


@pytest.mark.parametrize("rate", [37, 1511])
def test_arrivals_are_a_poisson_process(rate: float) -> None:
    arrivals = poisson_arrivals(rate, 60_000 / rate, seed=5)
    assert 0 <= arrivals[0] <= arrivals[-1] < 60_000 / rate
    gaps = np.diff(arrivals) * rate
    assert gaps.min() >= 0
    assert (gaps.mean(), gaps.std()) == pytest.approx((1, 1), abs=0.02)
    assert np.quantile(gaps, 0.9) == pytest.approx(np.log(10), rel=0.02)
    assert np.array_equal(arrivals, poisson_arrivals(rate, 60_000 / rate, seed=5))
    assert poisson_arrivals(1e-9, 1, seed=1).size == 0


@PROCESSES
def test_an_open_loop_makes_every_arrival_a_call_and_takes_shots_and_connections_in_turn(
    processes: int,
) -> None:
    seen: list[tuple[str, str]] = []

    def answer(request: bytes, context: Any) -> bytes:
        seen.append((context.peer(), RetrieveRequest.FromString(request).request_id))
        return REPLY

    load, warm_up = OpenLoop(rate=150, seconds=0.5, seed=11), 2 * processes
    with known_server(answer, warm_up=0) as address:
        run = run_together(Target(address, SHOTS, 2), load, processes)
    arrivals = poisson_arrivals(150, 0.5, seed=11)
    assert sorted(call.intended for call in run.calls) == arrivals.tolist()
    assert {call.status for call in run.calls} == {"OK"}
    assert all(call.intended <= call.sent <= call.ended <= run.seconds for call in run.calls)
    assert [call.ended for call in run.calls] == sorted(call.ended for call in run.calls)
    # Each connection carries one call before the load, which the run does not count.
    assert (run.processes, run.warm_up_calls) == (processes, warm_up)
    assert len({peer for peer, _ in seen[:warm_up]}) == len({peer for peer, _ in seen}) == warm_up
    of_the_load = [request for _, request in seen[warm_up:]]
    assert sorted(of_the_load) == sorted(f"r{i % 7}" for i in range(len(arrivals)))
    peers = [peer for peer, _ in seen]
    counts = [peers.count(peer) for peer in set(peers)]
    assert max(counts) - min(counts) <= 2


@PROCESSES
def test_a_closed_loop_keeps_the_given_number_of_calls_under_way(processes: int) -> None:
    lock, met, under_way, most = threading.Lock(), threading.Barrier(5), 0, 0
    first = threading.BoundedSemaphore(5)

    def answer(_: bytes, __: Any) -> bytes:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        if first.acquire(blocking=False):
            met.wait(30)
        with lock:
            under_way -= 1
        return REPLY

    with known_server(answer, warm_up=processes) as address:
        run = run_together(Target(address, SHOTS, 1), ClosedLoop(5, 0.2), processes)
    assert most == 5
    assert len(run.calls) > 5
    assert run.calls[0].server == (5, 10, 20, 30, 40), "read from the reply"


def test_a_slow_server_meets_all_the_calls_that_arrive_meanwhile() -> None:
    """One at a time in 20 ms, 100 a second: the last one waits for half of all the others."""

    def answer(_: bytes, __: Any) -> bytes:
        time.sleep(0.02)
        return REPLY

    load = OpenLoop(rate=100, seconds=0.5, seed=2)
    with known_server(answer, threads=1) as address:
        run = run_load(Target(address, SHOTS), load)
    waited = 0.02 * len(run.calls) - 0.5
    assert waited > 0.25
    assert max(call.latency for call in run.calls) > waited


def test_the_garbage_collector_leaves_out_what_was_loaded_before() -> None:
    """Else a full collection, which takes as long as all of the program is large, stops calls."""
    frozen: list[int] = []

    def answer(_: bytes, __: Any) -> bytes:
        frozen.append(gc.get_freeze_count())
        return REPLY

    with known_server(answer) as address:
        run_load(Target(address, SHOTS), ClosedLoop(in_flight=1, seconds=0.1))
    assert frozen
    assert min(frozen) > len(gc.get_objects()) / 2
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("fault", ["refused", "never answered"])
def test_the_end_of_a_warm_up_call_does_not_matter(fault: str) -> None:
    numbers, gate = itertools.count(), threading.Event()

    def answer(_: bytes, context: Any) -> bytes:
        if next(numbers) < 3:
            if fault == "never answered":
                gate.wait(30)
            context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
        return REPLY

    load = ClosedLoop(in_flight=5, seconds=0.1)
    with known_server(answer, warm_up=0) as address:
        run = run_load(Target(address, SHOTS, 3, warm_up_seconds=0.3), load)
        gate.set()
    assert {call.status for call in run.calls} == {"OK"}


def test_deadlines_end_calls_as_failures_and_the_client_s_own_cancels_as_withdrawn() -> None:
    gate = threading.Event()

    def answer(_: bytes, __: Any) -> bytes:
        gate.wait(30)
        return REPLY

    shots = (
        Shot(SHOTS[0].body, timeout_seconds=0.05),
        SHOTS[2],  # under way at the end
    )
    load = OpenLoop(rate=60, seconds=0.5, seed=5, finish_seconds=0.2)
    with known_server(answer, threads=64) as address:
        run = run_load(Target(address, shots), load)
        gate.set()
    assert len(run.calls) == len(poisson_arrivals(60, 0.5, 5))
    assert {(call.status, call.withdrawn, bool(call.error)) for call in run.calls} == {
        ("DeadlineExceeded", False, True),
        ("Canceled", True, False),
    }


@PROCESSES
def test_an_address_without_a_server_is_named_whichever_process_finds_it(processes: int) -> None:
    with pytest.raises(InputError, match=f"{CLOSED_ADDRESS}: no server answers there"):
        run_together(
            Target(CLOSED_ADDRESS, SHOTS, connect_seconds=0.2), ClosedLoop(3, 0.1), processes
        )
    assert active_children() == []


@pytest.mark.subprocess
def test_the_death_of_a_client_process_ends_the_load_with_its_exit_code() -> None:
    def answer(_: bytes, __: Any) -> bytes:
        for child in active_children():
            child.kill()
        return REPLY

    fault = r"process \d of 2 of the load ended with exit code -9"
    with known_server(answer, warm_up=2) as address, pytest.raises(InputError, match=fault):
        run_together(Target(address, SHOTS, 1), ClosedLoop(2, 5.0), processes=2)
    assert active_children() == []
