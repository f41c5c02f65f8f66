"""Makes a load and records what becomes of each call.

An open loop makes its calls at times fixed beforehand, whatever becomes of those before, as
independent users do: a server that stalls then meets the calls that came meanwhile, and their
latency counts from when they were meant to be made. A closed loop keeps a number of calls under
way: it shows what a server can do at most, and says nothing about latency under a given rate.

Before the clock starts, every connection is made and has carried one call, which is not counted:
the first call of a connection is slow on both sides, and only short loads would show it.

This is one process. Several make one load together (team.py): each makes a part, on the same clock.

The event loop waits with select(), whose time-outs are exact to microseconds; epoll's, and so
uvloop's, are whole milliseconds, by which every call would be late.
"""

import asyncio
import selectors
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import grpc

from grace.bench.load.arrivals import poisson_arrivals
from grace.bench.load.calls import Call, LoadRun, ServerTimes, status_name
from grace.bench.load.shots import Shot
from grace.configs.errors import InputError
from grace.proto.retrieval_pb2 import DESCRIPTOR, RetrieveResponse

__all__ = ["FINISH_SECONDS", "ClosedLoop", "Load", "OpenLoop", "Part", "Progress", "run_load"]

FINISH_SECONDS = 20.0

Progress: TypeAlias = Callable[[float], None]
"""Takes the seconds of the load that are over."""

_SERVICE = DESCRIPTOR.services_by_name["AdsRetrieval"]
_METHOD = f"/{_SERVICE.full_name}/Retrieve"
_CHANNEL_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # or equal channels would share one connection
    ("grpc.enable_retries", 0),  # one call is one call
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)
_CONNECT_SECONDS = 10.0
_WARM_UP_SECONDS = 10.0
_PROGRESS_SECONDS = 0.5

_Method: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]"


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Poisson arrivals. Calls under way `finish_seconds` after the last one are withdrawn."""

    rate: float
    seconds: float
    seed: int = 1
    finish_seconds: float = FINISH_SECONDS


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`in_flight` callers, each making its next call when its last one has ended."""

    in_flight: int
    seconds: float


Load: TypeAlias = OpenLoop | ClosedLoop


@dataclass(frozen=True, slots=True)
class Part:
    """What one of `of` processes makes of a load: call or caller `number`, `number` + `of`, ...

    Thinned so, an open loop's calls are the same ones at the same times whoever makes them.

    begin  called when the connections are warm: waits for the others, and tells when the load's
           clock starts, by `time.perf_counter`, which all processes of a machine share
    """

    number: int = 0
    of: int = 1
    begin: Callable[[], float] = time.perf_counter


def run_load(
    address: str,
    shots: Sequence[Shot],
    load: Load,
    connections: int = 4,
    progress: Progress = lambda seconds: None,
    part: Part = Part(),
) -> LoadRun:
    """Call i makes shot i, beginning again after the last, on connection i, likewise."""
    with asyncio.Runner(loop_factory=_event_loop) as runner:
        return runner.run(_run(address, shots, load, connections, progress, part))


def _event_loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


async def _run(
    address: str,
    shots: Sequence[Shot],
    load: Load,
    connections: int,
    progress: Progress,
    part: Part,
) -> LoadRun:
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(
                grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
            )
            for _ in range(connections)
        ]
        await _connect(address, channels)
        methods: list[_Method] = [channel.unary_unary(_METHOD) for channel in channels]
        await _warm_up(methods, shots)
        begin = part.begin()
        wait = begin - time.perf_counter()
        began = datetime.now(UTC) + timedelta(seconds=wait)
        await asyncio.sleep(wait)
        caller = _Caller(methods, shots, begin, part.of)
        told = asyncio.create_task(_tell(caller, progress))
        try:
            if isinstance(load, OpenLoop):
                await _open_loop(caller, load, part)
            else:
                await _closed_loop(caller, load, part)
        finally:
            told.cancel()
        return LoadRun(address, began, caller.now(), tuple(caller.ended), len(methods))


