"""The client against servers whose behaviour is known: what is waited for is not forgotten."""

import itertools
import threading
import time
from typing import Any

import grpc
import pytest

from grace.bench.load.arrivals import poisson_arrivals
from grace.bench.load.client import ClosedLoop, OpenLoop, run_load
from grace.bench.load.shots import Shot
from grace.configs.errors import InputError
from grace.proto.retrieval_pb2 import RetrieveRequest
from support.known_server import REPLY, SHOTS, known_server


def test_every_arrival_is_a_call_and_shots_take_turns() -> None:
    seen: list[str] = []

    def answer(request: bytes, _: Any) -> bytes:
        seen.append(RetrieveRequest.FromString(request).request_id)
        return REPLY

    load = OpenLoop(rate=300, seconds=0.5, seed=11)
    with known_server(answer) as address:
        run = run_load(address, SHOTS, load)
    arrivals = poisson_arrivals(300, 0.5, seed=11)
    assert sorted(call.intended for call in run.calls) == arrivals.tolist()
    assert {call.status for call in run.calls} == {"OK"}
    assert sorted(seen) == sorted(f"r{i % 7}" for i in range(len(arrivals)))
    assert all(call.intended <= call.sent <= call.ended <= run.seconds for call in run.calls)


def test_the_server_s_times_are_read_from_the_reply() -> None:
    with known_server(lambda request, context: REPLY) as address:
        run = run_load(address, SHOTS, ClosedLoop(in_flight=1, seconds=0.1))
    times = run.calls[0].server
    assert times is not None
    assert (times.queue, times.generate, times.all) == (5, 30, 105)


def test_a_slow_server_meets_all_the_calls_that_came_meanwhile() -> None:
    """One at a time in 20 ms, 100 a second: the last one has waited for half of all."""

    def answer(_: bytes, __: Any) -> bytes:
        time.sleep(0.02)
        return REPLY

    load = OpenLoop(rate=100, seconds=0.5, seed=2)
    with known_server(answer, threads=1) as address:
        run = run_load(address, SHOTS, load)
    waited = 0.02 * len(run.calls) - 0.5
    assert waited > 0.25
    assert max(call.latency for call in run.calls) > waited


def test_a_closed_loop_keeps_so_many_calls_under_way() -> None:
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

    with known_server(answer) as address:
        run = run_load(address, SHOTS, ClosedLoop(in_flight=5, seconds=0.2))
    assert most == 5
    assert len(run.calls) > 5


def test_connections_are_as_many_as_asked_for() -> None:
    peers: set[str] = set()

    def answer(_: bytes, context: Any) -> bytes:
        peers.add(context.peer())
        return REPLY

    with known_server(answer, warm_up=3) as address:
        run_load(address, SHOTS, ClosedLoop(in_flight=9, seconds=0.2), connections=3)
    assert len(peers) == 3


def test_every_connection_carries_a_call_before_the_load_that_is_not_counted() -> None:
    seen: list[tuple[str, str]] = []

    def answer(request: bytes, context: Any) -> bytes:
        seen.append((context.peer(), RetrieveRequest.FromString(request).request_id))
        return REPLY

    load = OpenLoop(rate=111, seconds=0.3, seed=7)
    with known_server(answer, warm_up=0) as address:
        run = run_load(address, SHOTS, load, connections=3)
    assert len({peer for peer, _ in seen[:3]}) == 3
    assert {request for _, request in seen[:3]} == {"r0", "r1", "r2"}
    assert run.warm_up_calls == 3
    assert len(run.calls) == len(seen) - 3 == len(poisson_arrivals(111, 0.3, 7))


@pytest.mark.parametrize("fault", ["refused", "never answered"])
def test_what_becomes_of_the_calls_before_the_load_is_not_counted(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grace.bench.load.client._WARM_UP_SECONDS", 0.3)
    numbers, gate = itertools.count(), threading.Event()

    def answer(_: bytes, context: Any) -> bytes:
        if next(numbers) < 3:
            if fault == "never answered":
                gate.wait(30)
            context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
        return REPLY

    with known_server(answer, warm_up=0) as address:
        run = run_load(address, SHOTS, ClosedLoop(in_flight=5, seconds=0.1), connections=3)
        gate.set()
    assert {call.status for call in run.calls} == {"OK"}


def test_a_failure_keeps_its_status_reason_and_text() -> None:
    def answer(_: bytes, context: Any) -> bytes:
        context.set_trailing_metadata((("grace-reason", "queue_full"),))
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        raise AssertionError

    with known_server(answer) as address:
        run = run_load(address, SHOTS, ClosedLoop(in_flight=1, seconds=0.05))
    ends = {(call.status, call.reason, call.text, call.withdrawn) for call in run.calls}
    assert ends == {("ResourceExhausted", "queue_full", "full", False)}


def test_deadlines_end_calls_as_failures_and_cancels_as_withdrawn() -> None:
    gate = threading.Event()

    def answer(_: bytes, __: Any) -> bytes:
        gate.wait(30)
        return REPLY

    shots = (
        Shot(SHOTS[0].body, timeout_seconds=0.05),
        Shot(SHOTS[1].body, cancel_after_seconds=0.05),
    )
    load = OpenLoop(rate=60, seconds=0.5, seed=5)
    with known_server(answer, threads=64) as address:
        run = run_load(address, shots, load)
        gate.set()
    ends = {(call.status, call.withdrawn) for call in run.calls}
    assert ends == {("DeadlineExceeded", False), ("Canceled", True)}


def test_calls_under_way_at_the_end_are_withdrawn() -> None:
    gate = threading.Event()

    def answer(_: bytes, __: Any) -> bytes:
        gate.wait(30)
        return REPLY

    load = OpenLoop(rate=60, seconds=0.3, seed=5, finish_seconds=0.05)
    with known_server(answer, threads=64) as address:
        run = run_load(address, SHOTS, load)
        gate.set()
    assert len(run.calls) == len(poisson_arrivals(60, 0.3, 5))
    assert {(call.status, call.withdrawn, call.error) for call in run.calls} == {
        ("Canceled", True, "")
    }


def test_an_address_without_a_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace.bench.load.client._CONNECT_SECONDS", 0.2)
    with pytest.raises(InputError, match=r"127\.0\.0\.1:9: no server answers there"):
        run_load("127.0.0.1:9", SHOTS, ClosedLoop(1, 0.1))
