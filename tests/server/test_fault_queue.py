"""A full queue: which calls are refused, at once, and with what advice."""

import grpc
import pytest

from support.occupied import FAULTY_PLACES, occupied_engine
from support.retrieve_calls import counted_calls, message
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
