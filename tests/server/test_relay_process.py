"""One relay as the server sees it: calls, their ends in any order, and what is wrong with it.

Here the relay is the test: it has the other end of the link, and a process that does nothing.
"""

import asyncio
import json
import logging
import math
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from time import perf_counter
from unittest.mock import patch

import grpc
import pytest

from grace.configs.serving import LimitsConfig
from grace.server.transport.frames import PROTOCOL, TIMES, Kind, Link, Take
from grace.server.transport.relay_process import RelayProcess
from support.served import Service, until

pytestmark = pytest.mark.subprocess

BOUND = 111
IDLE = "import time; time.sleep(600)"
REPLY = b"x" * 65_536
KILLED = "SIGKILL of the server's own: it did not end in time"


class Relay:
    """The other end: `told` is what the server says, by kind."""

    def __init__(self, service: Service, idle: str) -> None:
        self.service = service
        self.told: dict[Kind, list[tuple[int, bytes]]] = {kind: [] for kind in Kind}
        takes: dict[int, Take] = {kind: self._taker(kind) for kind in Kind}
        self.link = Link(takes, lambda error: None)
        self.process: RelayProcess
        self._idle = idle

    async def connect(self) -> None:
        ends: list[socket.socket] = []

        def start(end: socket.socket) -> subprocess.Popen[bytes]:
            ends.append(end.dup())
            return subprocess.Popen([sys.executable, "-c", self._idle], stdin=subprocess.DEVNULL)

        with patch("grace.server.transport.relay_process._start", start):
            made = RelayProcess.started("1 of 1", self.service.front_end, self.service.died.set)
            self.process = await made
        await self.link.connect(ends[0])

    async def close(self) -> None:
        await self.link.close()
        await self.process.close(None)

    def hello(self, protocol: int = PROTOCOL, ahead: float = 0.0) -> None:
        clock = perf_counter() + ahead
        self.link.send_facts(Kind.HELLO, 0, {"protocol": protocol, "clock": clock})

    def call(self, number: int, message: bytes = b"", ago: float = 0.0, left: float = 60) -> None:
        now = perf_counter()
        self.link.send(Kind.CALL, number, TIMES.pack(now - ago, now + left), message)

    def surplus(self, number: int) -> None:
        self.link.send(Kind.SURPLUS, number, TIMES.pack(perf_counter(), math.inf))

    def ended(self, number: int) -> None:
        self.link.send(Kind.ENDED, number)

    def _taker(self, kind: Kind) -> Take:
        return lambda number, body: self.told[kind].append((number, bytes(body)))


def related(
    use: Callable[[Relay, Service], Awaitable[None]],
    idle: str = IDLE,
    reap_seconds: float = 0.0,
) -> None:
    """Calls `use` with a relay of a service; `idle` is what the relay's process does, until it
    is killed, `reap_seconds` after its end of the link has closed.
    """

    async def relate() -> None:
        service = Service(LimitsConfig(open_calls=BOUND))
        relay = Relay(service, idle)
        await relay.connect()
        try:
            await use(relay, service)
        finally:
            await relay.close()

    with patch("grace.server.transport.relay_process.REAP_SECONDS", reap_seconds):
        asyncio.run(asyncio.wait_for(relate(), 60))


def ends(service: Service) -> tuple[float, float]:
    """Calls that are counted as OK, and as cancelled."""
    return (
        service.count("grace_requests_total", code="OK"),
        service.count("grace_request_failures_total", reason="cancelled"),
    )


def test_each_call_gets_its_own_reply_and_is_open_until_it_has_ended_in_the_relay() -> None:
    async def use(relay: Relay, service: Service) -> None:
        for number in (3, 2**63, 7):
            relay.call(number)
        await until(lambda: len(relay.told[Kind.REPLY]) == 3)
        assert relay.told[Kind.REPLY] == [(number, REPLY) for number in (3, 2**63, 7)]
        assert service.state.open_calls == 3
        for number in (7, 3):
            relay.ended(number)
        await until(lambda: service.state.open_calls == 1)
        relay.ended(2**63)
        assert await service.front_end.until_idle(60.0) == 0
        assert ends(service) == (3, 0)

    related(use)


