"""Retrieve calls, and their counts by client, metrics and log, which must agree."""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message

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
    def end(self) -> str:
        """OK, or the server's reason; empty for a failure that the transport reports."""
        return "OK" if self.ok else self.reason

    @property
    def response(self) -> RetrieveResponse:
        assert self.ok, f"{self.code.name}: {self.text} ({self.reason})"
        return RetrieveResponse.FromString(self.reply)


class Call:
    """One call under way. Its caller counts how it ended, once."""

    def __init__(self, future: Any, ends: Counter[str] | None) -> None:
        self._future = future
        self._ends = ends

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
        outcome = Outcome(future.code(), future.details() or "", trailers, reply)
        if self._ends is not None:
            self._ends[outcome.end] += 1
            self._ends = None
        return outcome


class Caller:
    """A client of one method with its own connection; requests are messages or wire bytes.

    sent  how many calls it has made
    ends  how those ended whose outcomes were asked for
    """

    def __init__(
        self,
        address: str,
        credentials: grpc.ChannelCredentials | None = None,
        config: str = "{}",
        method: str = METHOD,
    ) -> None:
        # Channels of a process share connections unless their options differ.
        own = (("grpc.use_local_subchannel_pool", 1), ("grpc.service_config", config))
        options = (*UNLIMITED, *own)
        self._channel = (
            grpc.insecure_channel(address, options)
            if credentials is None
            else grpc.secure_channel(address, credentials, options)
        )
        self._method: Any = self._channel.unary_unary(method)
        self.sent = 0
        self.ends: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def start(self, request: bytes | Message, seconds: float | None = None) -> Call:
        if isinstance(request, Message):
            request = request.SerializeToString()
        self.sent += 1
        return Call(self._method.future(request, timeout=seconds), self.ends)

    def call(self, request: bytes | Message, seconds: float | None = None) -> Outcome:
        return self.start(request, seconds).outcome()

    def close(self) -> None:
        self._channel.close()


class SteadyCallers:
    """Call with each message in turn while inside, on threads; `seen` has the outcomes."""

    def __init__(
        self,
        address: str,
        messages: Sequence[bytes],
        threads: int = 1,
        pause: float = 0.0,
        **caller: Any,
    ) -> None:
        self._address, self._messages, self._pause = address, messages, pause
        self._caller = caller
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(i,)) for i in range(threads)]
        self.seen: list[Outcome] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _call(self, number: int) -> None:
        caller = Caller(self._address, **self._caller)
        while not self._end.wait(self._pause):
            number += 1
            request = self._messages[number % len(self._messages)]
            self.seen.append(caller.call(request, PATIENCE_SECONDS))
        caller.close()


def give_up(caller: Caller, request: bytes, calls: int) -> None:
    """Make calls with deadlines of 1 to 5 ms, and withdraw every second one before its end."""
    random_ = random.Random(7)
    under_way = []
    for number in range(calls):
        under_way.append(caller.start(request, random_.uniform(0.001, 0.005)))
        if number % 2:
            time.sleep(random_.uniform(0.0, 0.002))
            under_way[-1].cancel()
    for call in under_way:
        call.outcome()


@dataclass(frozen=True)
class Counters:
    """The calls that a server has counted since it started; `ends` by OK or reason."""

    calls: int = 0
    ends: Counter[str] = field(default_factory=Counter)

    @property
    def ok(self) -> int:
        return self.ends["OK"]

    @property
    def failures(self) -> int:
        return self.ends.total() - self.ok

    @staticmethod
    def of(server: ServerProcess) -> "Counters":
        codes, reasons = Counter[str](), Counter[str]()
        for (name, labels), value in server.metrics().items():
            if name == "grace_requests_total":
                codes[dict(labels)["code"]] += int(value)
            elif name == "grace_request_failures_total":
                reasons[dict(labels)["reason"]] += int(value)
        return Counters(codes.total(), +(reasons + Counter(OK=codes["OK"])))

    def __sub__(self, other: "Counters") -> "Counters":
        return Counters(self.calls - other.calls, self.ends - other.ends)


def assert_counters_conserve(
    server: ServerProcess, sent: int, before: Counters | None = None
) -> Counters:
    """Every call sent is counted once, as OK or under a reason, and nothing is left over.

    A client may have its outcome a moment before the server has counted it.
    """
    base = before or Counters()
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


def logged_ends(server: ServerProcess) -> Counter[str]:
    """How calls ended, by the server's log: the only count of them once it has ended itself."""
    return Counter(entry["reason"] or "OK" for entry in server.log("request"))


IN_FLIGHT = "grace_inflight_requests"


@contextmanager
def counted_calls(server: ServerProcess) -> Iterator[Caller]:
    """A caller whose calls are the server's only ones meanwhile; in the end counters conserve, and
    what the caller saw is what the server counted."""
    before = Counters.of(server)
    caller = Caller(server.address)
    try:
        yield caller
        counted = assert_counters_conserve(server, caller.sent, before)
        del caller.ends[""]  # gRPC's own ends of calls that the caller gave up
        assert not caller.ends - counted.ends, "callers see what is counted"
    finally:
        caller.close()
