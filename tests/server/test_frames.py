"""The frames between a server and its relays: whole, in order, however their bytes arrive."""

import asyncio
import os
import random
import socket
from collections.abc import Callable, Iterator, Sequence

import pytest
import uvloop

from grace.server.transport.frames import FrameBuffer, Kind, Link, Take
from support.served import until

Frame = tuple[int, int, bytes]

SMALL: list[Frame] = [
    (Kind.CALL, 1, b"x" * 63),
    (Kind.ENDED, 1, b""),
    (Kind.CALL, 2**64 - 1, b"\x00"),
    (Kind.DONE, 0, b"a fault"),
]


class Ends:
    """Two links that are each other's; what the second one is sent."""

    def __init__(self) -> None:
        self.seen: list[Frame] = []
        self.lost = 0
        takes: dict[int, Take] = {kind: self._taker(kind) for kind in Kind}
        self.near, self.far = Link(takes, self._lose), Link(takes, self._lose)

    async def connect(self) -> None:
        near, far = socket.socketpair()
        await asyncio.gather(self.near.connect(near), self.far.connect(far))

    def _taker(self, kind: Kind) -> Take:
        return lambda number, body: self.seen.append((kind, number, bytes(body)))

    def _lose(self, error: Exception | None) -> None:
        assert error is None
        self.lost += 1


class Wire:
    """What a link writes."""

    def __init__(self) -> None:
        self.bytes = b""

    def is_closing(self) -> bool:
        return False

    def writelines(self, parts: Sequence[bytes]) -> None:
        self.bytes += b"".join(parts)


def encoded(frames: Sequence[Frame]) -> bytes:
    async def write() -> bytes:
        wire, link = Wire(), Link({}, lambda error: None)
        link.connection_made(wire)  # type: ignore[arg-type]
        for kind, number, body in frames:
            link.send(Kind(kind), number, body[:5], body[5:])
        await asyncio.sleep(0)
        return wire.bytes

    return asyncio.run(write())


def received(buffer: FrameBuffer, data: bytes | memoryview) -> Iterator[Frame]:
    """As a transport gives it, as much at once as there is room for."""
    while data:
        space = buffer.space()
        count = min(len(space), len(data))
        space[:count] = data[:count]
        data = data[count:]
        yield from ((kind, number, bytes(body)) for kind, number, body in buffer.received(count))


def test_frames_are_the_same_wherever_their_bytes_are_cut() -> None:
    data = encoded(SMALL)
    for first in range(len(data) + 1):
        for second in (first, first + 1, first + 17):
            buffer = FrameBuffer()
            pieces = (data[:first], data[first:second], data[second:])
            assert [frame for piece in pieces for frame in received(buffer, piece)] == SMALL


def test_frames_come_byte_by_byte_and_many_at_once() -> None:
    data = encoded(SMALL * 111)
    for step in (1, 7, len(data)):
        buffer = FrameBuffer()
        pieces = [data[at : at + step] for at in range(0, len(data), step)]
        assert [frame for piece in pieces for frame in received(buffer, piece)] == SMALL * 111


@pytest.mark.parametrize("seed", range(2))
def test_huge_frames_between_small_ones_arrive_and_leave_no_huge_buffer(seed: int) -> None:
    draw = random.Random(seed)
    plain = FrameBuffer().size
    sizes = draw.choices([0, 5, 80_001, plain - 16, plain - 15, plain, 3 * plain], k=15)
    frames = [(Kind.REPLY, number, draw.randbytes(size)) for number, size in enumerate(sizes)]
    buffer, data = FrameBuffer(), memoryview(encoded(frames))
    seen: list[Frame] = []
    while data:
        count = draw.choice([1, 63, 80_000, 500_001])
        seen += received(buffer, data[:count])
        data = data[count:]
    assert seen == frames
    assert [*received(buffer, encoded(SMALL))] == SMALL
    assert buffer.size == plain


@pytest.mark.parametrize(
    "loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def test_what_is_sent_arrives_in_order_both_ways_however_much_it_is(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    big = [(Kind.REPLY, number, os.urandom(80_001)) for number in range(111)]

    async def exchange() -> None:
        ends = Ends()
        await ends.connect()
        for kind, number, body in big:  # more than the sockets hold
            ends.near.send(kind, number, body)
        await until(lambda: len(ends.seen) == len(big))
        assert ends.seen == big
        ends.seen.clear()
        ends.far.send_facts(Kind.OPEN, 3, {"port": 0})
        await until(lambda: bool(ends.seen))
        assert ends.seen == [(Kind.OPEN, 3, b'{"port": 0}')]
        await ends.near.close()
        await ends.far.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(exchange())


def test_a_link_that_closes_sends_what_it_has_and_both_ends_know() -> None:
    async def close() -> None:
        ends = Ends()
        await ends.connect()
        ends.near.send(Kind.DONE, 1, b"the last")
        await ends.near.close()
        await until(lambda: ends.lost == 2)
        assert ends.seen == [(Kind.DONE, 1, b"the last")]
        ends.near.send(Kind.DONE, 2)  # to nobody, and no fault
        ends.far.send(Kind.DONE, 2)
        await asyncio.sleep(0.01)
        assert ends.lost == 2

    asyncio.run(close())
