"""Clients that connect, or call, and then say nothing."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hyperframe.frame import PingFrame

from grace.configs.serving import ServingConfig
from grace.proto.retrieval_pb2 import DESCRIPTOR
from grace.server.transport.listener.grpc_listener import GrpcListener
from grace.server.transport.listener.listen_limits import ListenLimits
from support.pipeline_cases import GENERATION
from support.raw_http2 import RawHttp2

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
        with socket.create_connection((host, int(port)), timeout=60) as client:
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


def test_a_client_with_an_open_call_that_answers_pings_keeps_its_connection() -> None:
    async def use(address: str) -> None:
        with RawHttp2(address) as client:
            client.call()
            for count in range(1, 5):
                await asyncio.to_thread(client.read_until, PingFrame, count)
                (*_, ping) = (each for each in client.frames if isinstance(each, PingFrame))
                client.send(PingFrame(0, ping.opaque_data, flags=["ACK"]))

    listened(use, keepalive_seconds=0.2, keepalive_timeout_seconds=20.0)
