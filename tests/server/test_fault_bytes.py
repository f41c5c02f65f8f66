"""Whatever bytes arrive, the caller learns what is wrong with them and the next call works."""

from collections.abc import Iterator

import grpc
import pytest
from hypothesis import given, settings

from support.hostile_bytes import mutated_frames
from support.retrieve_calls import Caller, counted_calls, message
from support.server_process import ServerProcess
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess

FULL_REQUEST = {
    "request_id": "u000",
    "sid_space": "synth-tiny-1",
    "user": {"country": {"values": ["FR"]}, "location": {"values": ["fr", "fr/bretagne"]}},
    "features": {
        "dense": {"hour": {"values": [16]}},
        "categorical": {"device": {"ids": ["16"]}},
        "bags": {"pages": {"ids": ["3", "1009", "77"]}},
        "sequences": {
            "clicks": {
                "sids": [13, 21, 2, 18, 13, 39, 26, 14],
                "timestamps_ms": ["1788143248189", "1788148275713"],
                "side": {"action": {"ids": ["1", "2"]}},
            }
        },
    },
    "max_ads": 100,
    "profile": "reduced",
    "priority": "LOW",
    "exclude_ads": ["1000000049", "5"],
    "include_sids": True,
}
FRAMES = [message(FULL_REQUEST), message({}), message({"request_id": "r", "max_ads": 3})]
CALLERS_FAULT = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
}


@pytest.fixture(scope="module")
def caller(healthy_server: ServerProcess) -> Iterator[Caller]:
    """All of a module's calls are on one connection, and are counted together."""
    with counted_calls(healthy_server) as calling:
        yield calling


@settings(max_examples=63)
@given(frame=mutated_frames(FRAMES))
def test_mutated_bytes_are_answered_or_refused_as_the_callers_fault(
    caller: Caller, frame: bytes
) -> None:
    outcome = caller.call(frame)
    assert outcome.code in CALLERS_FAULT, outcome


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"\x0a\xff\xff\xff\xff\x0f", "malformed"),
        (b"\x0a\x02\xff\xfe", "malformed"),
        (b"\x0b" * 50_000, "malformed"),
        (FRAMES[0] * 3, ""),
        (b"", ""),
        (b"\x0a\x83\x80\x10" + b"x" * ((1 << 18) + 3), "too_large"),
    ],
    ids=["too long a length", "no UTF-8", "groups", "thrice", "nothing", "beyond the limit"],
)
def test_known_bad_bytes_have_their_reason(caller: Caller, frame: bytes, reason: str) -> None:
    outcome = caller.call(frame)
    assert outcome.reason == reason
    assert outcome.code is (grpc.StatusCode.INVALID_ARGUMENT if reason else grpc.StatusCode.OK)


@pytest.mark.parametrize("name", ["a\0b", "a\r\nb", "\U000e0001" * 256, '%"\\'])
def test_a_name_that_no_status_text_can_hold_as_it_is_is_told_all_the_same(
    caller: Caller, name: str
) -> None:
    outcome = caller.call(message({"user": {name: {"values": ["*"]}}}))
    assert outcome.code is grpc.StatusCode.INVALID_ARGUMENT
    assert outcome.reason == "invalid_field"


def test_a_good_request_works_after_all_of_them(
    caller: Caller, serving_files: ServingFiles
) -> None:
    for _ in range(3):
        for frame in (b"\xff" * 9, FRAMES[0][:-3], b"\x0a\x02\xff\xfe"):
            caller.call(frame)
        assert caller.call(message(serving_files.requests[0])).response.ad_ids
