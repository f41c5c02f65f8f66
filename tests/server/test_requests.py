"""What a call's bytes may say, and how what they may not say is named."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from grace.configs.serving import LimitsConfig
from grace.proto.retrieval_pb2 import RetrieveRequest
from grace.server.errors import MAX_RETRY_SECONDS, MIN_RETRY_SECONDS, ServiceError, queue_full
from grace.server.messages import Retrieval
from grace.server.stages.requests import read_request, request_id_of
from support.plain_requests import plain_features, plain_user
from support.stage_cases import GENERATION, message_of

LIMITS = LimitsConfig(
    max_ads=1000,
    default_max_ads=500,
    exclude_ads=7,
    message_bytes=100_000,
    request_id_bytes=11,
    names=5,
    user_values=555,
    values_per_name=111,
    value_bytes=33,
    events=63,
)

FULL: dict[str, Any] = {
    "request_id": "r1",
    "model": "0123456789abcdef",
    "sid_space": "space-1",
    "user": {"country": {"values": ["US", "é"]}, "location": {}},
    "features": {
        "dense": {"hour": {"values": [13.5]}},
        "categorical": {"device": {"ids": ["17"]}},
        "bags": {"pages": {"ids": [str(-(2**63)), "7"]}},
        "sequences": {
            "clicks": {
                "sids": list(range(252)),
                "timestamps_ms": [str(2**63 - 1)] * 63,
                "side": {"action": {"ids": ["2"] * 63}},
            }
        },
    },
    "max_ads": 1000,
    "profile": "reduced",
    "priority": "LOW",
    "exclude_ads": ["123", "-5"],
    "include_sids": True,
    "exclude": {"campaign": {"ids": ["9", "-5", str(2**63 - 1)]}, "brand": {}},
    "at_most": {"advertiser": 3, "brand": 0},
}


def read(message: bytes | dict[str, Any], limits: LimitsConfig = LIMITS) -> Retrieval:
    wire = message if isinstance(message, bytes) else message_of(message)
    return read_request(wire, limits, GENERATION)


def refusal(message: bytes | dict[str, Any], limits: LimitsConfig = LIMITS) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        read(message, limits)
    return caught.value


def test_every_field_arrives() -> None:
    got = read(FULL)
    assert (got.request_id, got.model, got.sid_space) == ("r1", "0123456789abcdef", "space-1")
    assert got.message == message_of(FULL)
    assert plain_user(got.message) == {"country": ["US", "é"], "location": []}
    features = plain_features(got.message)
    assert features.dense == {"hour": [13.5]}
    assert list(features.categorical["device"]) == [17]
    assert list(features.bags["pages"]) == [-(2**63), 7]
    clicks = features.sequences["clicks"]
    assert list(clicks.sids) == list(range(252))
    assert list(clicks.timestamps_ms) == [2**63 - 1] * 63
    assert list(clicks.side["action"]) == [2] * 63
    assert (got.max_ads, got.profile, got.priority) == (1000, "reduced", "LOW")
    assert got.exclude_ads.dtype == np.int64
    assert got.exclude_ads.tolist() == [123, -5]
    assert got.include_sids
    assert {name: ids.tolist() for name, ids in got.exclude.items()} == {
        "campaign": [9, -5, 2**63 - 1],
        "brand": [],
    }
    assert got.at_most == {"advertiser": 3, "brand": 0}


def test_an_empty_request_takes_every_default() -> None:
    got = read(b"")
    assert (got.request_id, got.model, got.sid_space) == ("", "", "")
    assert got.message == b""
    assert (got.max_ads, got.profile, got.priority) == (500, "full", "NORMAL")
    assert got.exclude_ads.dtype == np.int64
    assert got.exclude_ads.tolist() == []
    assert (got.exclude, got.at_most) == ({}, {})
    assert not got.include_sids


@pytest.mark.parametrize("count", [0, 1, 63, 64, 111])
def test_short_and_long_lists_are_read_alike(count: int) -> None:
    ids = [(-1) ** i * (i + 2**40) for i in range(count)]
    assert read({"exclude_ads": ids}, replace(LIMITS, exclude_ads=111)).exclude_ads.tolist() == ids


def of_user(values: list[str]) -> dict[str, Any]:
    return {"user": {"country": {"values": values}}}


def of_features(kind: str, name: str, value: Any) -> dict[str, Any]:
    return {"features": {kind: {name: value}}}


@pytest.mark.parametrize(
    ("request_json", "field", "fault"),
    [
        ({"request_id": "é" * 6}, "request_id", "12 bytes, at most 11 (limits.request_id_bytes)"),
        ({"max_ads": 1001}, "max_ads", "1001 ads, at most 1000 (limits.max_ads)"),
        ({"profile": "wide"}, "profile", "'wide' is not a profile here; known: full, reduced"),
        ({"priority": "HIGH"}, "priority", "'HIGH' is neither NORMAL nor LOW"),
        ({"exclude_ads": list(range(8))}, "exclude_ads", "8 ads, at most 7 (limits.exclude_ads)"),
        (
            {"exclude_ads": [1, 2], "exclude": {"a": {"ids": [1, 2, 3]}, "b": {"ids": [1, 2, 3]}}},
            "exclude",
            "8 ids with those of exclude_ads, at most 7 (limits.exclude_ads)",
        ),
        (
            {"exclude": {f"n{i}": {} for i in range(6)}},
            "exclude",
            "6 names, at most 5 (limits.names)",
        ),
        (
            {"at_most": {f"n{i}": 1 for i in range(6)}},
            "at_most",
            "6 names, at most 5 (limits.names)",
        ),
        (
            {"exclude": {"n" * 34: {}}},
            "exclude",
            "a name has 34 bytes, at most 33 (limits.value_bytes)",
        ),
        (
            {"at_most": {"n" * 34: 1}},
            "at_most",
            "a name has 34 bytes, at most 33 (limits.value_bytes)",
        ),
        ({"user": {f"n{i}": {} for i in range(6)}}, "user", "6 names, at most 5 (limits.names)"),
        ({"user": {"n" * 34: {}}}, "user", "a name has 34 bytes, at most 33 (limits.value_bytes)"),
        (
            of_features("sequences", "clicks", {"side": {"n" * 34: {}}}),
            "features.sequences.clicks.side",
            "a name has 34 bytes, at most 33 (limits.value_bytes)",
        ),
        (of_user(["x"] * 112), "user.country.values", "112 values, at most 111 (limits.values_per"),
        (of_user(["US", "é" * 17]), "user.country.values", "a value has 34 bytes, at most 33 (lim"),
        (
            of_features("dense", "hour", {"values": [1.0, "NaN"]}),
            "features.dense.hour.values",
            "nan is not finite",
        ),
        (
            of_features("bags", "pages", {"ids": [1] * 112}),
            "features.bags.pages.ids",
            "112 ids, at most 111 (limits.values_per_name)",
        ),
        (
            of_features("sequences", "clicks", {"side": {"action": {"ids": [1] * 64}}}),
            "features.sequences.clicks.side.action.ids",
            "64 events, at most 63 (limits.events)",
        ),
        (
            {"user": {f"n{i}": {"values": [""] * 112} for i in range(5)}},
            "user.n0.values",
            "112 values, at most 111 (limits.values_per_name)",
        ),
    ],
)
def test_what_is_beyond_a_limit_is_refused_by_field_value_and_setting(
    request_json: dict[str, Any], field: str, fault: str
) -> None:
    """Check some texts; test_wire_readers.py compares all of them with the plain reader's."""
    error = refusal(request_json)
    assert error.reason == "invalid_field"
    assert error.text.startswith(f"{field}: {fault}")


