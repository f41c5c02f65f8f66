"""Calls that the front end does not count: requests that do not come, endless streams, silence."""

import asyncio
import gc
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest
from hyperframe.frame import DataFrame, GoAwayFrame, PingFrame, RstStreamFrame

from grace.configs.serving import LimitsConfig, ServingConfig
from grace.proto.retrieval_pb2 import DESCRIPTOR
from grace.server.transport.listener.grpc_listener import GrpcListener
from grace.server.transport.listener.listen_limits import ListenLimits
from support.pipeline_cases import GENERATION
from support.raw_http2 import RawHttp2
from support.served import METHOD, Service, serving, until

WATCH = b"/grpc.health.v1.Health/Watch"
CHECK = b"/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
HALF = b"\0\0\0\0\x09half"
FULL = grpc.StatusCode.RESOURCE_EXHAUSTED


@serving(reply_seconds=0.3, everywhere=True)
async def test_a_call_that_stands_still_is_reset_in_time(service: Service) -> None:
    """Its request does not come, the reply of its health check is not read, or its stream of
    reflection asks nothing."""
    with (
        RawHttp2(service.address) as silent,
        RawHttp2(service.address, window=0) as deaf,
        RawHttp2(service.address) as asking,
    ):
        for headers, sent in ({}, b""), ({}, HALF), ({":path": WATCH}, b""):
            silent.call(3, headers=headers, sent=sent, ends=False)
        deaf.call(5, headers={":path": CHECK})
        asking.call(headers={":path": REFLECTION.encode()}, sent=HALF, ends=False)
        for client, resets in (silent, 7), (deaf, 3):
            # grpc.aio refers to a process's first and latest call for longer.
            await asyncio.to_thread(client.read_until, RstStreamFrame, resets)
            assert not client.seen[PingFrame], "a silent connection's end would reset calls, too"
        await asyncio.to_thread(asking.read_ends, 1)
    assert await service.retrieve(b"")
    assert service.count("grace_requests_total", code="OK") == 1


@serving(reply_seconds=3600.0, everywhere=True)
@pytest.mark.parametrize("sent", [b"", HALF])
async def test_a_call_that_ends_without_a_whole_request_is_reset_at_once(
    service: Service, sent: bytes
) -> None:
    with RawHttp2(service.address) as client:
        client.call(5, sent=sent)
        # grpc.aio refers to a process's first and latest call for longer.
        await asyncio.to_thread(client.read_until, RstStreamFrame, 3)
        assert not client.seen[GoAwayFrame], "the connection's end would reset calls, too"
    assert await service.retrieve(b"")


@serving(LimitsConfig(connections=1), padding="")
async def test_a_burst_on_one_connection_is_answered_however_few_connections_may_be_open(
    service: Service,
) -> None:
    with RawHttp2(service.address) as client:
        client.call(64)
        await asyncio.to_thread(client.read_ends, 64)
        assert client.statuses[0] == 64


@serving(everywhere=True)
@pytest.mark.parametrize("path", [WATCH, METHOD.encode()])
async def test_what_a_caller_sends_beyond_its_request_waits_at_the_caller(
    service: Service, path: bytes
) -> None:
    """gRPC would keep it for as long as the call is open, which is for ever if it is a watch."""
    service.pipeline.answers = False
    with RawHttp2(service.address) as client:
        assert await asyncio.to_thread(client.send_beyond, path) <= 1 << 19
    service.pipeline.answers = True
    assert await service.retrieve(b"")


@serving()
@pytest.mark.parametrize("path", [WATCH, CHECK])
async def test_a_health_request_that_is_far_too_long_is_refused(
    service: Service, path: bytes
) -> None:
    """grpc.aio keeps the request for as long as the watch."""
    name = HealthCheckRequest(service="x" * 2000).SerializeToString()
    with RawHttp2(service.address) as client:
        client.call(headers={":path": path}, sent=bytes(3) + struct.pack(">H", len(name)) + name)
        await asyncio.to_thread(client.read_ends, 1)
    assert client.statuses[grpc.StatusCode.INVALID_ARGUMENT.value[0]] == 1


@serving(LimitsConfig(connections=16, connection_calls=16))
async def test_one_call_too_many_without_its_request_ends_the_oldest(service: Service) -> None:
    with RawHttp2(service.address) as first, RawHttp2(service.address) as second:
        for client, count in (first, 16), (second, 3):
            client.call(count, sent=b"", ends=False)
            client.ping(1)
            await asyncio.to_thread(client.read_until, PingFrame, 1)
        await asyncio.to_thread(first.read_until, RstStreamFrame, 2)
        resets = [frame for frame in first.frames if isinstance(frame, RstStreamFrame)]
        assert {frame.stream_id for frame in resets} <= {1, 3, 5}
        assert await service.retrieve(b"")


