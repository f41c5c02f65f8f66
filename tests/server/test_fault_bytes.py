"""Whatever bytes arrive, callers learn what is wrong, and good calls are answered."""

from collections.abc import Iterator
from random import Random
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.forgery import SCHEMA
from support.retrieve_calls import Caller, counted_calls, message
from support.server_process import ServerProcess
from support.serving_files import ServingFiles, model_spec
from support.wire_cases import hostile_request

pytestmark = pytest.mark.subprocess

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
    with Caller(healthy_server.address) as calling:
        yield calling


HOSTILE = st.binary(max_size=200) | st.integers(0, 2**32).map(
    lambda seed: hostile_request(Random(seed), model_spec(), SCHEMA)
)


@pytest.mark.parametrize("examples", [31, pytest.param(2000, marks=pytest.mark.soak)])
def test_hostile_bytes_are_answered_or_refused_as_the_callers_fault(
    caller: Caller, other: Caller, serving_files: ServingFiles, examples: int
) -> None:
    """Good calls, of the same connection and of another one, may be in the same batch."""
    good = message(serving_files.requests[0], max_ads=100)
    ads = other.call(good).response.ad_ids
    caller.sent += 1  # of the other caller

    @settings(max_examples=examples)
    @given(frames=st.lists(HOSTILE, min_size=1, max_size=3))
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
    field, _, _ = outcome.text.partition(": ")
    assert len(field) <= 131  # a long name is cut in its middle
    assert field.endswith(".values") or "user" not in fields
    assert len(outcome.text.encode()) <= 1003
