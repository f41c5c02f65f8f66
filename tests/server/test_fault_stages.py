"""Faults of a real server: stages that fail, die or hang, full queues, a log that is not read, and
names that no header can have."""

import re
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from grace.server.messages import STAGE_NAMES, StageName
from support.faults import Faults
from support.health import HealthWatch, health, healthz
from support.occupied import FAULTY_PLACES, occupied_engine, start_waiting
from support.retrieve_calls import Caller, Outcome, counted_calls, logged_ends, message
from support.served import front_ends
from support.server_process import PATIENCE_SECONDS, ServerProcess, wait_until
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess

MARK = "marker-4711"
FIXED_TEXT = "internal error; the server's log has it under the request's id"


def caller_sees(outcome: Outcome) -> str:
    """Return all that a failure says to its caller."""
    return f"{outcome.text} {dict(outcome.trailers)}"


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
                failed = caller.call(message(secret, request_id=f"in-{stage}"))
            assert (failed.code, failed.reason) == (grpc.StatusCode.INTERNAL, "internal")
            assert failed.text == FIXED_TEXT
            assert MARK not in caller_sees(failed)
            assert str(number) not in caller_sees(failed)
            assert caller.call(message(secret)).ok
    log = "".join(server.lines)
    for value in (MARK, str(number), str(token)):
        assert not re.search(rf"(?<!\d){value}(?!\d)", log)  # a duration may end in its digits
    # The log says where it happened, and to which request.
    for stage in STAGE_NAMES:
        assert any(f"in-{stage}" in line and "StageFaultError" in line for line in server.lines)


@pytest.mark.parametrize("stage", ["post", "generate"], ids=["it dies", "it hangs"])
def test_a_stage_that_dies_or_hangs_ends_the_server_and_every_call_wherever_it_is(
    serving_files: ServingFiles, faults: Faults, stage: StageName
) -> None:
    hangs = stage == "generate"
    config = serving_files.write_config(
        f"{stage}.yaml",
        listen={"front_ends": 0 if hangs else 2},
        batching={"hang_seconds": 1.0 if hangs else 60.0},
        logs={"requests": False},
    )
    with (
        ServerProcess(config, faults=faults) as server,
        HealthWatch(server) as watch,
        Caller(server.address) as caller,
    ):
        server.wait_until(lambda: watch.seen == ["SERVING"], "health is watched")
        with faults.dies(stage, MARK), ExitStack() as closed:
            closed.enter_context(faults.closed(stage))
            request = serving_files.requests[0]
            calls = [caller.start(message(request, request_id=f"lost{i}")) for i in range(9)]
            server.wait_until(
                lambda: hangs or server.metric("grace_inflight_requests") == 9, "nine are in flight"
            )
            if not hangs:
                closed.close()
            outcomes = [call.outcome() for call in calls]
            assert server.wait() == 1
            assert watch.not_serving.wait(PATIENCE_SECONDS)
    seen = {(outcome.code, outcome.reason) for outcome in outcomes}
    assert seen == {(grpc.StatusCode.INTERNAL, "stage_died")}
    # Each caller is referred to the log, whether or not it has a line for every call.
    assert logged_ends(server) == {"stage_died": 9}
    names = {entry["request_id"] for entry in server.log("request")}
    assert names == {f"lost{i}" for i in range(9)}
    (death,) = server.log("stage_died")
    assert (death["stage"], "at no known place" in death["places"]) == (stage, False)
    assert {*death["requests"]} <= names
    assert death["requests"]
    assert watch.seen[:2] == ["SERVING", "NOT_SERVING"]
    assert MARK not in "".join(server.lines) + "".join(map(caller_sees, outcomes))


def test_a_server_whose_event_loop_stands_still_says_so_until_it_runs_again(
    serving_files: ServingFiles, faults: Faults
) -> None:
    with ServerProcess(serving_files.write_config("stalled.yaml"), faults=faults) as server:
        assert healthz(server) == (200, "SERVING")
        with faults.loop_closed(server.pid):
            wait_until(lambda: healthz(server) == (503, "STALLED"), "/healthz sees the loop")
            assert server.metric("grace_event_loop_lag_seconds") > 1
        wait_until(lambda: healthz(server) == (200, "SERVING"), "the loop runs again")


