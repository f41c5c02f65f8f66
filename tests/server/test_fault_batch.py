"""One bad request among sixteen fails alone and changes no bit of the others' answers."""

import copy
from collections.abc import Callable, Mapping, Sequence
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
PLACE = 6
"""The bad one is neither first nor last."""


def changed(request: Request, path: str, value: Any) -> Request:
    """The request with one value replaced; `path` names the keys above it."""
    result = copy.deepcopy(dict(request))
    *above, last = path.split(".")
    inner = result
    for key in above:
        inner = inner.setdefault(key, {})
    inner[last] = value
    return result


INVALID, WRONG, INTERNAL = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INTERNAL,
)
FAULTS: dict[str, tuple[Callable[[Request], Request], grpc.StatusCode, str, str]] = {
    "category out of range": (
        lambda request: changed(request, "features.categorical.device.ids", ["40"]),
        INVALID,
        "invalid_field",
        "features.categorical.device",
    ),
    "half a SID": (
        lambda request: changed(request, "features.sequences.clicks.sids", [1, 2, 3]),
        INVALID,
        "invalid_field",
        "features.sequences.clicks.sids",
    ),
    "wrong kind of input": (
        lambda request: changed(request, "features.bags.hour.ids", ["1"]),
        INVALID,
        "invalid_field",
        "features.bags.hour",
    ),
    "too many values of a set": (
        lambda request: changed(request, "user.location.values", [f"v{i}" for i in range(65)]),
        INVALID,
        "invalid_field",
        "user.location.values",
    ),
    "wrong SID space": (
        lambda request: changed(request, "sid_space", "another"),
        WRONG,
        "wrong_sid_space",
        "sid_space",
    ),
    "wrong model": (
        lambda request: changed(request, "model", "another"),
        WRONG,
        "wrong_model",
        "model",
    ),
    "numbers that are not finite": (poisoned_request, INTERNAL, "not_finite", ""),
}


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


@pytest.fixture(scope="module")
def good_answers(faulty_server: ServerProcess, serving_files: ServingFiles) -> list[bytes]:
    """The answers to the good requests in a batch of their own."""
    good = list(serving_files.requests[:BATCH])
    del good[PLACE]
    with counted_calls(faulty_server) as caller:
        return list(map(answer, answered_as_one_batch(faulty_server, caller, good)))


@pytest.mark.parametrize("kind", FAULTS)
def test_a_bad_request_fails_alone_and_the_others_have_the_same_bits_as_without_it(
    faulty_server: ServerProcess, serving_files: ServingFiles, good_answers: list[bytes], kind: str
) -> None:
    spoil, code, reason, field = FAULTS[kind]
    requests = list(serving_files.requests[:BATCH])
    requests[PLACE] = dict(spoil(requests[PLACE]))
    with counted_calls(faulty_server) as caller:
        outcomes = answered_as_one_batch(faulty_server, caller, requests)
    failed = outcomes.pop(PLACE)
    assert (failed.code, failed.reason) == (code, reason)
    assert failed.text.startswith(field)
    assert list(map(answer, outcomes)) == good_answers
    assert any(outcome.response.ad_ids for outcome in outcomes)


def test_a_batch_of_bad_requests_only_ends_without_reaching_the_model(
    faulty_server: ServerProcess, serving_files: ServingFiles
) -> None:
    server = faulty_server
    bad = [
        changed(request, "features.categorical.device.ids", ["40"])
        for request in serving_files.requests[:3]
    ]
    with counted_calls(server) as caller:
        with occupied_engine(server, caller, serving_files.requests[0]) as ahead:
            calls = []
            for place, request in enumerate(bad):
                calls += start_waiting(server, caller, request, f"bad{place}")
        assert [call.outcome().code for call in calls] == [INVALID] * 3
        assert all(call.outcome().ok for call in ahead)
        assert caller.call(message(serving_files.requests[0])).ok
    assert "bad0" in server.faults.reached("input")
    assert "bad0" not in server.faults.reached("features")
