"""A line that is full: who is refused, at once, and with what advice."""

from collections.abc import Iterator

import grpc
import pytest

from support.faults import Faults
from support.front_ends import FRONT_ENDS, WHERE
from support.occupied import occupied_engine, start_in_line, wait_waiting
from support.retrieve_calls import Outcome, counted_calls, message
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess

PLACES = 5


@pytest.fixture(scope="module", params=FRONT_ENDS, ids=WHERE)
def server(
    request: pytest.FixtureRequest,
    serving_files: ServingFiles,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ServerProcess]:
    """A server with few places to wait."""
    config = serving_files.write_config(
        f"queue{request.param}.yaml",
        batching={"max_waiting": PLACES},
        listen={"front_ends": request.param},
    )
    with ServerProcess(config, faults=Faults(tmp_path_factory.mktemp("faults"))) as started:
        yield started


def assert_refused(outcome: Outcome, reason: str) -> None:
    assert outcome.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert outcome.reason == reason
    assert int(outcome.trailers["grpc-retry-pushback-ms"]) >= 1


@pytest.mark.parametrize("too_many", [1, 3])
def test_of_k_requests_too_many_exactly_k_are_refused_at_once(
    server: ServerProcess, serving_files: ServingFiles, too_many: int
) -> None:
    request = serving_files.requests[0]
    with counted_calls(server) as caller:
        with occupied_engine(server, caller, request) as taken:
            taken += start_in_line(server, caller, request, *(f"w{i}" for i in range(PLACES)))
            # The engine stands still: only a refusal can end these.
            refused = [caller.call(message(request, request_id="late")) for _ in range(too_many)]
            assert not any(call.done for call in taken)
        for outcome in refused:
            assert_refused(outcome, "queue_full")
        assert [call.outcome().code for call in taken] == [grpc.StatusCode.OK] * (PLACES + 2)
        assert "late" not in server.faults.reached("input")


def test_a_burst_is_refused_exactly_as_far_as_it_exceeds_the_line(
    server: ServerProcess, serving_files: ServingFiles
) -> None:
    request = serving_files.requests[1]
    with counted_calls(server) as caller:
        with occupied_engine(server, caller, request) as taken:
            burst = [caller.start(message(request)) for _ in range(PLACES + 11)]
            server.wait_until(lambda: sum(call.done for call in burst) == 11, "11 are refused")
        outcomes = [call.outcome() for call in [*taken, *burst]]
        refused = [outcome for outcome in outcomes if not outcome.ok]
        assert len(refused) == 11
        for outcome in refused:
            assert_refused(outcome, "queue_full")


def test_a_normal_request_takes_the_place_of_the_youngest_low_one(
    server: ServerProcess, serving_files: ServingFiles
) -> None:
    request = serving_files.requests[2]
    with counted_calls(server) as caller:
        with occupied_engine(server, caller, request) as taken:
            low = start_in_line(server, caller, request, "old", "young", priority="LOW")
            normal = start_in_line(server, caller, request, "n1", "n2", "n3")
            normal.append(caller.start(message(request, request_id="n4")))
            assert_refused(low[1].outcome(), "displaced")
            wait_waiting(server, PLACES)
            # A low one displaces nobody.
            late = caller.call(message(request, request_id="late", priority="LOW"))
            assert_refused(late, "queue_full")
            assert not low[0].done
        assert all(call.outcome().ok for call in [*taken, low[0], *normal])
        reached = server.faults.reached("input")
        assert {"old", "n1", "n2", "n3", "n4"} <= reached
        assert not reached & {"young", "late"}


def test_normal_requests_go_before_low_ones_that_came_earlier(
    server: ServerProcess, serving_files: ServingFiles
) -> None:
    request = serving_files.requests[3]
    with counted_calls(server) as caller:
        # Batches have one profile each, and are formed in the order of their oldest request.
        with occupied_engine(server, caller, request) as calls:
            calls += start_in_line(
                server, caller, request, "low", priority="LOW", profile="reduced"
            )
            calls += start_in_line(server, caller, request, "normal")
        assert all(call.outcome().ok for call in calls)
        assert server.faults.batches("input")[-2:] == [["normal"], ["low"]]