@pytest.mark.soak
@front_ends
def test_a_server_whose_event_loop_hangs_ends_and_the_log_has_the_place(
    serving_files: ServingFiles, faults: Faults, front_ends: int
) -> None:
    config = serving_files.write_config("loop.yaml", listen={"front_ends": front_ends})
    with (
        ServerProcess(config, faults=faults) as server,
        HealthWatch(server) as watch,
        faults.loop_closed(server.pid),
    ):
        assert server.wait() == 1
        assert watch.not_serving.wait(PATIENCE_SECONDS)
    (hang,) = server.log("loop_hangs")
    assert "faults.py" in hang["places"]


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


def fills(unread_bytes: Callable[[], int], caller: Caller) -> bool:
    """Return whether no more of the log gets through although calls leave lines in it."""
    before = unread_bytes()
    for _ in range(63):
        assert caller.call(b"\xff").reason == "malformed"
    return 0 < before == unread_bytes()


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=30).close()
    except (ConnectionRefusedError, ConnectionResetError):  # it closes meanwhile
        return False
    return True


def test_a_server_whose_log_is_stuck_answers_the_calls_under_way_before_it_ends(
    serving_files: ServingFiles, faults: Faults
) -> None:
    request = serving_files.requests[0]
    with (
        ServerProcess(serving_files.write_config("drain.yaml"), faults=faults) as server,
        Caller(server.address) as caller,
        Caller(server.address) as other,
    ):
        with server.unread_log() as unread_bytes:
            wait_until(lambda: fills(unread_bytes, caller), "the log's pipe is full")
            with occupied_engine(server, caller, request) as calls:
                calls += start_waiting(server, caller, request, "waiting")
                server.signal(signal.SIGINT)
                wait_until(lambda: not listens(server.address), "it no longer listens")
                late = other.call(message(request))
                assert late.code is grpc.StatusCode.UNAVAILABLE
                assert not any(call.done for call in calls)
            assert [call.outcome().code for call in calls] == [grpc.StatusCode.OK] * 3
            wait_until(lambda: not server.running, "it ends")
        assert server.wait() == 0


def test_a_server_whose_log_is_stuck_ends_at_once_at_a_second_signal(
    serving_files: ServingFiles, faults: Faults
) -> None:
    request = message(serving_files.requests[0])
    config = serving_files.write_config("unread.yaml", listen={"drain_seconds": 600.0})
    with ServerProcess(config, faults=faults) as server, Caller(server.address) as caller:
        with server.unread_log() as unread_bytes:
            wait_until(lambda: fills(unread_bytes, caller), "the log's pipe is full")
            with faults.raises("features", "broken"):
                assert caller.call(request).code is grpc.StatusCode.INTERNAL
            assert caller.call(request).ok
            with faults.closed("generate"):
                cut = caller.start(request)
                wait_until(lambda: server.metric("grace_inflight_requests") == 1, "it is taken")
                server.terminate()
                wait_until(lambda: health(server) == "NOT_SERVING", "it drains")
                server.terminate()
                wait_until(lambda: not server.running, "it ends")
                assert cut.outcome().code is grpc.StatusCode.UNAVAILABLE
        assert server.wait() == 1


def test_what_does_not_finish_within_the_bound_is_not_waited_for(
    serving_files: ServingFiles, faults: Faults
) -> None:
    request = serving_files.requests[0]
    config = serving_files.write_config("bound.yaml", listen={"drain_seconds": 0.3})
    with ServerProcess(config, faults=faults) as server, Caller(server.address) as caller:
        with occupied_engine(server, caller, request) as calls:
            server.terminate()
            server.wait()
            assert all(not call.outcome().ok for call in calls)
        assert logged_ends(server) == {"cancelled": len(calls)}


@pytest.mark.parametrize(
    ("fields", "remedy"),
    [
        ({"user": {name: {"values": ["*"]}}}, "reserved")
        for name in ("a\0b", "a\r\nb", "\U000e0001" * 256, '%"\\')
    ]
    + [
        ({"profile": "\u0436" * 9999}, "limits.value_bytes"),
        ({"user": {"\u0436" * 511: {"values": ["x" * 9999]}}}, "limits.value_bytes"),
    ],
)
def test_any_name_is_shown_in_a_text_small_enough_for_a_header(
    healthy_server: ServerProcess, fields: dict[str, Any], remedy: str
) -> None:
    with counted_calls(healthy_server) as caller:
        outcome = caller.call(message(fields))
    assert (outcome.code, outcome.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_field")
    assert remedy in outcome.text
    field, _, _ = outcome.text.partition(": ")
    assert len(field) <= 131  # a long name is cut in its middle
    assert field.endswith(".values") or "user" not in fields
    assert len(outcome.text.encode()) <= 1003
