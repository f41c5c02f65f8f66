"""The server's side of its relays: processes that hold gRPC, share one port and pass bytes on.

gRPC takes more of the interpreter for a call than all else that the event loop does. In relays
(`relay.py`) it costs the server a few frames (`frames.py`). The kernel gives each relay some of the
connections.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from typing import Any, NoReturn

import grpc

from grace.configs.errors import ConfigError
from grace.server.errors import internal
from grace.server.observe.logs import LOG
from grace.server.observe.loop_lag import MOST_BEATS
from grace.server.transport.addresses import address, held_port
from grace.server.transport.certificates import CertificateFiles
from grace.server.transport.front_end import Call, FrontEnd
from grace.server.transport.listener.grpc_listener import Trailers
from grace.server.transport.listener.listen_limits import ListenLimits
from grace.server.transport.relays.frames import Kind, Link, unpacked
from grace.server.transport.relays.relay import IGNORED

REAP_SECONDS = 5.0  # for a process to end once its end of the link is closed
HEALTH_SECONDS = 2.0  # that a change of health waits for relays, one of which may hang


@dataclass(eq=False)
class Relays:
    """Listens like a GrpcListener whose method is the front end's. Belongs to the event loop."""

    count: int
    front_end: FrontEnd
    limits: ListenLimits
    died: Callable[[], None]  # called if a relay ends unasked
    start_seconds: float = 60.0  # for all relays to listen
    late_seconds: float = 10.0  # how much later than asked a relay may end before it is killed
    beat_seconds: float = 1.0  # the time between two heartbeats
    # the interpreter's arguments for a relay
    program: Sequence[str] = ("-m", "grace.server.transport.relays.relay")
    _relays: list["_Relay"] = field(default_factory=list, init=False)

    async def open(
        self, section: str, host: str, port: int, certificate: CertificateFiles | None = None
    ) -> str:
        """Start the processes and wait until they listen; `host:port` with the port they have."""
        if sys.platform != "linux":
            raise ConfigError(
                f"{section}.front_ends: {self.count} processes can share a port, a clock and an "
                "end on Linux only; set it to 0"
            )
        with held_port(section, host, port) as held:
            for number in range(1, self.count + 1):
                ours, theirs = socket.socketpair()
                with theirs:
                    link = await Link.connected(ours)
                    process = _start(self.program, (theirs.fileno(), *astuple(self.limits)))
                relay = _Relay(f"{number} of {self.count}", process, link, self)
                self._relays.append(relay)
            tls = None if certificate is None else tuple(map(str, certificate.paths))
            where = {"section": section, "host": host, "port": held, "tls": tls}
            try:
                async with asyncio.timeout(self.start_seconds):
                    opened = (relay.order("open", where) for relay in self._relays)
                    faults = await asyncio.gather(*opened)
            except TimeoutError:
                raise ConfigError(
                    f"{section}.front_ends: {self.count} processes were not up after "
                    f"{self.start_seconds:g} s; take fewer, or a machine with more cores"
                ) from None
        if any(faults):
            raise ConfigError(next(filter(None, faults)))
        for relay in self._relays:
            relay.watch(self.beat_seconds)
        return address(host, held)

    async def set_health(self, *, serving: bool) -> None:
        orders = (relay.order("set_health", {"serving": serving}) for relay in self._relays)
        await asyncio.wait(list(map(asyncio.ensure_future, orders)), timeout=HEALTH_SECONDS)

    async def echo(self) -> None:
        """Wait until every relay has given gRPC the replies that it was sent, or has died."""
        await asyncio.gather(*(relay.echo() for relay in self._relays))

    async def close(self, seconds: float | None = None) -> None:
        """Close as a GrpcListener does, and wait until the processes have ended."""
        await asyncio.gather(*(relay.close(seconds) for relay in self._relays))