@pytest.mark.parametrize(
    ("request_json", "logged"),
    [
        ({"user": {"salary": {"values": ["x" * 34]}}}, "user.*.values"),
        ({"user": {"n" * 34: {}}}, "user"),
        (of_features("dense", "income", {"values": ["NaN"]}), "features.dense.*.values"),
        (
            of_features("sequences", "a.b", {"side": {"rank": {"ids": [1] * 64}}}),
            "features.sequences.*.side.*.ids",
        ),
    ],
)
def test_the_log_has_the_path_without_the_names_that_the_caller_chose(
    request_json: dict[str, Any], logged: str
) -> None:
    assert refusal(request_json).field == logged


def test_a_long_name_leaves_room_for_what_is_wrong() -> None:
    name = "é" * 400
    limits = replace(LIMITS, value_bytes=1024)
    for request_json, begin in (
        ({"user": {name: {"values": [""] * 112}}}, "user.éé"),
        (
            of_features("sequences", name, {"side": {name: {"ids": [1] * 64}}}),
            "features.sequences.",
        ),
    ):
        error = refusal(request_json, limits)
        field, _, fault = error.text.partition(": ")
        assert field.startswith(begin)
        assert "éé...éé" in field
        assert field.endswith((".values", ".ids"))
        assert len(field) <= 131
        assert "(limits." in fault


