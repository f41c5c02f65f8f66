"""A real relay, to which the test is the server: it has the other end of its link."""

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any, NoReturn

import grpc
import pytest

from grace.server.transport.frames import PROTOCOL, TIMES, Kind, Link, Take
from grace.server.transport.grpc_listener import ListenLimits
from grace.server.transport.relay import Relay, RelaySettings
from grace.server.transport.relay_process import _start
from support.served import METHOD, reason_of, until

pytestmark = pytest.mark.subprocess

CALLS = 3


class Server:
    """`told` is what the relay says, by kind."""

    def __init__(self) -> None:
        self.told: dict[Kind, list[tuple[int, bytes]]] = {kind: [] for kind in Kind}
        takes: dict[int, Take] = {kind: self._taker(kind) for kind in Kind}
        self.lost = asyncio.Event()
        self.link = Link(takes, lambda error: self.lost.set())
        self.process: subprocess.Popen[bytes]
        self._orders = 0

    async def start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = _start(theirs)
        await self.link.connect(ours)

    async def end(self) -> int:
        """Closes the link; how the process has ended, at once."""
        await self.link.close()
        return await asyncio.to_thread(self.process.wait, 10)

    async def order(self, kind: Kind, facts: Mapping[str, Any]) -> str:
        self._orders += 1
        self.link.send_facts(kind, self._orders, facts)
        await until(lambda: self._orders in dict(self.told[Kind.DONE]))
        return dict(self.told[Kind.DONE])[self._orders].decode()

    async def open(self, port: int) -> str:
        limits = ListenLimits(receive_bytes=1000, streams=111, reflection=False)
        return await self.order(Kind.OPEN, RelaySettings("127.0.0.1", port, CALLS, limits).facts())

    async def taken(self, count: int) -> list[tuple[int, bytes]]:
        """So many calls within its bound: their numbers, and their messages."""
        await until(lambda: len(self.told[Kind.CALL]) >= count)
        return [(number, body[TIMES.size :]) for number, body in self.told[Kind.CALL]]

    def _taker(self, kind: Kind) -> Take:
        return lambda number, body: self.told[kind].append((number, bytes(body)))


def relayed(use: Callable[[Server, Any], Awaitable[None]]) -> None:
    """Calls `use` with the server of a relay that listens, and the method of a client of it."""

    async def relay() -> None:
        server = Server()
        await server.start()
        try:
            port = free_port()
            assert await server.open(port) == ""
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                await use(server, channel.unary_unary(METHOD))
        finally:
            assert await server.end() == 0

    asyncio.run(asyncio.wait_for(relay(), 60))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_bytes_go_in_and_out_as_they_are_with_the_times_of_the_call() -> None:
    async def use(server: Server, retrieve: Any) -> None:
        ((_, hello),) = server.told[Kind.HELLO]
        assert json.loads(hello)["protocol"] == PROTOCOL
        assert json.loads(hello)["clock"] < perf_counter()
        before = perf_counter()
        calls = [retrieve(b"\xff" * 9, timeout=30.0), retrieve(b"")]
        taken = await server.taken(2)
        assert sorted(message for _, message in taken) == [b"", b"\xff" * 9]
        for number, body in server.told[Kind.CALL]:
            arrived, deadline = TIMES.unpack_from(body)
            assert before < arrived < perf_counter()
            assert deadline == float("inf") or 20.0 < deadline - arrived <= 31.0  # rounded up
            server.link.send(Kind.REPLY, number, bytes([number]) * 80_001)
        replies = [await call for call in calls]
        assert [len(reply) for reply in replies] == [80_001] * 2
        await until(lambda: len(server.told[Kind.ENDED]) == 2)

    relayed(use)


def test_a_failure_comes_to_the_caller_as_it_was_told() -> None:
    async def use(server: Server, retrieve: Any) -> None:
        call = retrieve(b"")
        ((number, _),) = await server.taken(1)
        trailers = [["grace-reason", "queue_full"], ["grpc-retry-pushback-ms", "63"]]
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
        server.link.send_facts(Kind.FAILURE, number, [code.value[0], "voll: \u00fc", trailers])
        assert await reason_of(call) == "queue_full"
        assert (await call.code(), await call.details()) == (code, "voll: \u00fc")
        assert dict(await call.trailing_metadata())["grpc-retry-pushback-ms"] == "63"
        await until(lambda: bool(server.told[Kind.ENDED]))

    relayed(use)


