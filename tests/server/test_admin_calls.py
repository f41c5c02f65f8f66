"""Every call of Admin: what it refuses, whichever method it is."""

import grpc
import pytest

from grace.proto.retrieval_pb2 import DESCRIPTOR
from support.operators import operator_of
from support.retrieve_calls import Caller, Outcome
from support.server_process import ServerProcess
from support.strict_wire import UnknownFieldError

pytestmark = pytest.mark.subprocess

METHODS = {each.name: each.input_type for each in DESCRIPTOR.services_by_name["Admin"].methods}
of_each = pytest.mark.parametrize("method", METHODS)
UNKNOWN = b"\xf8\x07\x01"  # field 127, a number
OTHER_TYPE = b"\x09\1\2\3\4\5\6\7\x08"  # field 1, as a number of eight bytes


def answer(server: ServerProcess, method: str, message: bytes) -> Outcome:
    with Caller(server.admin, method=f"/grace.v1.Admin/{method}") as caller:
        return caller.call(message)


@of_each
@pytest.mark.parametrize("field", [UNKNOWN, OTHER_TYPE], ids=["new", "of another type"])
def test_a_request_with_a_field_that_the_server_does_not_know_changes_nothing(
    operated: ServerProcess, method: str, field: bytes
) -> None:
    """An operator who sends one believes that the server does what it says."""
    with operator_of(operated) as operator:
        before = operator.status()
        given = answer(operated, method, field)
        after = operator.status()
    assert (given.code.name, given.reason) == ("INVALID_ARGUMENT", "invalid_field")
    number, wire_type = (field[0] >> 3, field[0] & 7) if field is OTHER_TYPE else (127, 0)
    fault = UnknownFieldError(number, wire_type).text
    assert given.text == f"{METHODS[method].name}: {fault}"
    before.uptime_seconds = after.uptime_seconds
    assert after == before
    assert not operated.log("log_level")


@of_each
def test_bytes_that_are_no_request_and_far_too_many_bytes_are_refused(
    operated: ServerProcess, method: str
) -> None:
    """A message of unknown fields takes fifty times its size once protobuf has read it."""
    given = answer(operated, method, b"\xff")
    assert (given.code.name, given.reason) == ("INVALID_ARGUMENT", "malformed")
    assert given.text == f"the bytes are not a grace.v1.{METHODS[method].name}"
    given = answer(operated, method, b"\x78\x01" * 4097)
    assert given.code is grpc.StatusCode.INVALID_ARGUMENT
    assert given.reason == ("invalid_field" if method in ("UpdateAds", "Explain") else "too_large")
