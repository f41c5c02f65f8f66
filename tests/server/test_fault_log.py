"""A log that is not read loses lines, but no call, and does not keep the server from its end."""

from collections.abc import Callable

import grpc
import pytest

from support.faults import Faults
from support.health import health
from support.retrieve_calls import Caller, message
from support.server_process import ServerProcess, wait_until
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess


def fills(unread_bytes: Callable[[], int], caller: Caller) -> bool:
    """Return whether no more of the log gets through although calls leave lines in it."""
    before = unread_bytes()
    for _ in range(63):
        assert caller.call(b"\xff").reason == "malformed"
    return 0 < before == unread_bytes()


@pytest.mark.parametrize(("signals", "code"), [(1, 0), (2, 1)])
def test_a_server_whose_log_is_stuck_answers_and_ends_by_one_signal_or_at_once_by_two(
    serving_files: ServingFiles, faults: Faults, signals: int, code: int
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
            if signals == 2:
                with faults.closed("generate"):
                    cut = caller.start(request)
                    wait_until(lambda: server.metric("grace_inflight_requests") == 1, "it is taken")
                    server.terminate()
                    wait_until(lambda: health(server) == "NOT_SERVING", "it drains")
                    server.terminate()
                    wait_until(lambda: not server.running, "it ends")
                    assert cut.outcome().code is grpc.StatusCode.UNAVAILABLE
            else:
                server.terminate()
                wait_until(lambda: not server.running, "it ends")
        assert server.wait() == code
        caller.close()