@serving(reply_seconds=1.0, padding="")
async def test_a_request_that_comes_in_time_is_answered_however_long_the_answer_takes(
    service: Service,
) -> None:
    service.pipeline.answers = False
    with RawHttp2(service.address) as client:
        client.call(sent=bytes(3), ends=False)
        await asyncio.sleep(0.1)
        client.finish(bytes(2))
        await until(lambda: bool(service.pipeline.taken))
        await asyncio.sleep(1.2)
        service.pipeline.answer()
        await asyncio.to_thread(client.read_ends, 1)
        assert client.statuses[0] == 1


async def opened(channel: grpc.aio.Channel, path: str) -> Any:
    """Return a stream that has answered."""
    while True:
        stream: Any = channel.stream_stream(path)()
        try:
            await stream.write(b"")
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.INTERNAL:
                continue  # the server ended it before the write, and gRPC forgets the reason
            raise
        assert await stream.read() is not grpc.aio.EOF
        return stream


@serving(LimitsConfig(connections=129), everywhere=True)
@pytest.mark.parametrize("path", [WATCH.decode(), REFLECTION])
async def test_one_connection_holds_only_its_share_of_the_endless_streams(
    service: Service, path: str
) -> None:
    alone = (("grpc.use_local_subchannel_pool", 1),)  # channels share no connection
    made = (grpc.aio.insecure_channel(service.address, alone) for _ in range(2))
    async with next(made) as channel, next(made) as another:
        first = await opened(channel, path)
        for _ in range(3):
            await opened(channel, path)
        with pytest.raises(grpc.aio.AioRpcError, match="too many streams") as refused:
            await opened(channel, path)
        assert refused.value.code() is FULL
        await opened(another, path)
        first.cancel()
        while True:  # until the server knows that the first has ended
            try:
                await opened(channel, path)
            except grpc.aio.AioRpcError:
                continue
            break
        assert await service.retrieve(b"")


@serving(LimitsConfig(connections=130))
async def test_watchers_on_many_connections_are_bounded_too(service: Service) -> None:
    headers = {":path": WATCH}
    with ExitStack() as stack:
        for _ in range(65):
            client = stack.enter_context(RawHttp2(service.address))
            client.call(2, headers=headers)
            await asyncio.to_thread(client.read_until, DataFrame, 2)
        surplus = stack.enter_context(RawHttp2(service.address))
        surplus.call(headers=headers)
        await asyncio.to_thread(surplus.read_ends, 1)
        assert surplus.statuses[FULL.value[0]] == 1
        assert await service.retrieve(b"")


@serving(LimitsConfig(connections=5))
@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("path", [WATCH.decode(), CHECK.decode()])
async def test_a_refused_call_of_health_is_freed_at_once(service: Service, path: str) -> None:
    def alive() -> int:
        return sum(type(each) is grpc.aio.AbortError for each in gc.get_objects())

    async with grpc.aio.insecure_channel(service.address) as channel:
        for _ in range(0 if path == CHECK.decode() else 4):
            await opened(channel, path)
        call: Any = channel.unary_unary(path)
        before = alive()
        for _ in range(9):
            with pytest.raises(grpc.aio.AioRpcError):
                await call(b"\n\x07another")
        await until(lambda: alive() <= before + 1)  # grpc.aio refers to the latest call


CONFIG = ServingConfig(snapshots=Path(), checkpoint=Path(), generation=GENERATION)


def listened(use: Callable[[str], Awaitable[None]], **limits: float) -> None:
    """Call `use` with the address of a listener whose calls never end."""

    async def never(message: bytes, context: Any) -> bytes:  # noqa: ARG001
        await asyncio.Event().wait()
        raise AssertionError

    async def run() -> None:
        service = DESCRIPTOR.services_by_name["AdsRetrieval"]
        changed: Any = limits
        listener = GrpcListener(
            service, {"Retrieve": never}, replace(ListenLimits.of(CONFIG), **changed)
        )
        try:
            await use(await listener.open("listen", "127.0.0.1", 0))
        finally:
            await listener.close()

    asyncio.run(asyncio.wait_for(run(), 120))


def test_a_client_that_connects_and_says_nothing_loses_its_connection() -> None:
    def closed(address: str) -> bool:
        host, _, port = address.rpartition(":")
        # Well before the first PING, after which the server ends a silent connection, too.
        with socket.create_connection((host, int(port)), timeout=20) as client:
            while client.recv(1 << 16):  # the server's settings come first
                pass
        return True

    async def use(address: str) -> None:
        assert await asyncio.to_thread(closed, address)

    listened(use, handshake_seconds=0.3)


def test_a_client_with_an_open_call_that_answers_no_ping_loses_its_connection() -> None:
    async def use(address: str) -> None:
        with RawHttp2(address) as client:
            client.call()
            await asyncio.to_thread(client.read_to_the_end)
            assert client.seen[PingFrame]

    listened(use, keepalive_seconds=0.2, keepalive_timeout_seconds=0.2)
