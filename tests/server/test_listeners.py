"""Calls that come and go, over real connections: how many may be open, and when all have ended."""

import asyncio
import gc
import socket
import struct
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from grace.configs.serving import LimitsConfig
from grace.server.messages import PendingRequest
from support.served import METHOD, PADDING, Service, front_ends, reason_of, served, until

HEADERS, DATA, SETTINGS = 1, 0, 4
END_HEADERS, END_STREAM = 4, 1


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def unread_calls(address: str, count: int) -> socket.socket:
    """An HTTP/2 client that makes calls, and whose window lets no byte of a reply through."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": METHOD,
        ":authority": address,
        "content-type": "application/grpc",
        "te": "trailers",
    }
    headers = b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )
    no_window = struct.pack(">HI", 4, 0)
    sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, no_window)
    for stream in range(1, 2 * count, 2):
        sent += frame(HEADERS, END_HEADERS, stream, headers)
        sent += frame(DATA, END_STREAM, stream, bytes(5))  # an empty message
    host, _, port = address.rpartition(":")
    client = socket.create_connection((host, int(port)))
    client.sendall(sent)
    return client


@front_ends
def test_calls_beyond_the_bound_are_refused_at_once_and_counted(front_ends: int) -> None:
    async def use(service: Service, retrieve: Any) -> None:
        service.pipeline.answers = False
        calls = [retrieve(b"") for _ in range(5)]
        await until(lambda: len(service.pipeline.taken) == 5)
        assert service.count("grace_open_calls") == 5
        for _ in range(2):
            refused = retrieve(b"")
            assert await reason_of(refused) == "too_many_calls"
            assert await refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            trailers = dict(await refused.trailing_metadata())
            assert trailers["grpc-retry-pushback-ms"] == "1000"
        service.pipeline.answer()
        assert all(len(reply) > len(PADDING) for reply in await asyncio.gather(*calls))
        await until(lambda: not service.state.open_calls)
        service.pipeline.answers = True
        assert await retrieve(b"")
        assert service.count("grace_requests_total", code="OK") == 6
        assert service.count("grace_request_failures_total", reason="too_many_calls") == 2

    served(use, LimitsConfig(open_calls=5), front_ends=front_ends)


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
def test_an_answered_request_is_freed_at_once() -> None:
    def alive() -> int:
        return sum(type(each) is PendingRequest for each in gc.get_objects())

    async def use(service: Service, retrieve: Any) -> None:
        others = alive()  # those that fixtures of other tests hold
        for _ in range(5):
            assert await retrieve(b"")
        await until(lambda: not service.state.open_calls)
        assert alive() == others

    served(use)


@front_ends
def test_a_client_that_reads_no_reply_leaves_places_for_others_and_delays_no_end(
    front_ends: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(service: Service, retrieve: Any) -> None:
        with unread_calls(service.address, 111):
            await until(lambda: service.count("grace_requests_total", code="OK") == 100)
            assert service.count("grace_open_calls") == 100  # of one connection, at most
            assert await retrieve(b"")
            service.state.takes = False
            assert await service.listeners.finish_calls(60.0)

    served(use, LimitsConfig(open_calls=111), reply_seconds=0.1, front_ends=front_ends)
    unread = [vars(record) for record in caplog.records if record.message == "replies_unread"]
    assert [each["calls"] for each in unread] == [100]


def test_the_drain_waits_for_a_reply_that_may_still_be_read() -> None:
    async def use(service: Service, _: Any) -> None:
        with unread_calls(service.address, 1):
            await until(lambda: service.count("grace_requests_total", code="OK") == 1)
            assert not await service.listeners.finish_calls(0.3)

    served(use, reply_seconds=60.0)


@front_ends
def test_calls_on_their_way_to_a_server_that_drains_are_refused_with_a_reason(
    front_ends: int,
) -> None:
    async def use(service: Service, retrieve: Any) -> None:
        assert await retrieve(b"")
        service.state.takes = False
        finishing = asyncio.create_task(service.listeners.finish_calls(60.0))
        await asyncio.sleep(0)  # it has begun
        assert [await reason_of(retrieve(b"")) for _ in range(7)] == ["draining"] * 7
        assert not finishing.done()
        finishing.cancel()

    served(use, front_ends=front_ends, settle_seconds=50.0)
