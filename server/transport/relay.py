"""A process that holds gRPC for a server: what comes in on its connections goes to the server's
process, whose interpreter is thereby free of it, and what that answers goes out.

    python -m grace.server.transport.relay DESCRIPTOR        of its end of a pair of sockets; the
    server starts it

It takes bytes and gives bytes: it neither parses nor counts, and decides nothing. Its life is the
server's: it ends when told to, and at once when the other end closes, however that came about.
"""

import asyncio
import ctypes
import gc
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter
from typing import Any, Self

import grpc
import uvloop

from grace.configs.errors import ConfigError
from grace.proto.retrieval_pb2 import DESCRIPTOR
from grace.server.observe.logs import LOGGER, fields_of
from grace.server.observe.thread_names import name_this_thread
from grace.server.transport.call_context import GrpcContext, Trailers
from grace.server.transport.frames import PROTOCOL, TIMES, Kind, Link, Take, facts_of
from grace.server.transport.grpc_listener import GrpcListener, ListenLimits

__all__ = ["RelaySettings", "main"]

IGNORED = (signal.SIGTERM, signal.SIGINT)
"""Whoever sends them to all processes of a server at once means the server."""

SETTLE_SECONDS = 0.2
"""For gRPC to say of the last calls that they have ended, once it is closed."""

NEAR_BOUND = 0.5
"""The part of the calls that the server takes beyond which ends are told at once: others wait
for their places, of this relay and of those beside it.
"""

_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG
_CODES = {code.value[0]: code for code in grpc.StatusCode}


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """calls  at once that the server takes; of further ones it is told, for it to refuse them"""

    host: str
    port: int
    calls: int
    limits: ListenLimits

    def facts(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Self:
        return cls(**{**facts, "limits": ListenLimits(**facts["limits"])})


@dataclass(frozen=True, slots=True)
class _Failure:
    code: grpc.StatusCode
    details: str
    trailers: Trailers


def main(arguments: Sequence[str]) -> int:
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)  # the server started it with them blocked
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    (descriptor,) = map(int, arguments)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_relay(socket.socket(fileno=descriptor)))


async def _relay(end: socket.socket) -> int:
    relay = Relay()
    logging.getLogger().handlers[:] = [_LinkLog(relay.link)]
    try:
        await relay.run(end)
    except ExceptionGroup as group:  # of orders that failed: the server is told, and ends
        for error in group.exceptions:
            logging.getLogger(LOGGER).error("front_end_failed", exc_info=error)
        await asyncio.sleep(0)  # the log's turn
        code = 1
    else:
        code = 0
    relay.ends = True
    await relay.link.close()
    return code


