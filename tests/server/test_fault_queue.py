"""A full queue: which calls are refused, at once, and with what advice."""

import grpc
import pytest

from support.occupied import FAULTY_PLACES, occupied_engine, start_waiting, wait_waiting
from support.retrieve_calls import Outcome, counted_calls, message
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess


def assert_refused(outcome: Outcome, reason: str) -> None:
    assert outcome.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert outcome.reason == reason
    assert int(outcome.trailers["grpc-retry-pushback-ms"]) >= 1


def test_of_k_requests_too_many_exactly_k_are_refused_at_once(
    faulty_server: ServerProcess, serving_files: ServingFiles
) -> None:
    server, request = faulty_server, serving_files.requests[0]
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
            assert_refused(outcome, "queue_full")
        assert all(call.outcome().ok for call in taken)
        assert "late" not in server.faults.reached("input")


def test_a_normal_request_takes_the_place_of_the_youngest_low_one(
    faulty_server: ServerProcess, serving_files: ServingFiles
) -> None:
    server, request = faulty_server, serving_files.requests[2]
    names = [f"n{i}" for i in range(FAULTY_PLACES - 1)]
    with counted_calls(server) as caller:
        with occupied_engine(server, caller, request) as taken:
            low = start_waiting(server, caller, request, "old", "young", priority="LOW")
            normal = [caller.start(message(request, request_id=name)) for name in names]
            assert_refused(low[1].outcome(), "displaced")
            wait_waiting(server, FAULTY_PLACES)
            # A LOW request displaces none.
            late = caller.call(message(request, request_id="late", priority="LOW"))
            assert_refused(late, "queue_full")
            assert not low[0].done
        assert all(call.outcome().ok for call in [*taken, low[0], *normal])
        reached = server.faults.reached("input")
        assert {"old", *names} <= reached
        assert not reached & {"young", "late"}
