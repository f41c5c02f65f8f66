"""Calls that come and go, over real connections: how many may be open, and what is left of them."""

import asyncio
import gc
from contextlib import ExitStack, suppress

import grpc
import pytest
from hyperframe.frame import GoAwayFrame, RstStreamFrame, SettingsFrame

from grace.configs.serving import LimitsConfig
from grace.server.errors import ServiceError
from grace.server.messages import PendingRequest
from grace.server.transport.front_end import Call
from support.raw_http2 import RawHttp2
from support.served import PADDING, Service, reason_of, serving, until

OK, RESOURCE_EXHAUSTED = 0, 8  # gRPC's codes on the wire


@serving(LimitsConfig(open_calls=5), everywhere=True)
async def test_calls_beyond_the_bound_are_refused_at_once_and_counted(service: Service) -> None:
    service.pipeline.answers = False
    calls = [service.retrieve(b"") for _ in range(5)]
    await until(lambda: len(service.pipeline.taken) == 5)
    assert service.count("grace_open_calls") == 5
    for _ in range(2):
        refused = service.retrieve(b"")
        assert await reason_of(refused) == "too_many_calls"
        assert await refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        trailers = dict(await refused.trailing_metadata())
        assert trailers["grpc-retry-pushback-ms"] == "1000"
    service.pipeline.answer()
    assert all(len(reply) > len(PADDING) for reply in await asyncio.gather(*calls))
    await until(lambda: not service.state.open_calls)
    service.pipeline.answers = True
    assert await service.retrieve(b"")
    assert service.count("grace_requests_total", code="OK") == 6
    assert service.count("grace_request_failures_total", reason="too_many_calls") == 2


@serving(everywhere=True)
async def test_a_path_that_is_not_utf8_fails_alone_or_ends_the_server_visibly(
    service: Service,
) -> None:
    """grpcio 1.84 and 1.85 end with such a call. Then the server must not go on without gRPC."""

    def call() -> None:
        with suppress(OSError, EOFError), RawHttp2(service.address) as client:
            client.call(headers={":path": b"/\xff"})
            client.read_ends(1)

    async def answers() -> bool:
        code: grpc.StatusCode = await service.retrieve(b"", timeout=5).code()
        return code is grpc.StatusCode.OK

    assert await answers()
    for _ in range(8):  # some of them reach each relay
        await asyncio.to_thread(call)
    async with asyncio.timeout(30):
        while not (service.died.is_set() or await answers()):
            await asyncio.sleep(0.1)


@serving()
@pytest.mark.usefixtures("no_collections")
async def test_an_answered_request_is_freed_at_once(service: Service) -> None:
    def alive() -> int:
        return sum(type(each) is PendingRequest for each in gc.get_objects())

    others = alive()  # those that fixtures of other tests hold
    for _ in range(5):
        assert await service.retrieve(b"")
    await until(lambda: not service.state.open_calls)
    assert alive() == others


