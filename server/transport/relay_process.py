"""One relay, seen from the server: its process, the orders it is given, its calls."""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, NoReturn

import grpc

from grace.server.errors import InternalError
from grace.server.observe.logs import LOGGER
from grace.server.transport.call_context import Trailers
from grace.server.transport.frames import PROTOCOL, TIMES, Kind, Link, Take, facts_of
from grace.server.transport.front_end import Call, FrontEnd
from grace.server.transport.relay import IGNORED

__all__ = ["RelayProcess"]

REAP_SECONDS = 5.0
"""For a process whose end of the link is closed to end."""

LATE_SECONDS = 10.0
"""How much later than told a relay may end before it is killed."""

LOOK_AGAIN_SECONDS = 0.002

_LOG = logging.getLogger(LOGGER)


class RelayProcess:
    """Belongs to the event loop. Use `started`. `name` says which of how many it is."""

    @classmethod
    async def started(
        cls, name: str, front_end: FrontEnd, died: Callable[[], None]
    ) -> "RelayProcess":
        """`died` is called if it ends otherwise than by `close`."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = _start(theirs)
        except BaseException:
            ours.close()
            raise
        relay = cls(name, front_end, died, process)
        try:
            await relay._link.connect(ours)
        except BaseException:
            ours.close()
            process.kill()
            process.wait()
            raise
        return relay

    def __init__(
        self,
        name: str,
        front_end: FrontEnd,
        died: Callable[[], None],
        process: subprocess.Popen[bytes],
    ) -> None:
        self._name = name
        self._front_end = front_end
        self._died = died
        self._process = process
        self._loop = asyncio.get_running_loop()
        takes: Mapping[int, Take] = {
            Kind.HELLO: self._hello,
            Kind.CALL: self._call,
            Kind.SURPLUS: self._surplus,
            Kind.ENDED: self._call_ended,
            Kind.DONE: self._done,
            Kind.LOG: self._log,
        }
        self._link = Link(takes, self._lost)
        self._began = perf_counter()
        self._greeting: asyncio.Future[str] = self._loop.create_future()
        self._orders: dict[int, asyncio.Future[str]] = {}
        self._last_order = 0
        self._calls: dict[int, _RelayedCall] = {}
        self._told_to_end = False
        self._killed = False  # by us
        self._end: asyncio.Future[str] = self._loop.create_future()

    async def greeted(self) -> str:
        """Waits until it runs; what is wrong with it, or nothing, as of an order."""
        return await self._greeting

    async def order(self, kind: Kind, facts: dict[str, Any]) -> str:
        """Waits until the order has been carried out; why it was not, or nothing."""
        if self._end.done():
            return self._end.result()
        self._last_order += 1
        done: asyncio.Future[str] = self._loop.create_future()
        self._orders[self._last_order] = done
        self._link.send_facts(kind, self._last_order, facts)
        return await done

    async def close(self, seconds: float | None) -> None:
        """As of a GrpcListener, and the process has ended. A later, shorter time wins."""
        self._told_to_end = True
        self._link.send_facts(Kind.CLOSE, 0, {"seconds": seconds})
        done, _ = await asyncio.wait((self._end,), timeout=(seconds or 0.0) + LATE_SECONDS)
        if not done:
            self._kill()
            await asyncio.wait((self._end,))

    def _hello(self, number: int, body: memoryview) -> None:  # noqa: ARG002
        hello = facts_of(body)
        theirs, now, fault = hello["protocol"], perf_counter(), ""
        if theirs != PROTOCOL:
            fault = (
                f"listen.front_ends: process {self._name} speaks protocol {theirs}, this server "
                f"{PROTOCOL}; install one version of grace-serving over the other"
            )
        elif not self._began <= hello["clock"] <= now:
            fault = (
                f"listen.front_ends: by the clock of process {self._name} it is "
                f"{hello['clock']:.6f} s, by this server's {self._began:.6f} to {now:.6f} s; "
                "deadlines cannot cross; set it to 0"
            )
        self._greeting.set_result(fault)

    def _done(self, number: int, body: memoryview) -> None:
        order = self._orders.pop(number)
        if not order.done():  # or nobody waits any more
            order.set_result(str(body, "utf-8"))

    def _log(self, number: int, body: memoryview) -> None:  # noqa: ARG002
        facts = facts_of(body)
        level = facts.pop("level")
        _LOG.log(level, facts["event"], extra={**facts, "front_end": self._name})

    def _call(self, number: int, body: memoryview) -> None:
        arrived, deadline = TIMES.unpack_from(body)
        self._take(number, Call(bytes(body[TIMES.size :]), arrived, deadline))

    def _surplus(self, number: int, body: memoryview) -> None:
        arrived, deadline = TIMES.unpack(body)
        self._take(number, Call(b"", arrived, deadline, surplus=True))

    def _take(self, number: int, message: Call) -> None:
        call = self._calls[number] = _RelayedCall(self._link, number)
        self._front_end.opened(message, call)  # now: the next frame may be the end of another
        call.task = self._loop.create_task(self._answer(call, message))

    def _call_ended(self, number: int, body: memoryview) -> None:  # noqa: ARG002
        self._calls.pop(number).ended()

    async def _answer(self, call: "_RelayedCall", message: Call) -> None:
        try:
            reply = await self._front_end.answer(message, call)
            self._link.send(Kind.REPLY, call.number, reply)
        except _AbortedError:
            pass
        except Exception as error:  # noqa: BLE001, a caller waits, and must not see its text
            _LOG.error("call failed", exc_info=error, extra={"event": "call_failed"})
            failure = InternalError()
            call.fail(failure.code, failure.text, failure.trailers)
        finally:
            call.answered()

    def _lost(self, error: Exception | None) -> None:  # noqa: ARG002, the loop has told it
        self._reaping = asyncio.ensure_future(self._reap())

    async def _reap(self) -> None:
        """What was to be told of it, and what of its calls, is told as soon as it is gone."""
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.ended()
        end = time.monotonic() + REAP_SECONDS
        while (code := self._process.poll()) is None:
            if time.monotonic() > end:
                self._kill()
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
        how = self._how(code)
        if code or not self._told_to_end:
            fields = {
                "front_end": self._name,
                "pid": self._process.pid,
                "end": how,
                "calls": len(calls),
            }
            _LOG.error("front_end_died", extra={"event": "front_end_died", **fields})
            self._died()
        for wait in (self._greeting, *self._orders.values(), self._end):
            if not wait.done():
                wait.set_result(f"listen.front_ends: process {self._name} ended with {how}")

    def _kill(self) -> None:
        self._killed = True
        self._process.kill()

    def _how(self, code: int) -> str:
        """It has ended, in words."""
        if self._killed and code == -signal.SIGKILL:
            return "SIGKILL of the server's own: it did not end in time"
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


class _RelayedCall:
    """The front end's `Context` of a call that a relay holds.

    It is over once it has been answered here, or has been withdrawn, and has ended there.
    """

    __slots__ = ("_callbacks", "_ended", "_link", "number", "task")

    task: asyncio.Task[None]

    def __init__(self, link: Link, number: int) -> None:
        self.number = number
        self._link = link
        self._ended = False
        self._callbacks: list[Callable[[Any], None]] = []

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    async def abort(
        self, code: grpc.StatusCode, details: str, trailing_metadata: Trailers
    ) -> NoReturn:
        self.fail(code, details, trailing_metadata)
        raise _AbortedError

    def fail(self, code: grpc.StatusCode, details: str, trailers: Trailers) -> None:
        self._link.send_facts(Kind.FAILURE, self.number, [code.value[0], details, trailers])

    def ended(self) -> None:
        """Its reply is out, or nobody waits for it any more."""
        self._ended = True
        if self.task.done():
            self._over()
        else:  # behind the task's first step: one that never begins would count nothing
            asyncio.get_running_loop().call_soon(self.task.cancel)

    def answered(self) -> None:
        """The task's last deed."""
        if self._ended:
            self._over()

    def _over(self) -> None:
        for callback in self._callbacks:
            callback(self)


class _AbortedError(Exception):
    """The call has failed, and its caller has been told."""


def _start(end: socket.socket) -> subprocess.Popen[bytes]:
    """With signals blocked that are not meant for it: until it ignores them, they would end it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "grace.server.transport.relay", str(end.fileno())],
            # Its modules come from where this process has its own.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            pass_fds=(end.fileno(),),
            stdin=subprocess.DEVNULL,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
