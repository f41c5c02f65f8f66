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


def of_features(kind: str, name: str, value: Any) -> dict[str, Any]:
    return {"features": {kind: {name: value}}}


LIMITED: dict[str, tuple[Any, str, str]] = {
    "request_id": ("", "bytes", "request_id_bytes"),
    "model": ("", "bytes", "value_bytes"),
    "sid_space": ("", "bytes", "value_bytes"),
    "user": ({}, "names", "names"),
    "user.a.values": ([""], "values", "values_per_name"),
    "features.dense.a.values": ([1], "values", "values_per_name"),
    "features.categorical.a.ids": ([1], "ids", "values_per_name"),
    "features.bags.a.ids": ([1], "ids", "values_per_name"),
    "features.sequences.a.sids": ([1, 1, 1, 1], "events", "events"),
    "features.sequences.a.timestamps_ms": ([1], "events", "events"),
    "features.sequences.a.side.b.ids": ([1], "events", "events"),
    "max_ads": (0, "ads", "max_ads"),
    "profile": ("", "bytes", "value_bytes"),
    "priority": ("", "bytes", "value_bytes"),
    "exclude_ads": ([1], "ads", "exclude_ads"),
    "exclude": ({}, "names", "names"),
    "at_most": (1, "names", "names"),
}
"""By limited path: what the field holds, what is counted, and the name of the limit."""


def request_with(path: str, count: int) -> dict[str, Any]:
    """Return a request with `count` bytes, values or names at this path, or with that number."""
    kind, unit, _ = LIMITED[path]
    value: Any = count
    if unit == "names":
        value = {f"n{i}": kind for i in range(count)}
    elif isinstance(kind, list):
        value = kind * count
    elif isinstance(kind, str):
        value = "é" * (count // 2) + "x" * (count % 2)
    for name in reversed(path.split(".")):
        value = {name: value}
    return value  # type: ignore[no-any-return]


@pytest.mark.parametrize("path", LIMITED)
def test_a_field_may_reach_its_limit_and_is_refused_beyond_it(path: str) -> None:
    _, unit, setting = LIMITED[path]
    most = getattr(LIMITS, setting)
    if path in ("profile", "priority"):  # no such profile or priority
        assert "limits." not in refusal(request_with(path, most)).text
    else:
        read(request_with(path, most))
    error = refusal(request_with(path, most + 1))
    assert error.reason == "invalid_field"
    assert error.text == f"{path}: {most + 1} {unit}, at most {most} (limits.{setting})"


def names(count: int, value: Any) -> dict[str, Any]:
    return {f"n{i}": value for i in range(count)}


TOGETHER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "exclude: 8 ids with those of exclude_ads, at most 7 (limits.exclude_ads)": (
        {"exclude_ads": [1, 2], "exclude": {"a": {"ids": [1, 2, 3]}, "b": {"ids": [1, 2]}}},
        {"exclude_ads": [1, 2], "exclude": {"a": {"ids": [1, 2, 3]}, "b": {"ids": [1, 2, 3]}}},
    ),
    "user: 112 values, at most 111 (limits.user_values)": (
        {"user": {"a": {"values": ["x"] * 60}, "b": {"values": ["x"] * 51}}},
        {"user": {"a": {"values": ["x"] * 60}, "b": {"values": ["x"] * 52}}},
    ),
    "features: 6 names, at most 5 (limits.names)": (
        {"features": {"bags": names(2, {}), "sequences": {"a": {"side": names(2, {})}}}},
        {"features": {"bags": names(3, {}), "sequences": {"a": {"side": names(2, {})}}}},
    ),
    "user: a name has 34 bytes, at most 33 (limits.value_bytes)": (
        {"user": {"n" * 33: {}}},
        {"user": {"n" * 34: {}}},
    ),
    "features.sequences.a.side: a name has 34 bytes, at most 33 (limits.value_bytes)": (
        of_features("sequences", "a", {"side": {"n" * 33: {}}}),
        of_features("sequences", "a", {"side": {"n" * 34: {}}}),
    ),
    "user.a.values: a value has 34 bytes, at most 33 (limits.value_bytes)": (
        {"user": {"a": {"values": ["US", "é" * 16, "x" * 33]}}},
        {"user": {"a": {"values": ["US", "é" * 17, "x" * 33]}}},
    ),
    "features.dense.a.values: nan is not finite": (
        of_features("dense", "a", {"values": [1.0, 3.4e38]}),
        of_features("dense", "a", {"values": [1.0, "NaN"]}),
    ),
}


@pytest.mark.parametrize("text", TOGETHER)
def test_names_values_and_what_several_fields_hold_together_are_limited(text: str) -> None:
    most, more = TOGETHER[text]
    limits = replace(LIMITS, user_values=111)
    read(most, limits)
    assert refusal(more, limits).text == text


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


def test_an_attribute_whose_entry_has_an_unknown_field_does_not_count_as_missing() -> None:
    """In protobuf's own readers it would be missing: ads that exclude the value would pass."""
    message = b"\x22\x11\x0a\x07country\x12\x04\x0a\x02US\x18\x01"
    assert not RetrieveRequest.FromString(message).user
    assert refusal(message).text.startswith("user: it has a field that this server does not know")


def test_an_unknown_field_of_the_request_itself_is_refused_with_its_id_still_read() -> None:
    message = message_of(FULL) + b"\x6a\x01a"
    assert refusal(message).text == (
        "RetrieveRequest: it has a field that this server does not know (number 13, wire type 2); "
        "leave it out, or upgrade the server first"
    )
    assert request_id_of(message) == "r1"


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