async def _connect(address: str, channels: Sequence[grpc.aio.Channel]) -> None:
    ready = asyncio.gather(*(channel.channel_ready() for channel in channels))
    try:
        await asyncio.wait_for(ready, _CONNECT_SECONDS)
    except TimeoutError:
        raise InputError(f"{address}: no server answers there; start one with `grace serve`") from (
            None
        )


async def _warm_up(methods: Sequence[_Method], shots: Sequence[Shot]) -> None:
    """One call on each connection, whatever becomes of it: the load will show why."""
    patient = [Shot(shot.body, _WARM_UP_SECONDS) for shot in shots[: len(methods)]]
    caller = _Caller(methods, patient, time.perf_counter())
    await asyncio.gather(*(caller.call(number, caller.now()) for number in range(len(methods))))


async def _tell(caller: "_Caller", progress: Progress) -> None:
    while True:
        progress(caller.now())
        await asyncio.sleep(_PROGRESS_SECONDS)


async def _open_loop(caller: "_Caller", load: OpenLoop, part: Part) -> None:
    under_way: set[asyncio.Task[None]] = set()
    arrivals = poisson_arrivals(load.rate, load.seconds, load.seed).tolist()
    for number in range(part.number, len(arrivals), part.of):
        due = arrivals[number]
        if (wait := due - caller.now()) > 0:
            await asyncio.sleep(wait)
        task = asyncio.create_task(caller.call(number, due))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    rest = list(under_way)
    if rest:
        await asyncio.wait(rest, timeout=load.finish_seconds)
        caller.withdraw()
        await asyncio.gather(*rest)


async def _closed_loop(caller: "_Caller", load: ClosedLoop, part: Part) -> None:
    async def again(number: int) -> None:
        while (now := caller.now()) < load.seconds:
            await caller.call(number, now)
            number += load.in_flight

    callers = range(part.number, load.in_flight, part.of)
    await asyncio.gather(*(again(number) for number in callers))


class _Caller:
    """Makes single calls, and keeps the record of those that have ended."""

    def __init__(
        self, methods: Sequence[_Method], shots: Sequence[Shot], begin: float, of: int = 1
    ) -> None:
        self._methods = methods
        self._of = of
        self._shots = shots
        self._begin = begin
        self._under_way: set[grpc.aio.UnaryUnaryCall[bytes, bytes]] = set()
        self.ended: list[Call] = []

    def now(self) -> float:
        return time.perf_counter() - self._begin

    def withdraw(self) -> None:
        for call in self._under_way:
            call.cancel()

    async def call(self, number: int, intended: float) -> None:
        shot = self._shots[number % len(self._shots)]
        method = self._methods[number // self._of % len(self._methods)]
        sent = self.now()
        call = method(shot.body, timeout=shot.timeout_seconds)
        self._under_way.add(call)
        if shot.cancel_after_seconds is not None:
            asyncio.get_running_loop().call_later(shot.cancel_after_seconds, call.cancel)
        try:
            reply = await call
        except grpc.aio.AioRpcError as error:
            self.ended.append(
                Call(
                    intended,
                    sent,
                    self.now(),
                    status_name(error.code()),
                    _reason(error),
                    error.details() or "",
                )
            )
        except asyncio.CancelledError:
            if not call.cancelled():
                raise  # it is this client that is being ended
            self.ended.append(Call(intended, sent, self.now(), "Canceled", withdrawn=True))
        else:
            ended = self.now()
            self.ended.append(Call(intended, sent, ended, "OK", server=_server_times(reply)))
        finally:
            self._under_way.discard(call)


def _reason(error: grpc.aio.AioRpcError) -> str:
    for name, value in error.trailing_metadata():
        if name == "grace-reason":
            return value if isinstance(value, str) else value.decode()
    return ""


def _server_times(reply: bytes) -> ServerTimes:
    times = RetrieveResponse.FromString(reply).timings
    return ServerTimes(
        queue=times.queue_us,
        input=times.input_us,
        features=times.features_us,
        generate=times.generate_us,
        post=times.post_us,
    )
