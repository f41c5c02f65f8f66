"""Callers who give up, and a log that is not read: no call is lost, and the server can end."""

import json
import signal
import socket
from collections.abc import Callable

import grpc
import pytest

from support.faults import Faults
from support.health import health
from support.occupied import occupied_engine, start_waiting
from support.retrieve_calls import Caller, Counters, give_up, message
from support.served import front_ends
from support.server_process import ServerProcess, wait_until
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess


def fills(unread_bytes: Callable[[], int], caller: Caller) -> bool:
    """Return whether no more of the log gets through although calls leave lines in it."""
    before = unread_bytes()
    for _ in range(63):
        assert caller.call(b"\xff").reason == "malformed"
    return 0 < before == unread_bytes()


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=30).close()
    except (ConnectionRefusedError, ConnectionResetError):  # it closes meanwhile
        return False
    return True


def test_a_server_whose_log_is_stuck_answers_the_calls_under_way_before_it_ends(
    serving_files: ServingFiles, faults: Faults
) -> None:
    request = serving_files.requests[0]
    with ServerProcess(serving_files.write_config("drain.yaml"), faults=faults) as server:
        caller, other = Caller(server.address), Caller(server.address)
        with server.unread_log() as unread_bytes:
            wait_until(lambda: fills(unread_bytes, caller), "the log's pipe is full")
            with occupied_engine(server, caller, request) as calls:
                calls += start_waiting(server, caller, request, "waiting")
                server.signal(signal.SIGINT)
                wait_until(lambda: not listens(server.address), "it no longer listens")
                late = other.call(message(request))
                assert late.code is grpc.StatusCode.UNAVAILABLE
                assert not any(call.done for call in calls)
            assert [call.outcome().code for call in calls] == [grpc.StatusCode.OK] * 3
            wait_until(lambda: not server.running, "it ends")
        assert server.wait() == 0
        caller.close()
        other.close()


def test_a_server_whose_log_is_stuck_ends_at_once_at_a_second_signal(
    serving_files: ServingFiles, faults: Faults
) -> None:
    request = message(serving_files.requests[0])
    config = serving_files.write_config("unread.yaml", listen={"drain_seconds": 600.0})
    with ServerProcess(config, faults=faults) as server:
        caller = Caller(server.address)
        with server.unread_log() as unread_bytes:
            wait_until(lambda: fills(unread_bytes, caller), "the log's pipe is full")
            with faults.raises("features", "broken"):
                assert caller.call(request).code is grpc.StatusCode.INTERNAL
            assert caller.call(request).ok
            with faults.closed("generate"):
                cut = caller.start(request)
                wait_until(lambda: server.metric("grace_inflight_requests") == 1, "it is taken")
                server.terminate()
                wait_until(lambda: health(server) == "NOT_SERVING", "it drains")
                server.terminate()
                wait_until(lambda: not server.running, "it ends")
                assert cut.outcome().code is grpc.StatusCode.UNAVAILABLE
        assert server.wait() == 1
        caller.close()


@front_ends
def test_cancelled_calls_leave_only_lines_of_the_log_and_every_taken_call_is_counted_once(
    serving_files: ServingFiles, front_ends: int
) -> None:
    request = message(serving_files.requests[0])
    config = serving_files.write_config(
        f"cancelled-{front_ends}.yaml", listen={"front_ends": front_ends}, logs={"requests": False}
    )
    with ServerProcess(config) as server:
        caller, before = Caller(server.address), len(server.lines)
        give_up(caller, request, 600)
        assert caller.call(request).ok
        wait_until(lambda: server.metric("grace_open_calls") == 0, "no call stays open")
        counted = Counters.of(server)
        assert caller.ends["OK"] <= counted.ok
        assert counted.calls == counted.ok + counted.failures <= caller.sent
        caller.close()
        server.terminate()
        assert server.wait() == 0
    lines = server.lines[before:]
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert len(lines) < 20
