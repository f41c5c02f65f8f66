"""Retrieve calls as a client sees them, and the count of them that a server's metrics must agree
with.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict

from grace.proto.retrieval_pb2 import RetrieveRequest, RetrieveResponse
from support.server_process import PATIENCE_SECONDS, ServerProcess

METHOD = "/grace.v1.AdsRetrieval/Retrieve"
UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


def message(request: Mapping[str, Any], **fields: Any) -> bytes:
    """The wire bytes of a request given as the API's JSON, with some fields replaced."""
    parsed: RetrieveRequest = ParseDict({**request, **fields}, RetrieveRequest())
    return parsed.SerializeToString()


@dataclass(frozen=True)
class Outcome:
    """How a call ended. `reply` is empty unless the code is OK."""

    code: grpc.StatusCode
    text: str
    trailers: Mapping[str, str]
    reply: bytes

    @property
    def ok(self) -> bool:
        return self.code is grpc.StatusCode.OK

    @property
    def reason(self) -> str:
        """The server's own; empty for a failure that the transport reports."""
        return self.trailers.get("grace-reason", "")

    @property
    def response(self) -> RetrieveResponse:
        assert self.ok, f"{self.code.name}: {self.text} ({self.reason})"
        return RetrieveResponse.FromString(self.reply)


class Call:
    """One call under way."""

    def __init__(self, future: Any) -> None:
        self._future = future

    @property
    def done(self) -> bool:
        return bool(self._future.done())

    def cancel(self) -> None:
        self._future.cancel()

    def outcome(self) -> Outcome:
        """Waits for the end, whatever it is."""
        # The call's own deadline may be none: the wait for it must end nevertheless.
        future = self._future
        try:
            reply = future.result(timeout=PATIENCE_SECONDS)
        except grpc.FutureTimeoutError:
            raise AssertionError(f"no outcome after {PATIENCE_SECONDS} s") from None
        except grpc.FutureCancelledError:
            reply = b""
        except grpc.RpcError:
            reply = b""
        trailers = {key: str(value) for key, value in future.trailing_metadata() or ()}
        return Outcome(future.code(), future.details() or "", trailers, reply)


class Caller:
    """A client of one server with its own connection; requests are wire bytes."""

    def __init__(self, address: str) -> None:
        # Channels of a process share connections unless their options differ.
        self._channel = grpc.insecure_channel(
            address, options=(*UNLIMITED, ("grpc.use_local_subchannel_pool", 1))
        )
        self._method: Any = self._channel.unary_unary(METHOD)
        self.sent = 0

    def start(self, request: bytes, seconds: float | None = None) -> Call:
        self.sent += 1
        return Call(self._method.future(request, timeout=seconds))

    def call(self, request: bytes, seconds: float | None = None) -> Outcome:
        return self.start(request, seconds).outcome()

    def close(self) -> None:
        self._channel.close()


@dataclass(frozen=True)
class Counters:
    """The calls that a server has counted since it started."""

    calls: float
    ok: float
    failures: float

    @classmethod
    def of(cls, server: ServerProcess) -> "Counters":
        samples = server.metrics()

        def total(name: str, label: tuple[str, str] | None = None) -> float:
            return sum(
                value
                for (sample, labels), value in samples.items()
                if sample == name and (label is None or label in labels)
            )

        return cls(
            calls=total("grace_requests_total"),
            ok=total("grace_requests_total", ("code", "OK")),
            failures=total("grace_request_failures_total"),
        )

    def __sub__(self, other: "Counters") -> "Counters":
        return Counters(
            self.calls - other.calls, self.ok - other.ok, self.failures - other.failures
        )


def assert_counters_conserve(
    server: ServerProcess, sent: int, before: Counters | None = None
) -> Counters:
    """Every call sent is counted once, as OK or under a reason, and nothing is left over.

    A client may have its outcome a moment before the server has counted it.
    """
    base = before or Counters(0, 0, 0)
    server.wait_until(
        lambda: (Counters.of(server) - base).calls >= sent and server.metric(IN_FLIGHT) == 0,
        f"{sent} calls are counted and none is in flight",
    )
    seen = Counters.of(server) - base
    assert seen.calls == sent
    assert seen.ok + seen.failures == seen.calls
    assert server.metric("grace_queue_depth") == 0
    assert server.metric(IN_FLIGHT) == 0
    return seen


IN_FLIGHT = "grace_inflight_requests"


@contextmanager
def counted_calls(server: ServerProcess) -> Iterator[Caller]:
    """A caller whose calls are the server's only ones meanwhile; in the end counters conserve."""
    before = Counters.of(server)
    caller = Caller(server.address)
    try:
        yield caller
        assert_counters_conserve(server, caller.sent, before)
    finally:
        caller.close()
