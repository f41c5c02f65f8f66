"""Makes a load from one process and records the end of each call.

An open loop makes its calls at times fixed in advance, as independent users do. A server that
stalls then meets the calls that arrive meanwhile, and their latency counts from when they were due.
A closed loop keeps N calls under way: it shows the server's highest rate, not its latency under a
given rate.

Before the clock starts, each connection carries one call that the result leaves out, since the
first call of a connection is slow on both sides.
"""

import asyncio
import gc
import selectors
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeAlias

import grpc
import numpy as np
import numpy.typing as npt

from grace.bench.load.shots import Shot
from grace.client import Tls
from grace.client.connection import channel
from grace.configs.errors import InputError
from grace.proto.retrieval_pb2 import DESCRIPTOR, RetrieveResponse

FINISH_SECONDS = 20.0

_SERVICE = DESCRIPTOR.services_by_name["AdsRetrieval"]
METHOD = f"/{_SERVICE.full_name}/Retrieve"
CHANNEL_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # or equal channels would share one connection
    ("grpc.enable_retries", 0),  # one call is one call
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)

_Method: TypeAlias = "Callable[..., grpc.aio.UnaryUnaryCall[bytes, bytes]]"


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Poisson arrivals. The client withdraws what is under way `finish_seconds` after the last."""

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


class ServerTimes(NamedTuple):
    """The timings of one reply, in microseconds."""

    queue: int
    input: int
    features: int
    generate: int
    post: int


STAGES = ServerTimes._fields[1:]


@dataclass(frozen=True, slots=True)
class Call:
    """One call. Times are in seconds since the load began.

    intended   when the load meant to make the call: latency counts from here
    status     in ghz's spelling, such as OK or ResourceExhausted
    reason     the server's `grace-reason`, empty if it gave none
    withdrawn  this client cancelled the call at the end of the load: the server made no error
    """

    intended: float
    sent: float
    ended: float
    status: str
    reason: str = ""
    text: str = ""
    server: ServerTimes | None = None
    withdrawn: bool = False

    @property
    def latency(self) -> float:
        return self.ended - self.intended

    @property
    def lateness(self) -> float:
        """How many seconds late the client made the call."""
        return self.sent - self.intended

    @property
    def error(self) -> str:
        """The error as ghz writes it, or an empty text if the call succeeded or was withdrawn."""
        if self.status == "OK" or self.withdrawn:
            return ""
        return f"rpc error: code = {self.status} desc = {self.text}"


@dataclass(frozen=True, slots=True)
class LoadRun:
    """A finished load. `seconds` end with its last call, and `calls` leave out warm-up calls."""

    address: str
    began: datetime
    seconds: float
    calls: tuple[Call, ...]
    warm_up_calls: int
    processes: int = 1


@dataclass(frozen=True, slots=True)
class Part:
    """The share of one of `of` client processes: call or caller `number`, `number` + `of`, ...

    begin  called when the connections are warm: waits for the other processes and returns when the
           load begins, on the clock of `time.perf_counter`, which all processes of a machine share
    """

    number: int = 0
    of: int = 1
    begin: Callable[[], float] = time.perf_counter


def poisson_arrivals(rate: float, seconds: float, seed: int) -> npt.NDArray[np.float64]:
    """Return ascending times in [0, seconds), `rate` a second on average, the same for one seed."""
    rng = np.random.default_rng(seed)
    count = int(rng.poisson(rate * seconds))
    # Given their number, the arrivals of a Poisson process are uniform.
    return np.sort(rng.random(count)) * seconds


@dataclass(frozen=True, slots=True)
class Target:
    """The server to call, the requests to send, and how; each client process has `connections`."""

    address: str
    shots: Sequence[Shot]
    connections: int = 4
    tls: Tls | None = None
    connect_seconds: float = 10.0
    warm_up_seconds: float = 10.0


def run_load(target: Target, load: Load, part: Part = Part()) -> LoadRun:
    """Make the load. Call i takes shot i and connection i, each in turn."""
    address, shots, tls = target.address, target.shots, target.tls

    async def run() -> LoadRun:
        async with AsyncExitStack() as stack:
            channels = [
                await stack.enter_async_context(channel(address, tls, CHANNEL_OPTIONS, grpc.aio))
                for _ in range(target.connections)
            ]
            ready = asyncio.gather(*(channel.channel_ready() for channel in channels))
            try:
                await asyncio.wait_for(ready, target.connect_seconds)
            except TimeoutError:
                raise InputError(
                    f"{address}: no server answers there, or not with these TLS options; "
                    "start one with `grace serve`"
                ) from None
            methods: list[_Method] = [channel.unary_unary(METHOD) for channel in channels]
            await _warm_up(methods, shots, target.warm_up_seconds)
            stack.enter_context(_small_collections())
            begin = part.begin()
            wait = begin - time.perf_counter()
            began = datetime.now(UTC) + timedelta(seconds=wait)
            await asyncio.sleep(wait)
            caller = _Caller(methods, shots, begin, part.of)
            await (
                _open_loop(caller, load, part)
                if isinstance(load, OpenLoop)
                else _closed_loop(caller, load, part)
            )
            return LoadRun(address, began, caller.now(), tuple(caller.ended), len(methods))

    # Time-outs of select() count microseconds, those of epoll and uvloop milliseconds.
    selector = selectors.SelectSelector()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        return runner.run(run())


@contextmanager
def _small_collections() -> Iterator[None]:
    """Keep the garbage collector to what a load makes. A collection of all that is loaded stops the
    calls for a tenth of a second, and a few of these in a load are its P99."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


async def _warm_up(methods: Sequence[_Method], shots: Sequence[Shot], seconds: float) -> None:
    """Make one call on each connection and ignore how it ends: the load itself will show why."""
    patient = [Shot(shot.body, seconds) for shot in shots[: len(methods)]]
    caller = _Caller(methods, patient, time.perf_counter())
    await asyncio.gather(*(caller.call(number, caller.now()) for number in range(len(methods))))


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
    if rest := list(under_way):
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
    """Makes single calls and records each one when it ends."""

    def __init__(
        self, methods: Sequence[_Method], shots: Sequence[Shot], begin: float, of: int = 1
    ) -> None:
        self._methods, self._shots, self._begin, self._of = methods, shots, begin, of
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
        try:
            reply = await call
        except grpc.aio.AioRpcError as error:
            ended, status, text = self.now(), status_name(error.code()), error.details() or ""
            self.ended.append(Call(intended, sent, ended, status, reason_of(error), text))
        except asyncio.CancelledError:
            if not call.cancelled():
                raise  # the whole client is being stopped, not this call
            self.ended.append(Call(intended, sent, self.now(), "Canceled", withdrawn=True))
        else:
            ended, times = self.now(), RetrieveResponse.FromString(reply).timings
            server = ServerTimes(*(getattr(times, f"{name}_us") for name in ServerTimes._fields))
            self.ended.append(Call(intended, sent, ended, "OK", server=server))
        finally:
            self._under_way.discard(call)


def status_name(code: grpc.StatusCode) -> str:
    """Return the name that Go, and so ghz, gives a status."""
    names = {grpc.StatusCode.OK: "OK", grpc.StatusCode.CANCELLED: "Canceled"}
    return names.get(code) or code.name.title().replace("_", "")


def reason_of(error: grpc.aio.AioRpcError) -> str:
    for name, value in error.trailing_metadata():
        if name == "grace-reason":
            return value if isinstance(value, str) else value.decode()
    return ""
