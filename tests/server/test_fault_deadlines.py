"""Deadlines and cancellation in the queue: no work is done that no caller waits for."""

import grpc
import pytest

from support.occupied import occupied_engine, start_waiting, wait_waiting
from support.retrieve_calls import counted_calls, message
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess


def test_a_request_that_expires_while_it_waits_is_never_executed(
    faulty_server: ServerProcess, serving_files: ServingFiles
) -> None:
    server, request = faulty_server, serving_files.requests[0]
    with counted_calls(server) as caller:
        with occupied_engine(server, caller, request) as calls:
            # Long enough for a slow machine to get it into the queue.
            expiring = caller.start(message(request, request_id="expiring"), seconds=4.0)
            wait_waiting(server, 1)
            assert expiring.outcome().code is grpc.StatusCode.DEADLINE_EXCEEDED
            wait_waiting(server, 0)
        assert all(call.outcome().ok for call in calls)
        assert caller.call(message(request)).ok
        assert "expiring" not in server.faults.reached("input")
        (entry,) = [each for each in server.log("request") if each["request_id"] == "expiring"]
        assert (entry["code"], entry["reason"]) == ("DEADLINE_EXCEEDED", "deadline_exceeded")


def test_a_cancelled_request_is_released_wherever_it_is(
    faulty_server: ServerProcess, serving_files: ServingFiles
) -> None:
    server, request = faulty_server, serving_files.requests[0]
    with counted_calls(server) as caller:
        before = server.metric("grace_request_failures_total", reason="cancelled")
        with occupied_engine(server, caller, request) as calls:
            calls += start_waiting(server, caller, request, "waiting", "staying")
            running, prepared, waiting, staying = calls
            waiting.cancel()
            wait_waiting(server, 1)
            for call in (running, prepared):
                call.cancel()
            server.wait_until(
                lambda: (
                    server.metric("grace_request_failures_total", reason="cancelled") == before + 3
                ),
                "three are counted as cancelled",
            )
        assert staying.outcome().ok
        for call in (running, prepared, waiting):
            assert call.outcome().code is grpc.StatusCode.CANCELLED
        assert caller.call(message(request)).ok
        assert "waiting" not in server.faults.reached("input")
        assert "prepared" in server.faults.reached("features")
        assert "prepared" not in server.faults.reached("generate")
