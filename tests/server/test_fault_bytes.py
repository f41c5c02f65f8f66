"""Whatever bytes and frames arrive, callers learn what is wrong, and good calls are answered."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.forgery import SCHEMA
from support.hostile_bytes import mutated_frames
from support.raw_http2 import WINDOW_BYTES, RawHttp2
from support.retrieve_calls import Caller, answer_of, counted_calls, message
from support.server_process import ServerProcess, wait_until
from support.serving_files import model_spec
from support.wire_cases import hostile_request

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


@pytest.fixture
def caller(healthy_server: ServerProcess) -> Iterator[Caller]:
    """All of a test's calls are on one connection, and are counted together."""
    with counted_calls(healthy_server) as calling:
        yield calling


@pytest.fixture(scope="module")
def other(healthy_server: ServerProcess) -> Iterator[Caller]:
    """Another connection, which carries only good requests."""
    calling = Caller(healthy_server.address)
    yield calling
    calling.close()


def hostile(seed: int) -> bytes:
    return hostile_request(Random(seed), model_spec(), SCHEMA)


HOSTILE_FRAMES = mutated_frames(FRAMES) | st.integers(0, 2**32).map(hostile)


@pytest.mark.parametrize("examples", [31, pytest.param(2000, marks=pytest.mark.soak)])
def test_hostile_bytes_are_answered_or_refused_as_the_callers_fault(
    caller: Caller, other: Caller, examples: int
) -> None:
    """Good calls, of the same connection and of another one, may be in the same batch."""
    good = FRAMES[0]
    ads = answer_of(other, good).ad_ids
    caller.sent += 1  # of the other caller

    @settings(max_examples=examples)
    @given(frames=st.lists(HOSTILE_FRAMES, min_size=1, max_size=3))
    def check(frames: list[bytes]) -> None:
        calls = [caller.start(good), *map(caller.start, frames), other.start(good)]
        outcomes = [call.outcome() for call in calls]
        assert {outcome.code for outcome in outcomes} <= CALLERS_FAULT, outcomes
        assert [outcome.response.ad_ids for outcome in (outcomes[0], outcomes[-1])] == [ads] * 2
        caller.sent += 1

    check()


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
    caller: Caller, fields: dict[str, Any], remedy: str
) -> None:
    outcome = caller.call(message(fields))
    assert (outcome.code, outcome.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_field")
    assert remedy in outcome.text
    assert len(outcome.text.encode()) <= 1003


EXAMPLES = pytest.mark.parametrize("examples", [15, pytest.param(1500, marks=pytest.mark.soak)])
MOST_BODY_BYTES = WINDOW_BYTES // 2
"""The window also has room for the good call on the connection."""


@pytest.fixture(scope="module")
def still_answered(healthy_server: ServerProcess) -> Iterator[Callable[[], None]]:
    """Require the same answer as before on a connection that stays open, and on a new one."""
    request, caller = FRAMES[0], Caller(healthy_server.address)
    answer = answer_of(caller, request)

    def check() -> None:
        new = Caller(healthy_server.address)
        assert [answer_of(each, request) for each in (caller, new)] == [answer] * 2
        new.close()

    yield check
    caller.close()
    # Other tests share the server, and must find no open call of these tests.
    wait_until(lambda: healthy_server.metric("grace_open_calls") == 0, "no call stays open")


def framed(content: bytes, flag: int = 0, size: int | None = None) -> bytes:
    """A message as gRPC frames it, or with another flag or size."""
    return bytes([flag]) + (len(content) if size is None else size).to_bytes(4, "big") + content


def bodies(good: bytes) -> st.SearchStrategy[bytes]:
    contents = mutated_frames([good]) | st.just(good)
    sizes = st.none() | st.sampled_from([0, 1, 63, 1 << 18, (1 << 18) + 1, 1 << 31, (1 << 32) - 1])
    flags = st.sampled_from([0, 0, 1, 2, 255])
    one = st.builds(framed, contents, flags, sizes)
    some = st.lists(one, max_size=3).map(b"".join) | st.binary(max_size=40)
    return some.map(lambda body: body[:MOST_BODY_BYTES])


@EXAMPLES
def test_a_body_that_is_not_one_message_fails_its_call_alone(
    healthy_server: ServerProcess, still_answered: Callable[[], None], examples: int
) -> None:
    @settings(max_examples=examples)
    @given(body=bodies(FRAMES[0]))
    def check(body: bytes) -> None:
        with RawHttp2(healthy_server.address) as connection:
            # Do not wait for this call to end. If it has no whole message, gRPC resets it only
            # after a later call.
            connection.call(sent=body)
            connection.call(sent=framed(FRAMES[0]))
            assert connection.read_end() == 0
        still_answered()

    check()