def _start(program: Sequence[str], arguments: tuple[Any, ...]) -> subprocess.Popen[bytes]:
    """Start a relay with those signals blocked that would end it before it ignores them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", *program, json.dumps(arguments)],
            # Its modules come from where this process has its own.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            pass_fds=arguments[:1],
            stdin=subprocess.DEVNULL,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Relay:
    """One of the relays; `name` says which."""

    def __init__(
        self, name: str, process: subprocess.Popen[bytes], link: Link, relays: Relays
    ) -> None:
        self._name = name
        self._process = process
        self._link = link
        self._relays = relays
        self._calls: dict[int, _RelayedCall] = {}
        self._orders: list[asyncio.Future[str]] = []  # an order's number is its place
        self._closing = False
        self._killed = ""  # why
        self._missed_beats = self._pings = 0
        self._echoes: dict[int, asyncio.Future[None]] = {}  # by the number of their PING
        self._heart: asyncio.Task[None] | None = None
        self._end = asyncio.create_task(self._live())

    async def order(self, method: str, arguments: dict[str, Any]) -> str:
        """Wait until the relay's listener has done it; return what is wrong, or nothing."""
        done = asyncio.Future[str]()
        self._link.send_facts(Kind.ORDER, len(self._orders), (method, arguments))
        self._orders.append(done)
        await asyncio.wait((done, self._end), return_when=asyncio.FIRST_COMPLETED)
        return done.result() if done.done() else self._end.result()

    def watch(self, beat_seconds: float) -> None:
        """From now on, kill the process if its event loop hangs.

        Calls on its connections would otherwise wait for ever, while health reports SERVING.
        """
        self._heart = asyncio.create_task(self._beat(beat_seconds))

    async def _beat(self, seconds: float) -> None:
        """Count beats rather than time, because this process itself may have been stopped."""
        while self._missed_beats < MOST_BEATS:
            self._missed_beats += 1
            self._ping()
            await asyncio.sleep(seconds)
        self._kill(f"it did not answer for {MOST_BEATS * seconds:g} s")

    async def echo(self) -> None:
        """Wait for the answer to a PING, or for the relay's end."""
        answered = asyncio.Future[None]()
        self._echoes[self._ping()] = answered
        await asyncio.wait((answered, self._end), return_when=asyncio.FIRST_COMPLETED)

    def _ping(self) -> int:
        self._pings += 1
        self._link.send(Kind.PING, self._pings)
        return self._pings

    async def close(self, seconds: float | None) -> None:
        self._closing = True
        try:
            async with asyncio.timeout((seconds or 0.0) + self._relays.late_seconds):
                await self.order("close", {"seconds": seconds})
        except TimeoutError:
            self._kill("it did not end in time")
        await self._link.close()
        await asyncio.wait((self._end,))

    async def _live(self) -> str:
        """Serve the relay until its process has ended; return how, as a fault."""
        await asyncio.wait((asyncio.create_task(self._link.serve(self._received)),))
        if self._heart is not None:
            self._heart.cancel()
        await self._link.close()
        for call in self._calls.values():
            call.ended()
        code = await asyncio.to_thread(self._reap)
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        if self._killed and code == -signal.SIGKILL:
            how = f"SIGKILL from the server: {self._killed}"
        if code or not self._closing:
            facts = {"pid": self._process.pid, "end": how, "calls": len(self._calls)}
            LOG.error("front_end_died", extra={**facts, "front_end": self._name})
            self._relays.died()
        return f"listen.front_ends: process {self._name} ended with {how}"

    def _received(self, kind: int, number: int, body: bytes) -> None:
        if kind == Kind.CALL:
            self._calls[number] = _RelayedCall(self._relays.front_end, self._link, number, body)
        elif kind == Kind.ENDED:
            call = self._calls.pop(number)
            call.unread = bool(body[0])
            call.ended()
        elif kind == Kind.PONG:
            self._missed_beats = 0
            if number in self._echoes:
                self._echoes.pop(number).set_result(None)
        elif kind == Kind.LOG:
            for line in body.splitlines():
                facts = {**json.loads(line), "front_end": self._name}
                LOG.log(facts.pop("level"), facts.pop("event"), extra=facts)
        else:
            self._orders[number].set_result(body.decode())

    def _reap(self) -> int:
        try:
            return self._process.wait(REAP_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill("it did not end in time")
            return self._process.wait()

    def _kill(self, why: str) -> None:
        self._killed = why
        self._process.kill()


class _RelayedCall:
    """The front end's `Context` of the call. It exists until the relay reports the call's end."""

    def __init__(self, front_end: FrontEnd, link: Link, number: int, body: bytes) -> None:
        self._link = link
        self._number = number
        self._callbacks: list[Callable[[Any], None]] = []
        self.unread = False
        # Now: the next frame may be the end of another call.
        call = front_end.opened(unpacked(body), self)
        self._task = asyncio.create_task(self._answer(front_end, call))

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    async def abort(
        self, code: grpc.StatusCode, details: str, trailing_metadata: Trailers
    ) -> NoReturn:
        failure = (code.value[0], details, trailing_metadata)
        self._link.send_facts(Kind.FAILURE, self._number, failure)
        raise _AbortedError

    async def _answer(self, front_end: FrontEnd, call: Call) -> None:
        with suppress(_AbortedError):
            try:
                self._link.send(Kind.REPLY, self._number, await front_end.answer(call, self))
            except Exception as error:  # noqa: BLE001, a caller waits, and must not see its text
                LOG.error("call_failed", exc_info=error)
                failure = internal()
                await self.abort(failure.code, failure.text, failure.trailers)

    def ended(self) -> None:
        """Note that gRPC is done with the call: its reply is out, or its caller has gone."""
        if self._task.done():
            for callback in self._callbacks:
                callback(self)
        else:  # cancelled after its first step: a task that never began would count nothing
            self._task.add_done_callback(lambda _: self.ended())
            asyncio.get_running_loop().call_soon(self._task.cancel)


class _AbortedError(BaseException):
    """Ends the task of a call that has failed."""