def test_a_call_that_nobody_waits_for_is_told_once_and_its_late_reply_is_nobody_s() -> None:
    async def use(server: Server, retrieve: Any) -> None:
        cancelled, expired = retrieve(b""), retrieve(b"", timeout=0.3)
        await server.taken(2)
        cancelled.cancel()
        await until(lambda: len(server.told[Kind.ENDED]) == 2)
        for number, _ in server.told[Kind.CALL]:
            server.link.send(Kind.REPLY, number, b"late")
        assert await expired.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        call = retrieve(b"more")
        (number, message) = (await server.taken(3))[2]
        server.link.send(Kind.REPLY, number, message)
        assert await call == b"more"

    relayed(use)


def test_what_is_beyond_the_server_s_bound_comes_as_that_without_its_message() -> None:
    async def use(server: Server, retrieve: Any) -> None:
        calls = [retrieve(b"x" * 63) for _ in range(CALLS + 2)]
        taken = await server.taken(CALLS)
        await until(lambda: len(server.told[Kind.SURPLUS]) == 2)
        assert [message for _, message in taken] == [b"x" * 63] * CALLS
        surplus = server.told[Kind.SURPLUS]
        assert [len(body) for _, body in surplus] == [TIMES.size] * 2
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
        for number, _ in surplus:
            trailers = [["grace-reason", "too_many_calls"]]
            server.link.send_facts(Kind.FAILURE, number, [code.value[0], "", trailers])
        for number, _ in taken:
            server.link.send(Kind.REPLY, number, b"r")
        assert Counter([await call.code() for call in calls]) == {
            grpc.StatusCode.OK: CALLS,
            code: 2,
        }
        await until(lambda: len(server.told[Kind.ENDED]) == CALLS + 2)
        again = retrieve(b"")
        assert (await server.taken(CALLS + 1))[-1] == (CALLS + 3, b"")
        server.link.send(Kind.REPLY, CALLS + 3, b"r")
        assert await again == b"r"

    relayed(use)


class Caller:
    """A call as gRPC has it."""

    def __init__(self) -> None:
        self.ends: list[Callable[[Any], None]] = []

    def time_remaining(self) -> float | None:
        return None

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.ends.append(callback)

    async def abort(self, code: grpc.StatusCode, details: str, trailers: object) -> NoReturn:
        raise RuntimeError(code, details, trailers)


@pytest.mark.parametrize("calls", [1, 1000], ids=["near the bound", "far from it"])
def test_a_call_that_is_over_leaves_nothing_and_its_end_is_told_at_once_near_the_bound(
    calls: int,
) -> None:
    async def use() -> None:
        server, relay, caller = Server(), Relay(), Caller()
        relay._most_calls = calls
        ours, theirs = socket.socketpair()
        await asyncio.gather(server.link.connect(ours), relay.link.connect(theirs))
        for outcome in (Kind.REPLY, Kind.FAILURE, None):
            count = len(server.told[Kind.CALL])
            call = asyncio.ensure_future(relay._retrieve(b"m", caller))
            number, _ = (await server.taken(count + 1))[-1]
            if outcome is Kind.REPLY:
                server.link.send(outcome, number, b"r")
                assert await call == b"r"
            elif outcome is Kind.FAILURE:
                server.link.send_facts(outcome, number, [14, "", []])
                with pytest.raises(RuntimeError):
                    await call
            else:
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
            caller.ends.pop()(caller)
            at_once = calls == 1 or outcome is None
            assert (relay.link._alone is None) == at_once
            await until(lambda count=count: len(server.told[Kind.ENDED]) == count + 1)  # type: ignore[misc]
        assert relay._waiting == {}
        assert relay._open_calls == 0
        relay.ends = True
        await relay.link.close()
        await server.link.close()

    asyncio.run(asyncio.wait_for(use(), 60))


