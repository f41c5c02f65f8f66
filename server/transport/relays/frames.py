"""The frames that a server and its relays send each other over a pair of sockets.

A frame is a header (size of the body, kind, number of the call or order), then the body. Both ends
belong to one installation on one machine, so they trust each other's frames and times.
"""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from enum import IntEnum

from grace.server.transport.listener.grpc_listener import IncomingCall

_TIMES = struct.Struct("<ddBH")
_HEADER = struct.Struct("<IB3xQ")
_SOCKET_BYTES = 4 << 20  # a batch's replies, unless the system allows less
_READER_BYTES = 1 << 20
_FLUSH_SECONDS = 10.0
MAX_CONNECTION_BYTES = 255
MAX_AUTHORIZATION_BYTES = 65_535


class Kind(IntEnum):
    """The kinds of frames, with their meanings and bodies.

    from a relay:  CALL     a new call: an IncomingCall, packed
                   ENDED    gRPC has finished the call: it sent the reply, or the caller has gone
                            or did not read the reply in time. A byte, 1 in this last case
                   DONE     the relay carried out the order: its fault, or empty
                   LOG      lines for the log, each {level, ...}
                   PONG     the answer to a PING: gRPC has all replies that came before it
    from a server: ORDER    a method of the relay's GrpcListener to call: [name, arguments]
                   REPLY    the call's reply
                   FAILURE  the call's failure: [code, details, trailers]
                   PING     asks whether the relay's event loop runs, and has come this far
    """

    CALL = 1
    ENDED = 2
    DONE = 3
    LOG = 4
    ORDER = 5
    REPLY = 6
    FAILURE = 7
    PING = 8
    PONG = 9


def packed(call: IncomingCall) -> tuple[bytes, ...]:
    """Return the body of a CALL: its times, the sizes of its texts, the texts, the message."""
    connection = call.connection.encode()[:MAX_CONNECTION_BYTES]
    authorization = call.authorization.encode()[:MAX_AUTHORIZATION_BYTES]
    sizes = len(connection), len(authorization)
    times = _TIMES.pack(call.arrived, call.deadline, *sizes)
    return times, connection, authorization, call.message


def unpacked(body: bytes) -> IncomingCall:
    arrived, deadline, of_connection, of_authorization = _TIMES.unpack_from(body)
    texts = _TIMES.size + of_connection
    end = texts + of_authorization
    return IncomingCall(
        arrived,
        deadline,
        connection=body[_TIMES.size : texts].decode(errors="replace"),
        authorization=body[texts:end].decode(errors="replace"),
        message=body[end:],
    )


class Link:
    """One end of the pair. Use `connected`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connected(cls, end: socket.socket) -> "Link":
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        return cls(*await asyncio.open_unix_connection(sock=end, limit=_READER_BYTES))

    async def frames(self) -> AsyncIterator[tuple[int, int, bytes]]:
        """Kind, number and body of each frame, until either end closes."""
        try:
            while True:
                size, kind, number = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
                yield kind, number, await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            self._writer.close()

    def send(self, kind: Kind, number: int, *parts: bytes) -> None:
        """Is without effect once either end has closed."""
        if not self._writer.is_closing():
            size = sum(map(len, parts))
            self._writer.writelines((_HEADER.pack(size, kind, number), *parts))

    def send_facts(self, kind: Kind, number: int, facts: object) -> None:
        """Send the facts as JSON."""
        self.send(kind, number, json.dumps(facts).encode())

    async def close(self) -> None:
        """Send the rest, and close; abort if the other end does not read it in time."""
        self._writer.close()
        try:
            async with asyncio.timeout(_FLUSH_SECONDS):
                with suppress(ConnectionError):
                    await self._writer.wait_closed()
        except TimeoutError:
            self._writer.transport.abort()