def test_a_failure_travels_with_its_code_its_text_and_all_trailers() -> None:
    async def use(relay: Relay, service: Service) -> None:
        relay.call(1, b"\xff" * 9)
        await until(lambda: len(relay.told[Kind.FAILURE]) == 1)
        service.state.open_calls = BOUND
        relay.call(2)
        await until(lambda: len(relay.told[Kind.FAILURE]) == 2)
        (_, malformed), (_, refused) = relay.told[Kind.FAILURE]
        code, text, trailers = json.loads(malformed)
        assert code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert trailers == [["grace-reason", "malformed"]]
        assert "grace.v1.RetrieveRequest" in text
        code, text, trailers = json.loads(refused)
        assert code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        assert trailers == [["grace-reason", "too_many_calls"], ["grpc-retry-pushback-ms", "1000"]]

    related(use)


def test_time_between_the_processes_counts_as_the_request_s_own() -> None:
    async def use(relay: Relay, service: Service) -> None:
        relay.call(1, ago=30.0, left=20.0)
        await until(lambda: ends(service) == (1, 0))
        assert 30.0 < service.count("grace_request_duration_seconds_sum") < 60.0
        assert 0.0 < service.count("grace_deadline_slack_seconds_sum") < 20.0
        relay.call(2, left=math.inf)
        await until(lambda: ends(service) == (2, 0))
        assert service.count("grace_deadline_slack_seconds_count") == 1

    related(use)


def test_a_call_that_ends_before_its_answer_is_withdrawn_and_never_answered() -> None:
    async def use(relay: Relay, service: Service) -> None:
        service.pipeline.answers = False
        relay.call(1)
        relay.call(2, ago=1.0, left=0.0)  # its deadline has passed
        relay.call(3)
        await until(lambda: len(service.pipeline.taken) == 3)
        relay.ended(1)
        relay.ended(2)
        await until(lambda: service.state.open_calls == 1)
        assert len(service.pipeline.cancelled) == 2
        assert service.count("grace_request_failures_total", reason="deadline_exceeded") == 1
        service.pipeline.answer()
        await until(lambda: ends(service) == (1, 1))
        assert relay.told[Kind.REPLY] == [(3, REPLY)]

    related(use)


def test_a_call_that_ends_as_it_comes_leaves_nothing() -> None:
    async def use(relay: Relay, service: Service) -> None:
        service.pipeline.answers = False
        for number in range(63):
            relay.call(number)
            relay.ended(number)
        relay.call(63)
        await until(lambda: ends(service) == (0, 63))
        await until(lambda: service.state.open_calls == 1)
        assert len(service.pipeline.cancelled) == len(service.pipeline.taken) - 1 == 63
        assert relay.told[Kind.REPLY] == relay.told[Kind.FAILURE] == []

    related(use)


def test_a_surplus_call_is_refused_whatever_ends_with_it() -> None:
    async def use(relay: Relay, service: Service) -> None:
        for number in range(BOUND):
            relay.call(number)
        await until(lambda: len(relay.told[Kind.REPLY]) == BOUND)
        relay.surplus(BOUND)
        for number in range(BOUND):
            relay.ended(number)
        relay.surplus(BOUND + 1)
        await until(lambda: sum(map(len, relay.told.values())) == BOUND + 2)
        assert [number for number, _ in relay.told[Kind.FAILURE]] == [BOUND, BOUND + 1]
        for _, failure in relay.told[Kind.FAILURE]:
            assert json.loads(failure)[2][0] == ["grace-reason", "too_many_calls"]
        assert service.count("grace_request_failures_total", reason="too_many_calls") == 2
        assert service.state.open_calls == 2
        relay.ended(BOUND)
        relay.ended(BOUND + 1)
        assert await service.front_end.until_idle(60.0) == 0

    related(use)