def test_signals_that_stop_a_server_are_none_of_its_relays_business() -> None:
    async def use(server: Server, retrieve: Any) -> None:
        for each in (signal.SIGTERM, signal.SIGINT) * 3:
            os.kill(server.process.pid, each)
        call = retrieve(b"")
        ((number, _),) = await server.taken(1)
        server.link.send(Kind.REPLY, number, b"r")
        assert await call == b"r"

    relayed(use)


def test_signals_before_it_has_begun_do_not_end_it() -> None:
    async def start() -> None:
        server = Server()
        await server.start()
        for _ in range(111):
            os.kill(server.process.pid, signal.SIGTERM)
            os.kill(server.process.pid, signal.SIGINT)
            await asyncio.sleep(0.001)
        await until(lambda: bool(server.told[Kind.HELLO]))
        assert await server.end() == 0

    asyncio.run(asyncio.wait_for(start(), 60))


@pytest.mark.parametrize("told", [(), (Kind.OPEN, Kind.HEALTH)], ids=["at once", "after orders"])
def test_told_to_close_before_it_has_begun_it_ends_as_at_any_time(
    told: tuple[Kind, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    async def start() -> None:
        server = Server()
        await server.start()
        limits = ListenLimits(receive_bytes=1000, streams=111, reflection=False)
        settings = RelaySettings("127.0.0.1", free_port(), CALLS, limits).facts()
        facts = {Kind.OPEN: settings, Kind.HEALTH: {"serving": False}}
        for order, kind in enumerate(told, 1):
            server.link.send_facts(kind, order, facts[kind])
        server.link.send_facts(Kind.CLOSE, 0, {"seconds": None})
        await asyncio.wait_for(server.lost.wait(), 30)
        assert await server.end() == 0
        assert len(server.told[Kind.HELLO]) == 1
        assert not server.told[Kind.LOG]

    asyncio.run(asyncio.wait_for(start(), 60))
    assert capfd.readouterr().err == ""


def test_told_to_close_it_gives_calls_their_time_and_ends() -> None:
    async def use(server: Server, retrieve: Any) -> None:
        call = retrieve(b"")
        ((number, _),) = await server.taken(1)
        server.link.send_facts(Kind.CLOSE, 0, {"seconds": 30.0})
        await asyncio.sleep(0.1)
        server.link.send(Kind.REPLY, number, b"r")
        assert await call == b"r"
        await asyncio.wait_for(server.lost.wait(), 10)
        assert [each for each, _ in server.told[Kind.ENDED]] == [number]

    relayed(use)


def test_a_later_and_shorter_time_to_close_wins() -> None:
    async def use(server: Server, retrieve: Any) -> None:
        call = retrieve(b"")
        ((number, _),) = await server.taken(1)
        server.link.send_facts(Kind.CLOSE, 0, {"seconds": 600.0})
        server.link.send_facts(Kind.CLOSE, 0, {"seconds": None})
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        await asyncio.wait_for(server.lost.wait(), 10)
        assert [each for each, _ in server.told[Kind.ENDED]] == [number]

    relayed(use)


def test_it_ends_at_once_when_its_server_has_gone_and_its_callers_know() -> None:
    async def use(server: Server, retrieve: Any) -> None:
        call = retrieve(b"")
        await server.taken(1)
        await server.link.close()
        assert await call.code() is grpc.StatusCode.UNAVAILABLE

    relayed(use)


def test_an_address_that_cannot_be_listened_on_is_refused_in_the_server_s_words() -> None:
    async def start() -> None:
        server = Server()
        await server.start()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            fault = await server.open(port)
        assert fault.startswith(f"listen: 127.0.0.1:{port}: cannot be listened on; choose")
        assert await server.end() == 0

    asyncio.run(asyncio.wait_for(start(), 60))


def test_a_fault_of_its_own_is_told_to_the_server_s_log_and_ends_it() -> None:
    async def start() -> None:
        server = Server()
        await server.start()
        server.link.send_facts(Kind.OPEN, 1, {"marker": 4711})
        await asyncio.wait_for(server.lost.wait(), 10)
        assert await server.end() == 1
        ((_, line),) = server.told[Kind.LOG]
        told = json.loads(line)
        assert (told["event"], told["error"], told["level"]) == ("front_end_failed", "KeyError", 40)
        assert "4711" not in line.decode()

    asyncio.run(asyncio.wait_for(start(), 60))