@serving(reply_seconds=0.3, everywhere=True)
async def test_calls_whose_replies_are_not_read_in_time_are_reset_counted_and_logged_once(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    with RawHttp2(service.address, window=0) as client:
        client.call(9)
        await until(lambda: service.count("grace_replies_unread_total") == 9)
        await until(lambda: not service.state.open_calls)
        assert await service.retrieve(b"")
        # Each process's grpc.aio refers to its first and its latest calls for longer, and the
        # call that was answered may have been another process's.
        await asyncio.to_thread(client.read_until, RstStreamFrame, 5)
    await until(lambda: not service.state.open_calls)
    assert service.count("grace_requests_total", code="OK") == 10
    assert service.count("grace_replies_unread_total") == 9
    assert [record.message for record in caplog.records].count("replies_unread") == 1
    service.state.takes = False
    assert await service.listeners.finish_calls(60.0), "they do not delay the end"


@serving(LimitsConfig(connection_calls=16), padding="")
async def test_calls_beyond_a_connection_s_share_wait_at_the_client(service: Service) -> None:
    service.pipeline.answers = False
    calls = [service.retrieve(b"") for _ in range(301)]
    await until(lambda: len(service.pipeline.taken) == 16)
    service.pipeline.answers = True
    service.pipeline.answer()
    await asyncio.gather(*calls)  # a failed call raises


@serving(LimitsConfig(connections=3), padding="")
async def test_a_connection_beyond_the_limit_is_closed_and_makes_room_when_another_ends(
    service: Service,
) -> None:
    def call(address: str) -> None:
        answered = False
        while not answered:  # until the server has seen that the others have ended
            with RawHttp2(address) as client, suppress(EOFError, ConnectionError):
                client.call()
                client.read_ends(1)
                answered = True

    with ExitStack() as stack:
        for _ in range(3):
            client = stack.enter_context(RawHttp2(service.address))
            await asyncio.to_thread(client.read_until, SettingsFrame)
        with RawHttp2(service.address) as surplus:
            await asyncio.to_thread(surplus.read_to_the_end)
            assert not surplus.frames
    await asyncio.to_thread(call, service.address)


@serving(padding="", connection_seconds=0.2)
async def test_connections_that_age_under_load_are_replaced_without_a_failed_call(
    service: Service,
) -> None:
    connections: set[str] = set()
    while len(connections) < 4:
        await asyncio.gather(*(service.retrieve(b"") for _ in range(9)))  # a failed call raises
        service.pipeline.answers = False
        call = service.retrieve(b"")
        await until(lambda: bool(service.pipeline.taken))
        connections.add(service.pipeline.taken[0].connection)
        service.pipeline.answers = True
        service.pipeline.answer()
        await call


@serving(idle_seconds=0.1)
async def test_a_connection_without_calls_is_closed_in_time_and_its_client_reconnects(
    service: Service,
) -> None:
    assert await service.retrieve(b"")
    with RawHttp2(service.address) as client:
        await asyncio.to_thread(client.read_to_the_end)
        assert client.seen[GoAwayFrame]
    assert await service.retrieve(b"")


@serving(padding="")
async def test_calls_that_are_reset_at_once_leave_nothing_behind(service: Service) -> None:
    with RawHttp2(service.address) as client:
        for _ in range(20):
            client.call(50, reset=True)
        assert await service.retrieve(b"")
    await until(lambda: not service.state.open_calls)
    assert await service.retrieve(b"")


@serving(reply_seconds=60.0)
async def test_the_drain_waits_for_a_reply_that_may_still_be_read(service: Service) -> None:
    with RawHttp2(service.address, window=0) as client:
        client.call()
        await until(lambda: service.count("grace_requests_total", code="OK") == 1)
        assert not await service.listeners.finish_calls(0.3)


@serving(settle_seconds=50.0, everywhere=True)
async def test_calls_on_their_way_to_a_server_that_drains_are_refused_with_a_reason(
    service: Service,
) -> None:
    assert await service.retrieve(b"")
    service.state.takes = False
    finishing = asyncio.create_task(service.listeners.finish_calls(60.0))
    await asyncio.sleep(0)  # it has begun
    assert [await reason_of(service.retrieve(b"")) for _ in range(7)] == ["draining"] * 7
    assert not finishing.done()
    finishing.cancel()


KEPT = (Call, ServiceError)


@serving(LimitsConfig(open_calls=1))
@pytest.mark.usefixtures("no_collections")
async def test_a_refused_call_is_freed_at_once(service: Service) -> None:
    async def refused() -> None:
        assert await reason_of(service.retrieve(b"\xff")) == "malformed"
        service.pipeline.answers = False
        waiting = service.retrieve(b"")
        await until(lambda: len(service.pipeline.taken) == 1)
        assert await reason_of(service.retrieve(b"")) == "too_many_calls"
        service.pipeline.answer()
        assert await waiting
        service.pipeline.answers = True
        await until(lambda: not service.state.open_calls)

    def alive() -> dict[str, int]:
        objects = gc.get_objects()
        return {kind.__name__: sum(type(x) is kind for x in objects) for kind in KEPT}

    await refused()
    before = alive()
    for _ in range(5):
        await refused()
    assert alive() == before