class _LinkLog(logging.Handler):
    """To the server's log."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        facts = {"level": record.levelno, **fields_of(record)}
        self._loop.call_soon_threadsafe(self._link.send_facts, Kind.LOG, 0, facts)


class Relay:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        takes: Mapping[int, Take] = {
            Kind.REPLY: self._reply,
            Kind.FAILURE: self._failure,
            Kind.OPEN: self._open,
            Kind.HEALTH: self._health,
            Kind.CLOSE: self._close,
        }
        self.link = Link(takes, self._lost)
        self.ends = False
        self._loop = asyncio.get_running_loop()
        self._told_to_end = asyncio.Event()
        self._listener: GrpcListener | None = None
        self._most_calls = 0
        self._calls = 0  # so far
        self._open_calls = 0
        self._waiting: dict[int, asyncio.Future[bytes | _Failure]] = {}

    async def run(self, end: socket.socket) -> None:
        """Until it has been told to close, and has."""
        async with asyncio.TaskGroup() as self._orders:
            await self.link.connect(end)
            self.link.send_facts(Kind.HELLO, 0, {"protocol": PROTOCOL, "clock": perf_counter()})
            await self._told_to_end.wait()

    def _lost(self, error: Exception | None) -> None:
        if not self.ends:  # otherwise the server has, and whoever would want to know
            os._exit(0 if error is None else 1)

    async def _retrieve(self, message: bytes, context: GrpcContext) -> bytes:
        arrived = perf_counter()
        left = context.time_remaining()
        deadline = math.inf if left is None else arrived + left
        self._calls = number = self._calls + 1
        self._open_calls += 1
        end: asyncio.Future[bytes | _Failure] = self._loop.create_future()
        self._waiting[number] = end
        context.add_done_callback(partial(self._ended, number, end))
        times = TIMES.pack(arrived, deadline)
        if self._open_calls > self._most_calls:  # one too many of this relay is one too many of all
            self.link.send(Kind.SURPLUS, number, times)
        else:
            self.link.send(Kind.CALL, number, times, message)
        try:
            outcome = await end
        finally:
            del self._waiting[number]
        if isinstance(outcome, _Failure):
            await context.abort(outcome.code, outcome.details, outcome.trailers)
        return outcome

    def _ended(self, number: int, end: "asyncio.Future[bytes | _Failure]", _: GrpcContext) -> None:
        near = self._open_calls > NEAR_BOUND * self._most_calls
        self._open_calls -= 1
        if near or end.cancelled():  # if cancelled, the server still works for it
            self.link.send(Kind.ENDED, number)
        else:
            self.link.send_later(Kind.ENDED, number)

    def _reply(self, number: int, body: memoryview) -> None:
        self._resolve(number, bytes(body))

    def _failure(self, number: int, body: memoryview) -> None:
        code, details, trailers = facts_of(body)
        pairs = tuple((str(name), str(value)) for name, value in trailers)
        self._resolve(number, _Failure(_CODES[code], details, pairs))

    def _resolve(self, number: int, outcome: bytes | _Failure) -> None:
        end = self._waiting.get(number)
        if end is not None and not end.done():  # or the caller has gone, and ENDED is on its way
            end.set_result(outcome)

    def _open(self, order: int, body: memoryview) -> None:
        self._carry_out(self._listen, order, bytes(body))

    def _health(self, order: int, body: memoryview) -> None:
        self._carry_out(self._set_health, order, bytes(body))

    def _close(self, order: int, body: memoryview) -> None:  # noqa: ARG002, its end is the answer
        self._carry_out(self._finish, bytes(body))

    def _carry_out(self, order: Callable[..., Coroutine[Any, Any, None]], *facts: object) -> None:
        if not self._told_to_end.is_set():  # what is told after CLOSE is for nobody any more
            self._orders.create_task(order(*facts))

    async def _listen(self, order: int, facts: bytes) -> None:
        settings = RelaySettings.of(facts_of(facts))
        self._most_calls = settings.calls
        service = DESCRIPTOR.services_by_name["AdsRetrieval"]
        methods = {"Retrieve": self._retrieve}
        self._listener = GrpcListener(service, methods, settings.limits, shares_port=True)
        fault = ""
        try:
            await self._listener.open("listen", settings.host, settings.port)
        except ConfigError as error:
            fault = str(error)
        name_this_thread("grace-relay")  # behind gRPC, whose thread would have the name as well
        gc.collect()
        gc.freeze()  # what is loaded stays
        self.link.send(Kind.DONE, order, fault.encode())

    async def _set_health(self, order: int, facts: bytes) -> None:
        if self._listener is not None:
            await self._listener.set_health(serving=facts_of(facts)["serving"])
        self.link.send(Kind.DONE, order)

    async def _finish(self, facts: bytes) -> None:
        if self._listener is not None:
            await self._listener.close(facts_of(facts)["seconds"])
        end = self._loop.time() + SETTLE_SECONDS
        while self._open_calls and self._loop.time() < end:
            await asyncio.sleep(0.001)
        self._told_to_end.set()


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # nothing of the interpreter's is worth the time to end it
