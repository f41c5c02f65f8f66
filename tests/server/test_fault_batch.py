"""One bad request among sixteen: it fails alone, and the others cannot tell that it was there."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import grpc
import pytest

from support.faults import Faults
from support.occupied import occupied_engine, start_in_line
from support.poisoned_model import poisoned_checkpoint, poisoned_request
from support.retrieve_calls import Caller, Outcome, counted_calls, message
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess

Request = Mapping[str, Any]
BATCH = 16
PLACE = 6
"""Of the bad one: neither first nor last."""


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


@pytest.fixture(scope="module")
def server(
    serving_files: ServingFiles, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server whose model breaks on one value of one input."""
    checkpoint = poisoned_checkpoint(tmp_path_factory.mktemp("poisoned"))
    config = replace(serving_files, checkpoint=checkpoint).write_config("batch.yaml")
    with ServerProcess(config, faults=Faults(tmp_path_factory.mktemp("faults"))) as started:
        yield started


def answered_as_one_batch(
    server: ServerProcess, caller: Caller, requests: Sequence[Request]
) -> list[Outcome]:
    names = [f"r{i}" for i in range(len(requests))]
    with occupied_engine(server, caller, requests[0]) as ahead:
        calls = []
        for name, request in zip(names, requests, strict=True):
            calls += start_in_line(server, caller, request, name)
    assert all(call.outcome().ok for call in ahead)
    outcomes = [call.outcome() for call in calls]
    assert server.faults.batches("input")[-1] == names
    return outcomes


def answer(outcome: Outcome) -> bytes:
    """All of a reply that does not depend on the time or on the request's name."""
    response = outcome.response
    response.ClearField("timings")
    response.ClearField("request_id")
    return response.SerializeToString(deterministic=True)


@pytest.mark.parametrize("kind", FAULTS)
def test_a_bad_request_fails_alone_and_the_others_answers_are_the_same_bits(
    server: ServerProcess, serving_files: ServingFiles, kind: str
) -> None:
    spoil, code, reason, field = FAULTS[kind]
    good = list(serving_files.requests[:BATCH])
    with counted_calls(server) as caller:
        bad = good[PLACE]
        mixed = answered_as_one_batch(
            server, caller, [*good[:PLACE], spoil(bad), *good[PLACE + 1 :]]
        )
        alone = answered_as_one_batch(server, caller, [*good[:PLACE], *good[PLACE + 1 :]])
    failed = mixed.pop(PLACE)
    assert (failed.code, failed.reason) == (code, reason)
    assert failed.text.startswith(field)
    assert list(map(answer, mixed)) == list(map(answer, alone))
    assert any(outcome.response.ad_ids for outcome in mixed)


def test_a_batch_of_bad_requests_only_ends_without_reaching_the_model(
    server: ServerProcess, serving_files: ServingFiles
) -> None:
    bad = [
        changed(request, "features.categorical.device.ids", ["40"])
        for request in serving_files.requests[:3]
    ]
    with counted_calls(server) as caller:
        with occupied_engine(server, caller, serving_files.requests[0]) as ahead:
            calls = []
            for place, request in enumerate(bad):
                calls += start_in_line(server, caller, request, f"bad{place}")
        assert [call.outcome().code for call in calls] == [INVALID] * 3
        assert all(call.outcome().ok for call in ahead)
        assert caller.call(message(serving_files.requests[0])).ok
    assert "bad0" in server.faults.reached("input")
    assert "bad0" not in server.faults.reached("features")
