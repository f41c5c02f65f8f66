"""Whatever HTTP/2 frames and gRPC bodies a connection carries, good calls get their answers."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace.proto.retrieval_pb2 import RetrieveResponse
from support.hostile_bytes import mutated_frames
from support.raw_http2 import WINDOW_BYTES, RawHttp2
from support.retrieve_calls import Caller, answer_of, message
from support.server_process import ServerProcess, wait_until
from support.serving_files import ServingFiles

pytestmark = pytest.mark.subprocess

EXAMPLES = pytest.mark.parametrize("examples", [15, pytest.param(1500, marks=pytest.mark.soak)])
MOST_BODY_BYTES = WINDOW_BYTES // 2
"""The window also has room for the good call on the connection."""


@dataclass(frozen=True)
class Good:
    """A request, its answer before the test, and a connection that stays open."""

    server: ServerProcess
    request: bytes
    answer: RetrieveResponse
    caller: Caller

    def still_answered(self) -> None:
        """Require the same answer on the open connection and on a new one."""
        new = Caller(self.server.address)
        for caller in (self.caller, new):
            assert answer_of(caller, self.request) == self.answer
        new.close()


@pytest.fixture(scope="module")
def good(healthy_server: ServerProcess, serving_files: ServingFiles) -> Iterator[Good]:
    request = message(serving_files.requests[0])
    caller = Caller(healthy_server.address)
    yield Good(healthy_server, request, answer_of(caller, request), caller)
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


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags])
    return head + stream.to_bytes(4, "big") + payload


STREAMS = st.integers(0, 5) | st.integers(0, 2**32 - 1)
FRAMES = st.builds(frame, st.integers(0, 12), st.integers(0, 255), STREAMS, st.binary(max_size=40))
SENT = st.lists(FRAMES | st.binary(max_size=40), min_size=1, max_size=9).map(b"".join)


@EXAMPLES
def test_a_body_that_is_not_one_message_fails_its_call_alone(good: Good, examples: int) -> None:
    @settings(max_examples=examples)
    @given(body=bodies(good.request))
    def check(body: bytes) -> None:
        with RawHttp2(good.server.address) as connection:
            # Do not wait for this call to end. If it has no whole message, gRPC resets it only
            # after a later call.
            connection.call(sent=body)
            connection.call(sent=framed(good.request))
            assert connection.read_end() == 0
        good.still_answered()

    check()


@EXAMPLES
def test_frames_of_any_content_fail_their_connection_alone(good: Good, examples: int) -> None:
    @settings(max_examples=examples)
    @given(sent=SENT)
    def check(sent: bytes) -> None:
        with RawHttp2(good.server.address) as connection:
            connection.call(sent=framed(good.request))
            connection.send_bytes(sent)
            good.still_answered()

    check()
