"""Deadlines and cancellation in the queue: work nobody waits for is not done."""

from collections.abc import Iterator

import grpc
import pytest

from support.faults import Faults
from support.front_ends import FRONT_ENDS, WHERE, front_ends
from support.occupied import occupied_engine, start_in_line, wait_waiting
from support.retrieve_calls import counted_calls, message
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess

GENERATE_MS = 200
"""Slow on purpose: what is compared with it must not depend on how busy the machine is."""


ONE_BY_ONE = {"max_batch": 1, "profiles": {"full": {"beams": [1, 16, 16, 16], "num_sids": 16}}}


@pytest.fixture(scope="module", params=FRONT_ENDS, ids=WHERE)
def server(
    request: pytest.FixtureRequest,
    serving_files: ServingFiles,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ServerProcess]:
    config = serving_files.write_config(
        f"deadlines{request.param}.yaml", listen={"front_ends": request.param}
    )
    with ServerProcess(config, faults=Faults(tmp_path_factory.mktemp("faults"))) as started:
        yield started


@front_ends
def test_a_deadline_shorter_than_the_queue_ahead_is_refused_early_and_never_executed(
    serving_files: ServingFiles, faults: Faults, front_ends: int
) -> None:
    request = serving_files.requests[0]
    config = serving_files.write_config(
        f"deadline{front_ends}.yaml", generation=ONE_BY_ONE, listen={"front_ends": front_ends}
    )
    with (
        ServerProcess(config, faults=faults, generate_ms=GENERATE_MS) as server,
        counted_calls(server) as caller,
    ):
        with occupied_engine(server, caller, request) as calls:
            calls += start_in_line(server, caller, request, "w1", "w2")
            # 600 ms are ahead of it. Had it expired, the client itself would have ended the call,
            # and there would be no trailer.
            late = caller.call(message(request, request_id="late"), seconds=0.55)
            assert (late.code, late.reason) == (
                grpc.StatusCode.DEADLINE_EXCEEDED,
                "deadline_unmeetable",
            )
            calls.append(caller.start(message(request, request_id="patient"), seconds=60))
        assert all(call.outcome().ok for call in calls)
        assert "late" not in server.faults.reached("input")
        assert "patient" in server.faults.reached("generate")


def test_a_request_that_expires_while_it_waits_is_never_executed(
    server: ServerProcess, serving_files: ServingFiles
) -> None:
    request = serving_files.requests[0]
    with counted_calls(server) as caller:
        with occupied_engine(server, caller, request) as calls:
            expiring = caller.start(message(request, request_id="expiring"), seconds=1.5)
            wait_waiting(server, 1)
            assert expiring.outcome().code is grpc.StatusCode.DEADLINE_EXCEEDED
            wait_waiting(server, 0)
        assert all(call.outcome().ok for call in calls)
        assert caller.call(message(request)).ok
        assert "expiring" not in server.faults.reached("input")
        (entry,) = [each for each in server.log("request") if each["request_id"] == "expiring"]
        assert (entry["code"], entry["reason"]) == ("DEADLINE_EXCEEDED", "deadline_exceeded")


def test_what_is_cancelled_is_released_wherever_it_is(
    server: ServerProcess, serving_files: ServingFiles
) -> None:
    request = serving_files.requests[0]
    with counted_calls(server) as caller:
        before = server.metric("grace_request_failures_total", reason="cancelled")
        with occupied_engine(server, caller, request) as calls:
            calls += start_in_line(server, caller, request, "waiting", "staying")
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
