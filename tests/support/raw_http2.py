"""An HTTP/2 client that sends only what a test asks for: no window updates and no answers."""

import select
import socket
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self

from hpack import Decoder, Encoder
from hyperframe.frame import (
    DataFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

METHOD = "/grace.v1.AdsRetrieval/Retrieve"  # without torch, which other modules import
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES = 9
FRAME_BYTES = 16_384  # HTTP/2's default limits of a frame's content, and of unconfirmed content
WINDOW_BYTES = 65_535
EMPTY_MESSAGE = bytes(5)
A_MOMENT = 0.02
NO_HEADERS: Mapping[str, bytes] = MappingProxyType({})


def _frame_contents(content: bytes) -> list[bytes]:
    """Return the content in pieces that fit into a frame; a piece even if it is empty."""
    return [content[at : at + FRAME_BYTES] for at in range(0, len(content) or 1, FRAME_BYTES)]


@dataclass
class RawHttp2:
    """A connection."""

    address: str
    window: int | None = None
    # the received frames, without the bodies of replies
    frames: list[Frame] = field(default_factory=list, init=False)
    # the gRPC codes of the calls that have ended, by stream
    ended: dict[int, int] = field(default_factory=dict, init=False)

    def __enter__(self) -> Self:
        host, _, port = self.address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        self._encoder, self._decoder = Encoder(), Decoder()
        self._last = -1
        self._unread = b""
        settings = SettingsFrame(0)
        if self.window is not None:
            settings.settings = {SettingsFrame.INITIAL_WINDOW_SIZE: self.window}
        self._socket.sendall(PREFACE + settings.serialize())
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def send(self, *frames: Frame) -> None:
        self._socket.sendall(b"".join(frame.serialize() for frame in frames))

    def call(
        self,
        count: int = 1,
        *,
        reset: bool = False,
        headers: Mapping[str, bytes] = NO_HEADERS,
        sent: bytes = EMPTY_MESSAGE,
        ends: bool = True,
    ) -> None:
        """Make calls, by default with empty messages; with `reset`, withdraw each at once.

        headers  other headers, or other values
        sent     the bytes after the headers
        ends     whether `sent` is the rest of the request
        """
        frames: list[Frame] = []
        for _ in range(count):
            self._last += 2
            fields: dict[str, str | bytes] = {
                ":method": "POST",
                ":scheme": "http",
                ":path": METHOD,
                ":authority": self.address,
                "content-type": "application/grpc",
                "te": "trailers",
                **headers,
            }
            data = self._encoder.encode(list(fields.items()))
            frames.append(HeadersFrame(self._last, data, flags=["END_HEADERS"]))
            *rest, last = _frame_contents(sent)
            frames += [DataFrame(self._last, part) for part in rest]
            frames.append(DataFrame(self._last, last, flags=["END_STREAM"] if ends else []))
            if reset:
                frames.append(RstStreamFrame(self._last, error_code=8))
        self.send(*frames)

    def finish(self, sent: bytes) -> None:
        """Send the rest of the latest call's request."""
        self.send(DataFrame(self._last, sent, flags=["END_STREAM"]))

    def allow(self, size: int) -> None:
        """Allow the server to send N more bytes of each reply."""
        self.send(*(WindowUpdateFrame(each, size) for each in range(1, self._last + 1, 2)))

    def ping(self, count: int) -> None:
        self.send(*(PingFrame(0, struct.pack(">Q", number)) for number in range(count)))

    def read_until(self, kind: type[Frame], count: int = 1) -> None:
        """Read until N frames of a kind have come. Raise EOFError at the connection's end."""
        while self.seen[kind] < count:
            self._read()

    def read_ends(self, count: int) -> None:
        """Read until N calls have ended, all with a status."""
        while len(self.ended) < count:
            self._read()

    def read_to_the_end(self) -> None:
        """Read until the server closes the connection."""
        try:
            while True:
                self._read()
        except (EOFError, ConnectionResetError):
            return

    @property
    def seen(self) -> Counter[type[Frame]]:
        return Counter(map(type, self.frames))

    @property
    def statuses(self) -> Counter[int]:
        """How many calls have ended with each gRPC code."""
        return Counter(self.ended.values())

    def _read(self) -> None:
        read = self._socket.recv(1 << 20)
        if not read:
            raise EOFError
        self._unread += read
        while len(self._unread) >= HEADER_BYTES:
            frame, size = Frame.parse_frame_header(memoryview(self._unread[:HEADER_BYTES]))
            if len(self._unread) < HEADER_BYTES + size:
                return
            body = memoryview(self._unread)[HEADER_BYTES : HEADER_BYTES + size]
            if not isinstance(frame, DataFrame):
                frame.parse_body(body)
            self.frames.append(frame)
            if isinstance(frame, HeadersFrame):
                headers = dict(self._decoder.decode(frame.data, raw=True))
                if b"grpc-status" in headers:
                    self.ended[frame.stream_id] = int(headers[b"grpc-status"])
            self._unread = self._unread[HEADER_BYTES + size :]

    def send_beyond(self, path: bytes) -> int:
        """Begin a call, and send bytes after its request until the server takes no more of them.
        Return how many it has taken."""
        self.call(headers={":path": path}, sent=EMPTY_MESSAGE, ends=False)
        sent = len(EMPTY_MESSAGE)
        quiet = 0
        while quiet < 31:
            room = min(self._allowed(0), self._allowed(self._last)) - sent
            while size := min(FRAME_BYTES, room):
                self.send(DataFrame(self._last, bytes(size)))
                sent, room, quiet = sent + size, room - size, 0
            quiet += 1
            if select.select((self._socket,), (), (), A_MOMENT)[0]:
                self._read()
        return sent

    def _allowed(self, stream: int) -> int:
        """Return how many bytes the server has allowed on a stream; 0: on the whole connection."""
        allowed = WINDOW_BYTES
        for frame in self.frames:
            if isinstance(frame, WindowUpdateFrame) and frame.stream_id == stream:
                allowed += frame.window_increment
            elif isinstance(frame, SettingsFrame) and stream:
                windows = frame.settings
                allowed += windows.get(SettingsFrame.INITIAL_WINDOW_SIZE, WINDOW_BYTES)
                allowed -= WINDOW_BYTES
        return allowed
