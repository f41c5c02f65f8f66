"""Bad requests of a batch fail alone and change no bit of the others' answers."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import pytest

from support.occupied import occupied_engine, start_waiting
from support.poisoned_model import poisoned_request
from support.retrieve_calls import Caller, Outcome, counted_calls, message
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess

Request = Mapping[str, Any]
BATCH = 16


def changed(request: Request, path: str, value: Any) -> Request:
    """The request with one value replaced; `path` names the keys above it."""
    result = copy.deepcopy(dict(request))
    *above, last = path.split(".")
    inner = result
    for key in above:
        inner = inner.setdefault(key, {})
    inner[last] = value
    return result


INVALID, WRONG = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION
FAULTS: Mapping[int, tuple[str, Any, grpc.StatusCode, str]] = {
    1: ("features.categorical.device.ids", ["40"], INVALID, "invalid_field"),
    4: ("features.sequences.clicks.sids", [1, 2, 3], INVALID, "invalid_field"),
    5: ("user.location.values", [f"v{i}" for i in range(65)], INVALID, "invalid_field"),
    9: ("sid_space", "another", WRONG, "wrong_sid_space"),
    12: ("model", "another", WRONG, "wrong_model"),
}
"""The faulty requests by place in the batch: field, value, status and reason."""
NOT_FINITE = 7


def answered_as_one_batch(
    server: ServerProcess, caller: Caller, requests: Sequence[Request]
) -> list[Outcome]:
    names = [f"r{i}" for i in range(len(requests))]
    with occupied_engine(server, caller, requests[0]) as ahead:
        calls = []
        for name, request in zip(names, requests, strict=True):
            calls += start_waiting(server, caller, request, name)
    assert all(call.outcome().ok for call in ahead)
    outcomes = [call.outcome() for call in calls]
    assert server.faults.batches("input")[-1] == names
    return outcomes


def answer(outcome: Outcome) -> bytes:
    """Return what does not depend on the time or on the request's name."""
    response = outcome.response
    response.ClearField("timings")
    response.ClearField("request_id")
    return response.SerializeToString(deterministic=True)


def test_bad_requests_fail_alone_and_the_others_have_the_same_bits_as_without_them(
    faulty_server: ServerProcess, serving_files: ServingFiles
) -> None:
    requests = [dict(request) for request in serving_files.requests[:BATCH]]
    bad = {*FAULTS, NOT_FINITE}
    good = [request for place, request in enumerate(requests) if place not in bad]
    for place, (path, value, _, _) in FAULTS.items():
        requests[place] = dict(changed(requests[place], path, value))
    requests[NOT_FINITE] = dict(poisoned_request(requests[NOT_FINITE]))
    with counted_calls(faulty_server) as caller:
        expected = answered_as_one_batch(faulty_server, caller, good)
        outcomes = answered_as_one_batch(faulty_server, caller, requests)
    for place, (path, _, code, reason) in FAULTS.items():
        failed = outcomes[place]
        assert (failed.code, failed.reason) == (code, reason)
        assert failed.text.startswith(path.removesuffix(".ids"))
    assert outcomes[NOT_FINITE].reason == "not_finite"
    others = [outcome for place, outcome in enumerate(outcomes) if place not in bad]
    assert list(map(answer, others)) == list(map(answer, expected))
    assert any(outcome.response.ad_ids for outcome in others)


def test_a_batch_of_bad_requests_only_ends_without_reaching_the_model(
    faulty_server: ServerProcess, serving_files: ServingFiles
) -> None:
    server = faulty_server
    request = changed(serving_files.requests[0], "features.categorical.device.ids", ["40"])
    with counted_calls(server) as caller:
        with occupied_engine(server, caller, serving_files.requests[0]) as ahead:
            calls = start_waiting(server, caller, request, "bad0", "bad1", "bad2")
        assert [call.outcome().code for call in calls] == [INVALID] * 3
        assert all(call.outcome().ok for call in ahead)
        assert caller.call(message(serving_files.requests[0])).ok
    assert "bad0" in server.faults.reached("input")
    assert "bad0" not in server.faults.reached("features")
