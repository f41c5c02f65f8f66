"""What the server and its relays tell each other: frames, both ways over a pair of sockets.

A frame is a header (bytes of its body, kind, a number), then the body. The number is a call's, or
of an order, whose answer has it as well. Both ends are of one installation, so frames are trusted;
the first one says by PROTOCOL that this is so.
"""

import asyncio
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Any, TypeAlias, cast

__all__ = ["PROTOCOL", "TIMES", "FrameBuffer", "Kind", "Link", "Lost", "Take"]

PROTOCOL = 2
"""Counts up with every change of what is below."""

TIMES = struct.Struct("<dd")
"""When a call came in and when it must end, infinite if ever, by `time.perf_counter()`."""

_HEADER = struct.Struct("<IB3xQ")
_BUFFER_BYTES = 1 << 20
_SOCKET_BYTES = 4 << 20  # a batch's replies, unless the system allows less
_FLUSH_SECONDS = 1.0  # for an end that closes to send what it has
_LATER_SECONDS = 0.005

Take: TypeAlias = Callable[[int, memoryview], None]
"""Takes a frame's number and body. The body is gone when it returns."""

Lost: TypeAlias = Callable[[Exception | None], None]
"""Is told what has broken a link, if anything has."""


class Kind(IntEnum):
    """
    from a relay:  HELLO    first; {protocol, clock}
                   CALL     TIMES, then the message
                   SURPLUS  a call as well, beyond the server's bound: TIMES, and no message
                   ENDED    gRPC is done with the call: its reply is out, or nobody waits for it
                   DONE     an order has been carried out, or could not be: its fault, if any
                   LOG      a line for the log: {level, ...}
    from a server: REPLY    the call's
                   FAILURE  the call's: [code, details, trailers]
                   OPEN     an order: what to listen on, {...}
                   HEALTH   an order: {serving}
                   CLOSE    as GrpcListener.close, and then end: {seconds}
    """

    HELLO = 1
    CALL = 2
    ENDED = 3
    DONE = 4
    LOG = 5
    REPLY = 6
    FAILURE = 7
    OPEN = 8
    HEALTH = 9
    CLOSE = 10
    SURPLUS = 11


class FrameBuffer:
    """Where bytes are received, and which frames they make."""

    def __init__(self) -> None:
        self._bytes = bytearray(_BUFFER_BYTES)
        self._begin = self._end = 0  # of what has been received and not been taken

    @property
    def size(self) -> int:
        return len(self._bytes)

    def space(self) -> memoryview:
        """For the next bytes, never none."""
        return memoryview(self._bytes)[self._end :]

    def received(self, count: int) -> Iterator[tuple[int, int, memoryview]]:
        """Kind, number and body of each frame that is whole now; to be iterated to its end."""
        self._end += count
        view = memoryview(self._bytes)
        needed = _HEADER.size
        while self._end - self._begin >= _HEADER.size:
            size, kind, number = _HEADER.unpack_from(view, self._begin)
            needed = _HEADER.size + size
            if self._end - self._begin < needed:
                break
            frame, self._begin = self._begin, self._begin + needed
            needed = _HEADER.size
            yield kind, number, view[frame + _HEADER.size : self._begin]
        self._make_room(needed)

    def _make_room(self, needed: int) -> None:
        """For all of the frame that has begun, so many bytes as far as is known."""
        held = self._end - self._begin
        if held and self._begin + needed <= len(self._bytes):
            return
        rest = memoryview(self._bytes)[self._begin : self._end]
        if needed > len(self._bytes) or (len(self._bytes) > _BUFFER_BYTES >= needed):
            self._bytes = bytearray(max(needed, _BUFFER_BYTES))
        memoryview(self._bytes)[:held] = rest
        self._begin, self._end = 0, held


class Link(asyncio.BufferedProtocol):
    """One end. What is sent in one turn of the event loop goes out together, in the next."""

    def __init__(self, takes: Mapping[int, Take], lost: Lost) -> None:
        """`lost` is called once: when the other end has closed, or after `close`, with None."""
        # The perf_counters of two processes are one clock here, so times travel as they are.
        assert time.get_clock_info("perf_counter").implementation.endswith("(CLOCK_MONOTONIC)")
        self._takes = takes
        self._lost = lost
        self._buffer = FrameBuffer()
        self._transport: asyncio.Transport
        self._closed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._unsent: list[bytes] = []
        self._flushes = False
        self._alone: asyncio.TimerHandle | None = None

    async def connect(self, end: socket.socket) -> None:
        """Before anything is sent."""
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        await self._loop.create_unix_connection(lambda: self, sock=end)

    def send(self, kind: Kind, number: int, *parts: bytes) -> None:
        """To nowhere, if the other end has gone."""
        self._unsent.append(_HEADER.pack(sum(map(len, parts)), kind, number))
        self._unsent.extend(parts)
        if not self._flushes:
            self._flushes = True
            self._loop.call_soon(self._flush)

    def send_later(self, kind: Kind, number: int) -> None:
        """With what is sent next, or alone if that is long in coming: it is worth no turn of the
        other end's loop.
        """
        self._unsent.append(_HEADER.pack(0, kind, number))
        if self._alone is None:
            self._alone = self._loop.call_later(_LATER_SECONDS, self._flush)

    def send_facts(self, kind: Kind, number: int, facts: object) -> None:
        """As JSON."""
        self.send(kind, number, json.dumps(facts).encode())

    async def close(self) -> None:
        """What has been sent goes out before, if the other end still reads."""
        self._flush()
        self._transport.close()
        try:
            await asyncio.wait_for(self._closed.wait(), _FLUSH_SECONDS)
        except TimeoutError:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._closed.set()
        self._lost(error)

    def _flush(self) -> None:
        unsent, self._unsent, self._flushes = self._unsent, [], False
        if self._alone is not None:
            self._alone.cancel()
            self._alone = None
        if unsent and not self._transport.is_closing():
            self._transport.writelines(unsent)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._buffer.space()

    def buffer_updated(self, nbytes: int) -> None:
        for kind, number, body in self._buffer.received(nbytes):
            self._takes[kind](number, body)


def facts_of(body: bytes | memoryview) -> Any:
    """What `send_facts` has sent."""
    return json.loads(bytes(body))
