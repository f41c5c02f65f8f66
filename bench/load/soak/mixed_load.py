"""A light load of everything that clients do, well or badly, for hours.

Each kind of work comes at its own Poisson rate: good calls, calls that the server refuses, calls
with too little time, calls that their callers give up, clients that connect for one call or hang up
within one, health checks and watches, the status of Admin, and scrapes of the metrics.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub

from grace.bench.load.client import CHANNEL_OPTIONS, FINISH_SECONDS, METHOD, reason_of, status_name
from grace.client import request_of_json

CONNECTIONS = 4
GOOD_REQUESTS = 31

RATES: Mapping[str, float] = {
    "good": 20.0,
    "low": 2.0,
    "wrong_sid_space": 4.0,
    "invalid_field": 4.0,
    "malformed": 4.0,
    "too_large": 0.5,
    "beyond_grpc": 0.5,
    "hasty": 4.0,
    "cancelled": 4.0,
    "reconnecting": 1.5,
    "hanging_up": 0.5,
    "health": 2.0,
    "health_watch": 0.5,
    "status": 0.5,
    "scrape": 0.5,
}
"""The kinds of work, and how often a second each begins."""

_Method: TypeAlias = "grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]"
_Work: TypeAlias = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Target:
    """The addresses of a server, and the largest message that it takes."""

    retrieve: str
    admin: str
    metrics: str
    message_bytes: int


class MixedLoad:
    """A load to `run` once.

    rates  how often a second each kind of work begins
    ends   counts how the work of each kind ended: OK, the server's reason, gRPC's status, or
           `withdrawn` if the load gave up the call
    """

    def __init__(
        self, target: Target, requests: Sequence[Mapping[str, Any]], rates: Mapping[str, float]
    ) -> None:
        first = requests[0]
        self._target, self._rates = target, rates
        self._draw = random.Random(1)
        self._good = [_bytes(request) for request in requests[:GOOD_REQUESTS]]
        self._bodies = {
            "low": _bytes(first, priority="LOW"),
            "wrong_sid_space": _bytes(first, sid_space="another"),
            "invalid_field": _bytes(first, max_ads=999_999),
            "malformed": b"\xff" * 63,
            "too_large": bytes(2 * target.message_bytes),
            "beyond_grpc": bytes(5 * target.message_bytes),
        }
        self.ends = {name: Counter[str]() for name in rates}

    async def run(self, seconds: float) -> None:
        async with AsyncExitStack() as stack:
            channels = [
                await stack.enter_async_context(_channel(self._target.retrieve))
                for _ in range(CONNECTIONS)
            ]
            operator = await stack.enter_async_context(_channel(self._target.admin))
            self._methods: list[_Method] = [channel.unary_unary(METHOD) for channel in channels]
            self._health = [HealthStub(channel) for channel in channels]
            self._status: _Method = operator.unary_unary("/grace.v1.Admin/GetStatus")
            kinds = self._kinds()
            repeated = (self._repeat(name, kinds[name], seconds) for name in self._rates)
            await asyncio.gather(*repeated)

    async def _repeat(self, name: str, work: _Work, seconds: float) -> None:
        draw, under_way = random.Random(name), set[asyncio.Task[None]]()
        begin = due = time.monotonic()
        while (due := due + draw.expovariate(self._rates[name])) < begin + seconds:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            task = asyncio.create_task(_counted(work, self.ends[name]))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        if under_way:
            await asyncio.wait(under_way, timeout=FINISH_SECONDS)

    def _kinds(self) -> Mapping[str, _Work]:
        def sends(body: bytes) -> _Work:
            return lambda: self._method(body)

        return {
            **{name: sends(body) for name, body in self._bodies.items()},
            "good": lambda: self._method(self._a_good_one),
            "hasty": lambda: self._method(self._a_good_one, timeout=self._soon),
            "cancelled": self._cancelled,
            "reconnecting": self._reconnecting,
            "hanging_up": self._hanging_up,
            "health": lambda: self._draw.choice(self._health).Check(HealthCheckRequest()),
            "health_watch": self._health_watch,
            "status": lambda: self._status(b""),
            "scrape": self._scrape,
        }

    @property
    def _method(self) -> _Method:
        return self._draw.choice(self._methods)

    @property
    def _a_good_one(self) -> bytes:
        return self._draw.choice(self._good)

    @property
    def _soon(self) -> float:
        """Seconds that may or may not be enough for an answer."""
        return self._draw.uniform(0.001, 0.02)

    async def _cancelled(self) -> None:
        call = self._method(self._a_good_one)
        asyncio.get_running_loop().call_later(self._soon, call.cancel)
        await call

    async def _reconnecting(self) -> None:
        async with _channel(self._target.retrieve) as channel:
            method: _Method = channel.unary_unary(METHOD)
            await method(self._a_good_one)

    async def _hanging_up(self) -> None:
        async with _channel(self._target.retrieve) as channel:
            method: _Method = channel.unary_unary(METHOD)
            call = method(self._a_good_one)
            with suppress(TimeoutError):
                await asyncio.wait_for(channel.channel_ready(), 1.0)
            await asyncio.sleep(self._soon / 4)
        await call

    async def _health_watch(self) -> None:
        async with _channel(self._target.retrieve) as channel:
            stream = HealthStub(channel).Watch(HealthCheckRequest())
            async for _ in stream:
                break
            stream.cancel()

    async def _scrape(self) -> None:
        host, _, port = self._target.metrics.rpartition(":")
        reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        try:
            writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
            answer = await reader.read()
        finally:
            writer.close()
        if b" 200 " not in answer[:20]:
            raise ConnectionError


async def _counted(work: _Work, ends: Counter[str]) -> None:
    try:
        await work()
    except grpc.aio.AioRpcError as error:
        ends[reason_of(error) or status_name(error.code())] += 1
    except asyncio.CancelledError:
        ends["withdrawn"] += 1
    except OSError as error:
        ends[type(error).__name__] += 1
    else:
        ends["OK"] += 1


def _channel(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)


def _bytes(request: Mapping[str, Any], **fields: Any) -> bytes:
    return request_of_json({**request, **fields}).SerializeToString()
