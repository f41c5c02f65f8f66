"""A load that several processes make: the calls of one process's, told as one load."""

import threading
from datetime import UTC, datetime, timedelta
from multiprocessing import active_children
from typing import Any

import pytest

from grace.bench.load.arrivals import poisson_arrivals
from grace.bench.load.calls import Call, LoadRun
from grace.bench.load.client import ClosedLoop, OpenLoop
from grace.bench.load.result import load_result, percentile
from grace.bench.load.team import merged, run_together
from grace.configs.errors import InputError
from grace.proto.retrieval_pb2 import RetrieveRequest
from support.known_server import REPLY, SHOTS, known_server

BEGAN = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.subprocess
def test_processes_share_the_arrivals_and_shots_of_one_open_loop() -> None:
    seen: list[str] = []

    def answer(request: bytes, _: Any) -> bytes:
        seen.append(RetrieveRequest.FromString(request).request_id)
        return REPLY

    load = OpenLoop(rate=150, seconds=0.5, seed=11)
    with known_server(answer, warm_up=6) as address:
        run = run_together(address, SHOTS, load, processes=3, connections=2)
    arrivals = poisson_arrivals(150, 0.5, seed=11)
    assert sorted(call.intended for call in run.calls) == arrivals.tolist()
    assert {call.status for call in run.calls} == {"OK"}
    assert sorted(seen) == sorted(f"r{i % 7}" for i in range(len(arrivals)))
    assert all(call.intended <= call.sent <= call.ended <= run.seconds for call in run.calls)
    assert [call.ended for call in run.calls] == sorted(call.ended for call in run.calls)
    assert (run.processes, run.warm_up_calls) == (3, 6)


@pytest.mark.subprocess
def test_every_process_has_connections_of_its_own_and_uses_them_in_turn() -> None:
    peers: list[str] = []

    def answer(_: bytes, context: Any) -> bytes:
        peers.append(context.peer())
        return REPLY

    load = OpenLoop(rate=150, seconds=0.5, seed=7)
    with known_server(answer, warm_up=0) as address:
        run = run_together(address, SHOTS, load, processes=2, connections=3)
    assert len(set(peers)) == 6
    calls = sorted(peers.count(peer) for peer in set(peers))
    assert sum(calls) == len(run.calls) + 6
    assert calls[-1] - calls[0] <= 1 + len(run.calls) % 2


@pytest.mark.subprocess
def test_processes_share_the_callers_of_a_closed_loop() -> None:
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

    with known_server(answer, warm_up=2) as address:
        run = run_together(address, SHOTS, ClosedLoop(5, 0.2), processes=2, connections=1)
    assert most == 5
    assert len(run.calls) > 5


def test_percentiles_are_of_all_calls_together_not_of_processes() -> None:
    def part(latency: float, calls: int, begin: float) -> LoadRun:
        times = [begin + i / 1e3 for i in range(calls)]
        ended = tuple(Call(t, t + 0.001, t + latency, "OK") for t in times)
        return LoadRun("ads:1", BEGAN + timedelta(seconds=begin), 2.0 + begin, ended, 2)

    parts = [part(0.010, 97, 0.0), part(0.200, 3, 0.02)]
    run = merged(parts)
    result = load_result(run, OpenLoop(50, 2), connections=2, timeout_seconds=None)
    latencies = sorted(call.latency for one in parts for call in one.calls)
    assert result["grace"]["ms"]["latency_ok"]["p99"] == pytest.approx(200)
    assert result["grace"]["ms"]["latency_ok"]["p90"] == pytest.approx(10)
    assert percentile(latencies, 99) == pytest.approx(0.2)
    assert (result["count"], result["total"]) == (100, 2_020_000_000)
    assert result["options"]["connections"] == 4
    assert (result["grace"]["processes"], result["grace"]["warm_up_calls"]) == (2, 4)
    assert result["grace"]["began"] == BEGAN.timestamp()


def test_a_late_process_makes_the_whole_load_invalid() -> None:
    punctual = tuple(Call(i / 100, i / 100, i / 100 + 0.02, "OK") for i in range(98))
    late = tuple(Call(i / 100, i / 100 + 0.03, i / 100 + 0.05, "OK") for i in range(2))
    run = merged([LoadRun("a", BEGAN, 1.0, calls, 1) for calls in (punctual, late)])
    own = load_result(run, OpenLoop(100, 1), 1, None)["grace"]
    assert not own["valid"]
    assert "give more --processes" in own["invalid_because"]


def test_a_closed_loop_of_fewer_calls_than_processes_is_refused() -> None:
    with pytest.raises(InputError, match="--in-flight 3: too few for 4 processes"):
        run_together("127.0.0.1:9", SHOTS, ClosedLoop(3, 0.1), processes=4)


@pytest.mark.subprocess
def test_a_process_that_ends_before_its_load_does_is_told() -> None:
    def answer(_: bytes, __: Any) -> bytes:
        for child in active_children():
            child.kill()
        return REPLY

    fault = r"process \d of 2 of the load ended with exit code -9"
    with known_server(answer, warm_up=2) as address, pytest.raises(InputError, match=fault):
        run_together(address, SHOTS, ClosedLoop(2, 5.0), processes=2, connections=1)
    assert active_children() == []


@pytest.mark.subprocess
def test_what_a_process_finds_wrong_is_told_by_the_first() -> None:
    closed = "127.0.0.1:9: no server answers there"
    with pytest.raises(InputError, match=closed):
        run_together("127.0.0.1:9", SHOTS, ClosedLoop(2, 0.1), processes=2, connections=1)
    assert active_children() == []
