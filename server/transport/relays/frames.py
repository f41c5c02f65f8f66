"""The frames that a server and its relays send each other over a pair of sockets.

A frame is a header (size of the body, kind, number of the call or order), then the body. Both ends
belong to one installation on one machine, so they trust each other's frames and times.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import TypeAlias, cast

from grace.server.transport.listener.grpc_listener import IncomingCall

_TIMES = struct.Struct("<ddB")
_HEADER = struct.Struct("<IB3xQ")
_SOCKET_BYTES = 4 << 20  # a batch's replies, unless the system allows less
_FLUSH_SECONDS = 10.0
MAX_CONNECTION_BYTES = 255

Received: TypeAlias = Callable[[int, int, bytes], object]


class Kind(IntEnum):
    """The kinds of frames, with their meanings and bodies: first a relay's, then a server's."""

    CALL = 1  # a new call: an IncomingCall, packed
    # gRPC has finished the call: it sent the reply, or the caller has gone or did not read the
    # reply in time. A byte, 1 in this last case
    ENDED = 2
    DONE = 3  # the relay carried out the order: its fault, or empty
    LOG = 4  # lines for the log, each {level, ...}
    PONG = 9  # the answer to a PING: gRPC has all replies that came before it
    ORDER = 5  # a method of the relay's GrpcListener to call: [name, arguments]
    REPLY = 6  # the call's reply
    FAILURE = 7  # the call's failure: [code, details, trailers]
    PING = 8  # asks whether the relay's event loop runs, and has come this far


def packed(call: IncomingCall) -> tuple[bytes, ...]:
    """Return the body of a CALL: its times, the size of `connection`, this text, the message."""
    connection = call.connection.encode()[:MAX_CONNECTION_BYTES]
    times = _TIMES.pack(call.arrived, call.deadline, len(connection))
    return times, connection, call.message


def unpacked(body: bytes) -> IncomingCall:
    arrived, deadline, of_connection = _TIMES.unpack_from(body)
    end = _TIMES.size + of_connection
    connection = body[_TIMES.size : end].decode(errors="replace")
    return IncomingCall(arrived, deadline, connection, message=body[end:])


class Link(asyncio.Protocol):
    """One end of the pair; use `connected`. A turn of the event loop sends its frames together."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport
        self._received: Received | None = None
        self._in, self._out = bytearray(), list[bytes]()
        self._loop = asyncio.get_running_loop()
        self._served: asyncio.Future[None] = self._loop.create_future()
        self._lost: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    async def connected(cls, end: socket.socket) -> "Link":
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        _, link = await asyncio.get_running_loop().create_unix_connection(cls, sock=end)
        return link

    async def serve(self, received: Received) -> None:
        """Call it with kind, number and body of each frame, until either end closes.

        Raise what it raises: it is not called again, but this end can still send.
        """
        self._received = received
        self.data_received(b"")
        await self._served

    def send(self, kind: Kind, number: int, *parts: bytes) -> None:
        """Is without effect once either end has closed."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += (_HEADER.pack(sum(map(len, parts)), kind, number), *parts)

    def send_facts(self, kind: Kind, number: int, facts: object) -> None:
        self.send(kind, number, json.dumps(facts).encode())

    async def close(self) -> None:
        """Send the rest, and close; abort if the other end does not read it in time."""
        self._flush()
        self._transport.close()
        if not (await asyncio.wait((self._lost,), timeout=_FLUSH_SECONDS))[0]:
            self._transport.abort()

    def _flush(self) -> None:
        together, self._out = self._out, []
        if together and not self._transport.is_closing():
            self._transport.writelines(together)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, since the transports of uvloop are not of asyncio's classes.
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        self._in += data
        if self._received is None:
            return
        begin = 0
        try:
            while begin + _HEADER.size <= len(self._in):
                size, kind, number = _HEADER.unpack_from(self._in, begin)
                body = begin + _HEADER.size
                if body + size > len(self._in):
                    break
                begin = body + size
                self._received(kind, number, bytes(self._in[body:begin]))
        except Exception as error:  # noqa: BLE001, `serve` raises it
            self._received = None
            self._served.set_exception(error)
        del self._in[:begin]

    def connection_lost(self, _: Exception | None) -> None:
        self._lost.set_result(None)
        if not self._served.done():
            self._served.set_result(None)
