"""A full queue: which calls are refused, at once, and with what advice."""

import grpc
import pytest

from support.occupied import FAULTY_PLACES, occupied_engine, start_waiting
from support.retrieve_calls import Caller, counted_calls, message
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess


def test_of_k_requests_too_many_exactly_k_are_refused_at_once(
    faulty_server: ServerProcess, serving_files: ServingFiles
) -> None:
    server, request = faulty_server, serving_files.requests[0]
    before = server.metric("grace_shed_total", priority="NORMAL")
    with counted_calls(server) as caller:
        with occupied_engine(server, caller, request) as taken:
            # The engine stands still: only a refusal can end these.
            burst = [caller.start(message(request)) for _ in range(FAULTY_PLACES + 11)]
            server.wait_until(lambda: sum(call.done for call in burst) == 11, "11 are refused")
            late = [caller.call(message(request, request_id="late")) for _ in range(3)]
            assert not any(call.done for call in taken)
        outcomes = [call.outcome() for call in burst]
        refused = [*late, *(outcome for outcome in outcomes if not outcome.ok)]
        assert len(refused) == 3 + 11
        for outcome in refused:
            assert outcome.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert outcome.reason == "queue_full"
            assert int(outcome.trailers["grpc-retry-pushback-ms"]) >= 1
        assert all(call.outcome().ok for call in taken)
        assert "late" not in server.faults.reached("input")
    assert server.metric("grace_shed_total", priority="NORMAL") == before + 3 + 11


def test_a_call_of_a_second_connection_finds_a_place_and_goes_before_the_burst_of_the_first(
    faulty_server: ServerProcess, serving_files: ServingFiles
) -> None:
    server, request = faulty_server, serving_files.requests[0]
    names = [f"burst {number}" for number in range(FAULTY_PLACES)]
    with counted_calls(server) as caller:
        modest = Caller(server.address)
        with occupied_engine(server, caller, request):
            burst = start_waiting(server, caller, request, *names)
            single = modest.start(message(request, request_id="single"))
            assert burst[-1].outcome().reason == "displaced"
        assert single.outcome().ok
        assert all(call.outcome().ok for call in burst[:-1])
        next_batch = server.faults.batches("input")[2]
        assert "single" in next_batch[:2]
        caller.sent += modest.sent
        modest.close()
