"""What a call's bytes may say, and how what they may not say is named: see test_wire_readers.py."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from grace.configs.serving import LimitsConfig
from grace.proto.retrieval_pb2 import RetrieveRequest
from grace.server.errors import MAX_RETRY_SECONDS, MIN_RETRY_SECONDS, ServiceError, queue_full
from grace.server.messages import Retrieval
from grace.server.stages.requests import read_request, request_id_of
from support.plain_requests import plain_request
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


def read(message: bytes | dict[str, Any], limits: LimitsConfig = LIMITS) -> Retrieval:
    wire = message if isinstance(message, bytes) else message_of(message)
    return read_request(wire, limits, GENERATION)


def refusal(message: bytes | dict[str, Any], limits: LimitsConfig = LIMITS) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        read(message, limits)
    return caught.value


def text(size: int) -> str:
    return "é" * (size // 2) + "x" * (size % 2)


def names(count: int) -> dict[str, Any]:
    return {f"n{i}": {} for i in range(count)}


def ones(count: int) -> list[int]:
    return [1] * count


SEQUENCE = "features.sequences.a"
LIMITED: list[tuple[str, str, Callable[[int], Any]]] = [
    ("request_id", "request_id_bytes", text),
    *((path, "value_bytes", text) for path in ("model", "sid_space", "profile", "priority")),
    ("user", "names", names),
    ("user", "value_bytes", lambda size: {text(size): {}}),
    ("user.a.values", "values_per_name", lambda count: ["x"] * count),
    ("user.a.values", "user_values", lambda count: ["x"] * count),
    ("user.a.values", "value_bytes", lambda size: ["US", text(size)]),
    ("features.bags", "names", names),
    (f"{SEQUENCE}.side", "names", lambda count: names(count - 1)),  # the sequence has a name, too
    (f"{SEQUENCE}.side", "value_bytes", lambda size: {text(size): {}}),
    ("features.dense.a.values", "values_per_name", ones),
    ("features.categorical.a.ids", "values_per_name", ones),
    ("features.bags.a.ids", "values_per_name", ones),
    (f"{SEQUENCE}.sids", "events", lambda events: ones(4 * events)),
    (f"{SEQUENCE}.timestamps_ms", "events", ones),
    (f"{SEQUENCE}.side.b.ids", "events", ones),
    ("max_ads", "max_ads", int),
    ("exclude_ads", "exclude_ads", ones),
    ("exclude", "names", names),
    ("exclude.a.ids", "exclude_ads", ones),
    ("at_most", "names", lambda count: {f"n{i}": 1 for i in range(count)}),
]
"""Paths, the limits of what is there, and values of a size."""


@pytest.mark.parametrize(
    ("path", "setting", "make"), LIMITED, ids=[f"{a}-{b}" for a, b, _ in LIMITED]
)
def test_a_field_may_reach_its_limit_and_is_refused_beyond_it(
    path: str, setting: str, make: Callable[[int], Any]
) -> None:
    limits = replace(LIMITS, user_values=66) if setting == "user_values" else LIMITS
    most = getattr(limits, setting)
    for size in (most, most + 1):
        value = make(size)
        for name in reversed(path.split(".")):
            value = {name: value}
        message = message_of(value)
        fault = ""
        try:
            plain_request(message, limits, GENERATION)
            read(message, limits)
        except ServiceError as error:
            fault = error.text
            assert refusal(message, limits).text == fault
        assert (f"at most {most} (limits.{setting})" in fault) == (size > most), fault


def test_a_request_of_too_many_bytes_is_refused_before_it_is_parsed() -> None:
    small = replace(LIMITS, message_bytes=63)
    assert read(b"\x0a\x0b" + b"x" * 11, small).request_id == "x" * 11
    error = refusal(b"\xff" * 64, small)
    assert (error.reason, error.field) == ("too_large", None)
    assert error.text == "the request has 64 bytes, at most 63 (limits.message_bytes)"


def test_an_attribute_whose_entry_has_an_unknown_field_does_not_count_as_missing() -> None:
    """In protobuf's own readers it would be missing: ads that exclude the value would pass."""
    message = b"\x22\x11\x0a\x07country\x12\x04\x0a\x02US\x18\x01"
    assert not RetrieveRequest.FromString(message).user
    assert refusal(message).text.startswith("user: it has a field that this server does not know")


def test_a_long_value_of_the_caller_is_not_sent_back_whole() -> None:
    error = refusal({"profile": "p" * 1000}, replace(LIMITS, value_bytes=1000))
    assert error.text.startswith(f"profile: '{'p' * 64}'... is not a profile here")


@pytest.mark.parametrize(
    ("seconds", "advised"),
    [(0.0, MIN_RETRY_SECONDS), (0.25, 0.25), (1e9, MAX_RETRY_SECONDS), (float("inf"), 10.0)],
)
def test_the_advice_to_try_again_is_neither_at_once_nor_in_hours(
    seconds: float, advised: float
) -> None:
    trailers = dict(queue_full(9, seconds).trailers)
    assert trailers["grpc-retry-pushback-ms"] == str(round(1000 * advised))


def test_the_id_of_a_refused_request_can_still_be_read() -> None:
    for request_id in ("", "r1", "é" * 99):
        message = message_of({"request_id": request_id, "exclude_ads": ["123"]})
        assert request_id_of(message) == request_id_of(message + b"\x6a\x01a") == request_id
        assert request_id_of(message + b"\xff") is None


def test_a_long_name_leaves_room_for_what_is_wrong() -> None:
    name = "é" * 400
    limits = replace(LIMITS, value_bytes=1024)
    for request_json, begin in (
        ({"user": {name: {"values": [""] * 112}}}, "user.éé"),
        (
            {"features": {"sequences": {name: {"side": {name: {"ids": ones(64)}}}}}},
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