def test_calls_are_one_too_many_in_the_order_in_which_they_come() -> None:
    async def use(relay: Relay, service: Service) -> None:
        for number in range(BOUND + 1):  # of different relays, say: none knows of it
            relay.call(number)
        await until(lambda: sum(map(len, relay.told.values())) == BOUND + 1)
        assert [number for number, _ in relay.told[Kind.FAILURE]] == [BOUND]
        relay.call(BOUND + 1)
        for number in (0, 1, BOUND):
            relay.ended(number)
        relay.call(BOUND + 2)
        relay.call(BOUND + 3)
        await until(lambda: sum(map(len, relay.told.values())) == BOUND + 4)
        assert [number for number, _ in relay.told[Kind.FAILURE]] == [BOUND, BOUND + 1, BOUND + 3]
        assert relay.told[Kind.REPLY][-1][0] == BOUND + 2
        assert service.state.open_calls == BOUND + 1

    related(use)


def test_an_answer_and_an_end_that_cross_make_one_count() -> None:
    async def use(relay: Relay, service: Service) -> None:
        service.pipeline.answers = False
        for turn in range(1, 64):
            relay.call(turn)
            await until(lambda: bool(service.pipeline.taken))
            relay.ended(turn)
            for _ in range(turn % 7):  # how far the end has come when the answer does
                await asyncio.sleep(0)
            service.pipeline.answer()
            await until(lambda: not service.state.open_calls)
            await until(lambda turn=turn: sum(ends(service)) == turn)  # type: ignore[misc]
        assert min(ends(service)) > 0, "either was first at times"
        assert await service.front_end.until_idle(60.0) == 0

    related(use)


def test_calls_of_a_relay_that_is_lost_are_withdrawn_counted_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def use(relay: Relay, service: Service) -> None:
        relay.call(1)
        await until(lambda: ends(service) == (1, 0))
        service.pipeline.answers = False
        relay.call(2)
        relay.call(3)
        await until(lambda: len(service.pipeline.taken) == 2)
        await relay.link.close()
        await asyncio.wait_for(service.died.wait(), 10)
        assert service.state.open_calls == 0
        assert ends(service) == (1, 2)
        assert len(service.pipeline.cancelled) == 2
        fault = f"listen.front_ends: process 1 of 1 ended with {KILLED}"
        assert await relay.process.order(Kind.HEALTH, {"serving": True}) == fault

    related(use)
    (record,) = [entry for entry in caplog.records if entry.message == "front_end_died"]
    told = vars(record)
    assert (told["front_end"], told["end"], told["calls"]) == ("1 of 1", KILLED, 3)
    assert record.levelno == logging.ERROR


def test_a_fault_of_ours_is_told_as_any_other_and_its_text_goes_nowhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def use(relay: Relay, service: Service) -> None:
        with patch.object(service.front_end, "answer", side_effect=KeyError("marker-4711")):
            relay.call(1)
            await until(lambda: bool(relay.told[Kind.FAILURE]))
        code, text, trailers = json.loads(relay.told[Kind.FAILURE][0][1])
        assert code == grpc.StatusCode.INTERNAL.value[0]
        assert trailers == [["grace-reason", "internal"]]
        assert "marker" not in text

    related(use)
    assert "call failed" in caplog.messages


def test_a_line_of_a_relay_s_log_is_one_of_the_server_s(caplog: pytest.LogCaptureFixture) -> None:
    async def use(relay: Relay, service: Service) -> None:  # noqa: ARG001
        facts = {"level": logging.WARNING, "event": "library", "logger": "grpc", "where": "x.py:1"}
        relay.link.send_facts(Kind.LOG, 0, facts)
        await until(lambda: bool(caplog.records))

    related(use)
    told = vars(caplog.records[0])
    assert (told["event"], told["logger"], told["front_end"]) == ("library", "grpc", "1 of 1")
    assert told["levelno"] == logging.WARNING


