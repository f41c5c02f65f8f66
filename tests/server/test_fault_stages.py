"""A stage that fails fails its batch; a stage that dies takes the server with it, never garbage."""

import grpc
import pytest

from grace.server.messages import STAGE_NAMES, StageName
from support.faults import Faults
from support.health import HealthWatch
from support.retrieve_calls import Caller, Outcome, counted_calls, message
from support.server_process import PATIENCE_SECONDS, ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess

MARK = "marker-4711"
FIXED_TEXT = "internal error; the server's log has it under the request's id"


def caller_sees(outcome: Outcome) -> str:
    """Return all that a failure says to its caller."""
    return f"{outcome.text} {dict(outcome.trailers)}"


@pytest.mark.parametrize("stage", STAGE_NAMES)
def test_an_exception_fails_its_batch_alone_and_its_text_goes_nowhere(
    faulty_server: ServerProcess, serving_files: ServingFiles, stage: StageName
) -> None:
    server = faulty_server
    request = serving_files.requests[0]
    name = f"in-{stage}"
    with counted_calls(server) as caller:
        with server.faults.raises(stage, f"{MARK}: a value of the batch"):
            failed = caller.call(message(request, request_id=name))
        assert caller.call(message(request)).ok
    assert (failed.code, failed.reason) == (grpc.StatusCode.INTERNAL, "internal")
    assert failed.text == FIXED_TEXT
    assert MARK not in caller_sees(failed)
    log = "".join(server.lines)
    assert MARK not in log
    # The log says where it happened, and to which request.
    assert any(name in line and "StageFaultError" in line for line in server.lines)


def test_values_of_a_request_reach_no_log_and_no_other_caller(
    faulty_server: ServerProcess, serving_files: ServingFiles
) -> None:
    server = faulty_server
    number, token = 918273645546372819, 40507
    secret = {
        **serving_files.requests[0],
        "user": {"country": {"values": [MARK]}, "location": {"values": [f"{MARK}/x"]}},
        "features": {
            "bags": {"pages": {"ids": [str(number)]}},
            "sequences": {"clicks": {"sids": [13, 21, 2, 18], "timestamps_ms": [str(number)]}},
        },
        "exclude_ads": [str(number)],
    }
    overflow = {**secret, "user": {"location": {"values": [f"{MARK}{i}" for i in range(65)]}}}
    reserved = {**secret, "user": {"location": {"values": [MARK, "*"]}}}
    category = {**secret, "features": {"categorical": {"device": {"ids": [str(number)]}}}}
    sids = {**secret, "features": {"sequences": {"clicks": {"sids": [13, 21, 2, token]}}}}
    space = {**secret, "sid_space": MARK}
    with counted_calls(server) as caller:
        assert caller.call(message(secret)).ok
        for bad in (overflow, reserved, category, sids, space):
            assert not caller.call(message(bad, request_id="bad")).ok
        for stage in STAGE_NAMES:
            with server.faults.raises(stage, MARK):
                failed = caller.call(message(secret))
            assert MARK not in caller_sees(failed)
            assert str(number) not in caller_sees(failed)
            assert caller.call(message(secret)).ok
    log = "".join(server.lines)
    for value in (MARK, str(number), str(token)):
        assert value not in log


def test_a_dead_stage_ends_the_server_and_every_call_wherever_it_is(
    serving_files: ServingFiles, faults: Faults
) -> None:
    stage: StageName = "post"
    request = serving_files.requests[0]
    config = serving_files.write_config("death.yaml", listen={"front_ends": 2})
    with ServerProcess(config, faults=faults) as server:
        caller = Caller(server.address)
        with HealthWatch(server) as watch:
            server.wait_until(lambda: watch.seen == ["SERVING"], "health is watched")
            with faults.dies(stage, MARK):
                with faults.closed(stage):
                    calls = [caller.start(message(request)) for _ in range(9)]
                    server.wait_until(
                        lambda: server.metric("grace_inflight_requests") == 9, "nine are in flight"
                    )
                outcomes = [call.outcome() for call in calls]
            assert server.wait() == 1
            assert watch.not_serving.wait(PATIENCE_SECONDS)
        caller.close()
    seen = {(outcome.code, outcome.reason) for outcome in outcomes}
    assert seen == {(grpc.StatusCode.INTERNAL, "stage_died")}
    assert watch.seen[:2] == ["SERVING", "NOT_SERVING"]
    assert MARK not in "".join(server.lines) + "".join(map(caller_sees, outcomes))
