"""SIGTERM loses no request. test_fault_log.py tests calls under way and a second SIGTERM."""

import threading

import grpc
import pytest

from support.faults import Faults
from support.health import HealthWatch, health
from support.retrieve_calls import Caller, Outcome, counted_calls, logged_ends, message
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def call_until(stop: threading.Event, address: str, request: bytes, seen: list[Outcome]) -> None:
    """One client: calls one after the other until health says that it should go elsewhere."""
    caller = Caller(address)
    while not stop.is_set():
        seen.append(caller.call(request))
    caller.close()


def test_clients_that_heed_health_lose_no_request(serving_files: ServingFiles) -> None:
    # Long enough for a busy machine to notify the clients.
    listen = {"linger_seconds": 2.0, "front_ends": 2}
    config = serving_files.write_config("linger.yaml", listen=listen)
    seen: list[Outcome] = []
    with ServerProcess(config) as server, HealthWatch(server) as watch:
        clients = [
            threading.Thread(
                target=call_until,
                args=(watch.not_serving, server.address, message(request), seen),
            )
            for request in serving_files.requests[:7]
        ]
        for client in clients:
            client.start()
        server.wait_until(lambda: len(seen) > 50, "there is load")
        server.terminate()
        for client in clients:
            client.join()
        late = Caller(server.address)
        seen.append(late.call(message(serving_files.requests[0])))
        assert server.running
        assert server.wait() == 0
        late.close()
    assert [outcome.code for outcome in seen if not outcome.ok] == []
    assert watch.seen[:2] == ["SERVING", "NOT_SERVING"]
    assert logged_ends(server) == {"OK": len(seen)}
    assert server.log("stopped")[-1]["exit_code"] == 0


def test_a_server_that_still_loads_refuses_calls_and_ends_cleanly(
    serving_files: ServingFiles, faults: Faults
) -> None:
    config = serving_files.write_config("loading.yaml")
    with (
        faults.closed("input"),
        ServerProcess(config, faults=faults, ready=False) as server,
    ):
        server.wait_until(lambda: bool(faults.batches("input")), "it warms up")
        assert health(server) == health(server, "") == "NOT_SERVING"
        with counted_calls(server) as caller:
            early = caller.call(message(serving_files.requests[0]))
            assert (early.code, early.reason) == (UNAVAILABLE, "not_ready")
        server.terminate()
        assert server.wait() == 0
    assert not server.log("ready")
