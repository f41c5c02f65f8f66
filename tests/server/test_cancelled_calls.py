"""Callers who give up within milliseconds take nothing from others, even if the log is unread."""

import json

import pytest

from support.health import health
from support.retrieve_calls import Caller, Counters, give_up, message
from support.served import front_ends
from support.server_process import ServerProcess, wait_until
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess


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


@front_ends
def test_a_server_whose_log_is_not_read_outlives_cancelled_calls(
    serving_files: ServingFiles, front_ends: int
) -> None:
    request = message(serving_files.requests[0])
    config = serving_files.write_config(
        f"unread-{front_ends}.yaml", listen={"front_ends": front_ends}
    )
    with ServerProcess(config) as server:
        caller = Caller(server.address)
        with server.unread_log() as unread_bytes:
            give_up(caller, request, 600)
            assert unread_bytes() > 0
            assert caller.call(request).ok
            assert health(server) == "SERVING"
            server.terminate()
            wait_until(lambda: not server.running, "it ends")
        caller.close()
        assert server.wait() == 0
