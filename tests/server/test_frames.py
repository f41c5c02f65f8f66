"""The frames between a server and its relays: whole and in order, however their bytes arrive."""

import asyncio
import math
import os
import socket

import uvloop

from grace.server.transport.relays.frames import Kind, Link, RelayedMessage

Frame = tuple[int, int, bytes]

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SMALL: list[Frame] = [
    (Kind.CALL, 1, b"x" * 63),
    (Kind.ENDED, 1, b""),
    (Kind.CALL, 2**64 - 1, b"\x00"),
    (Kind.LOG, 0, b"a line"),
]


async def received(link: Link) -> list[Frame]:
    """All frames until an end closes."""
    return [frame async for frame in link.frames()]


async def written(frames: list[Frame]) -> bytes:
    """The bytes of these frames on the wire."""
    near, far = socket.socketpair()
    link = await Link.connected(near)
    for kind, number, body in frames:
        link.send(Kind(kind), number, body[:5], body[5:])
    await link.close()
    with far:
        return b"".join(iter(lambda: far.recv(1 << 16), b""))


def test_frames_are_the_same_wherever_their_bytes_are_cut() -> None:
    async def cut_everywhere() -> None:
        data = await written(SMALL)
        for cut in range(len(data) + 1):
            near, far = socket.socketpair()
            link = await Link.connected(near)
            reading = asyncio.create_task(received(link))
            for piece in (data[:cut], data[cut:]):
                far.sendall(piece)
                await asyncio.sleep(0.001)  # it reads what there is
            far.close()
            assert await reading == SMALL

    asyncio.run(cut_everywhere())


def test_more_than_the_sockets_hold_arrives_in_order_before_an_end_closes() -> None:
    frames = [(Kind.REPLY, size, os.urandom(size)) for size in (0, 80_001, 9 << 20, 5) * 7]

    async def exchange() -> None:
        near, far = map(Link.connected, socket.socketpair())
        sender, receiver = await near, await far
        reading = asyncio.create_task(received(receiver))
        for kind, number, body in frames:
            sender.send(kind, number, body)
        await sender.close()
        assert await reading == frames
        for link in (sender, receiver):
            link.send(Kind.DONE, 2)  # to no one, and no fault

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(exchange())


def test_a_relayed_message_keeps_its_times_its_connection_and_every_byte() -> None:
    for connection in ("", "ipv4:127.0.0.1:40001", "ipv6:%5B::1%5D:9"):
        for header in ("", "Bearer é" + "x" * 999):
            for trace in ("", TRACEPARENT):
                given = RelayedMessage(
                    1.5, math.inf, connection, header, trace, b"\x00\xff message"
                )
                assert RelayedMessage.unpack(b"".join(given.packed())) == given