@pytest.mark.parametrize("protocol", [PROTOCOL, PROTOCOL + 1])
def test_a_relay_of_another_version_is_noticed(protocol: int) -> None:
    async def use(relay: Relay, service: Service) -> None:  # noqa: ARG001
        relay.hello(protocol)
        fault = await relay.process.greeted()
        if protocol == PROTOCOL:
            assert not fault
        else:
            assert f"speaks protocol {protocol}, this server {PROTOCOL}; install" in fault

    related(use)


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
def test_a_relay_with_another_clock_is_noticed(ahead: float) -> None:
    async def use(relay: Relay, service: Service) -> None:  # noqa: ARG001
        relay.hello(ahead=ahead)
        fault = await relay.process.greeted()
        assert fault.startswith("listen.front_ends: by the clock of process 1 of 1 it is ")
        assert fault.endswith("; set it to 0")

    related(use)


def test_a_link_that_cannot_be_made_leaves_no_socket_and_no_process() -> None:
    began: list[subprocess.Popen[bytes]] = []
    ends: list[socket.socket] = []

    def start(end: socket.socket) -> subprocess.Popen[bytes]:  # noqa: ARG001
        began.append(subprocess.Popen([sys.executable, "-c", IDLE], stdin=subprocess.DEVNULL))
        return began[0]

    async def connect(link: Link, end: socket.socket) -> None:  # noqa: ARG001
        ends.append(end)
        raise OSError("marker")

    async def use() -> None:
        service = Service(LimitsConfig())
        await RelayProcess.started("1 of 1", service.front_end, service.died.set)

    with (
        patch("grace.server.transport.relay_process._start", start),
        patch("grace.server.transport.frames.Link.connect", connect),
        pytest.raises(OSError, match="marker"),
    ):
        asyncio.run(use())
    assert began[0].returncode == -signal.SIGKILL
    assert ends[0].fileno() == -1


def test_calls_and_orders_that_are_over_leave_nothing() -> None:
    async def use(relay: Relay, service: Service) -> None:
        for number in range(3):
            relay.call(number)
        await until(lambda: len(relay.told[Kind.REPLY]) == 3)
        for number in range(3):
            relay.ended(number)
        await until(lambda: not service.state.open_calls)
        order = asyncio.ensure_future(relay.process.order(Kind.HEALTH, {"serving": True}))
        await until(lambda: bool(relay.told[Kind.HEALTH]))
        relay.link.send(Kind.DONE, relay.told[Kind.HEALTH][0][0])
        assert await order == ""
        assert not relay.process._calls
        assert not relay.process._orders
        await relay.link.close()
        await asyncio.wait_for(service.died.wait(), 10)
        assert service.state.open_calls == 0

    related(use)


def test_an_order_is_over_when_the_relay_says_so_in_its_own_words() -> None:
    async def use(relay: Relay, service: Service) -> None:  # noqa: ARG001
        first = asyncio.ensure_future(relay.process.order(Kind.OPEN, {"port": 1}))
        second = asyncio.ensure_future(relay.process.order(Kind.HEALTH, {"serving": True}))
        await until(lambda: bool(relay.told[Kind.OPEN] and relay.told[Kind.HEALTH]))
        ((one, facts),) = relay.told[Kind.OPEN]
        assert json.loads(facts) == {"port": 1}
        ((two, _),) = relay.told[Kind.HEALTH]
        relay.link.send(Kind.DONE, two)
        assert await second == ""
        assert not first.done()
        relay.link.send(Kind.DONE, one, b"taken")
        assert await first == "taken"

    related(use)


def test_a_process_that_ends_before_it_speaks_is_told_with_its_exit_code() -> None:
    async def use(relay: Relay, service: Service) -> None:
        await relay.link.close()
        assert await relay.process.greeted() == (
            "listen.front_ends: process 1 of 1 ended with exit code 3"
        )
        assert service.died.is_set()

    related(use, "raise SystemExit(3)", reap_seconds=60.0)