def test_a_request_at_every_limit_is_taken() -> None:
    got = read(
        {
            "request_id": "x" * 11,
            "user": {f"{'n' * 32}{i}": {"values": ["é" * 16] * 111} for i in range(5)},
            "features": {"bags": {f"n{i}": {"ids": [1] * 111} for i in range(5)}},
            "exclude_ads": list(range(4)),
            "exclude": {f"{'n' * 32}{i}": {"ids": [1] * (i < 3)} for i in range(5)},
            "at_most": {f"{'n' * 32}{i}": 2**32 - 1 for i in range(5)},
        }
    )
    assert len(plain_user(got.message)) == len(plain_features(got.message).bags) == 5


def test_a_request_of_too_many_bytes_is_refused_before_it_is_parsed() -> None:
    small = replace(LIMITS, message_bytes=63)
    assert read(b"\x0a\x0b" + b"x" * 11, small).request_id == "x" * 11
    error = refusal(b"\xff" * 64, small)
    assert (error.reason, error.field) == ("too_large", None)
    assert error.text == "the request has 64 bytes, at most 63 (limits.message_bytes)"


@pytest.mark.parametrize(
    "message", [b"\xff", b"\x0a\x05ab", b"\x0a\x02\xff\xfe", message_of(FULL)[:-1] + b"\xff"]
)
def test_bytes_that_are_no_request_are_malformed(message: bytes) -> None:
    error = refusal(message)
    assert (error.reason, error.field) == ("malformed", None)
    assert error.text == "the bytes are not a grace.v1.RetrieveRequest"


def test_a_long_value_of_the_caller_is_not_sent_back_whole() -> None:
    error = refusal({"profile": "p" * 1000}, replace(LIMITS, value_bytes=1000))
    assert error.text.startswith(f"profile: '{'p' * 64}'... is not a profile here")


@pytest.mark.parametrize("message", [b"", message_of(FULL), message_of({"request_id": "é" * 99})])
def test_the_id_of_a_refused_request_can_still_be_read(message: bytes) -> None:
    assert request_id_of(message) == RetrieveRequest.FromString(message).request_id
    assert request_id_of(message + b"\xff") is None


@pytest.mark.parametrize(
    ("seconds", "advised"),
    [(0.0, MIN_RETRY_SECONDS), (0.25, 0.25), (1e9, MAX_RETRY_SECONDS), (float("inf"), 10.0)],
)
def test_the_advice_to_try_again_is_neither_at_once_nor_in_hours(
    seconds: float, advised: float
) -> None:
    trailers = dict(queue_full(9, seconds).trailers)
    assert trailers["grpc-retry-pushback-ms"] == str(round(1000 * advised))
