"""The durable log of updates: one file in a folder that one server at a time may use.

    log = MAGIC, frames
    frame = header, payload, END          the updates of one group, written and synced together;
                                          the parts of a rewritten log, one in each
    header = b"UPDS", size of the payload, xxh3_64 of the payload, xxh3_64 of the header so far
    payload = each update's size, uint32, and its bytes, a grace.v1.UpdateAdsRequest

An update is acknowledged only after its frame is on the disk. A killed writer leaves at most one
incomplete frame: it is shorter than its header says, or its end is zeros that the disk never
replaced. The next start cuts that frame off. Any other mismatch is damage: the start refuses the
log, because going on would lose stops silently.
"""

import os
import stat
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import chain, islice
from pathlib import Path

import xxhash

from grace.configs.errors import GraceError, InputError
from grace.configs.regular_files import sync, try_lock
from grace.index.storage.folder import write_new

FILE, NEW_FILE, LOCK = "log", ".log.new", ".lock"
MAGIC = b"GRACEUP1"
_MARK, _END = b"UPDS", b"\xa5"
_HEADER, _CHECK, _SIZE = struct.Struct("<4sQQ"), struct.Struct("<Q"), struct.Struct("<I")
_HEADER_BYTES = _HEADER.size + _CHECK.size
_MODE = 0o600
_MOST_PARTS = 1024  # the most that Linux takes in one call

REWRITE_BYTES = 4 << 20
"""A log is rewritten once it has grown by this plus its size after the last rewrite."""

_REMEDY = (
    "restore the file from a backup; or move it away, set updates.require_full, start the server, "
    "and send a FULL update, so that it does not serve without its stops"
)
_RESTART = "check the disk, then restart the server"


class NotKeptError(GraceError):
    """The log could not write updates. They are not in force."""


class UpdateLog:
    """The open log. It is not thread-safe."""

    def __init__(self, folder: Path, replay: Callable[[bytes], object]) -> None:
        """Lock the folder, and call `replay` with each update of its log in turn.

        Raise InputError if the log is damaged, does not replay, or belongs to another server.
        """
        self._path = folder / FILE
        self._broken = ""
        self._rewritten_size = 0
        _make_folder(folder)
        with ExitStack() as undo:
            self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            undo.callback(os.close, self._folder)
            lock = try_lock(folder / LOCK, _MODE)
            if lock is None:
                fault = "another server uses it; give each server a separate state_dir"
                raise InputError(f"state_dir: {folder}: {fault}")
            self._lock = lock
            undo.callback(os.close, self._lock)
            with suppress(FileNotFoundError):
                os.unlink(NEW_FILE, dir_fd=self._folder)
            if not os.path.lexists(self._path):
                write_new(NEW_FILE, self._folder, [MAGIC], mode=_MODE)
                self._put_in_place()
            self._file = self._opened()
            undo.callback(os.close, self._file)
            with open(self._file, "rb", closefd=False) as file:
                content = file.read()
            self._size = self._replay(content, replay)
            self.cut = len(content) - self._size  # bytes of an incomplete frame, which is cut off
            if self.cut:
                os.ftruncate(self._file, self._size)
            # What a killed writer wrote and did not sync is in force from now on.
            os.fsync(self._file)
            os.fsync(self._folder)
            undo.pop_all()

    @property
    def wants_rewrite(self) -> bool:
        return self._size > 2 * self._rewritten_size + REWRITE_BYTES

    def append(self, messages: Sequence[bytes]) -> None:
        """Write updates as one frame and sync it; raise NotKeptError if that fails."""
        if not self._broken and not self._in_place():
            fault = f"{self._path}: was removed or replaced while the server ran"
            self._broken = f"{fault}; set updates.require_full, restart it, and send a FULL update"
        if self._broken:
            raise NotKeptError(self._broken)
        frame = _frame(messages)
        try:
            _write(self._file, frame)
        except OSError as error:
            self._cut_back()
            fault = f"{self._path}: cannot be written: {error.strerror}"
            raise NotKeptError(f"{fault}; free some space, then send the update again") from None
        try:
            os.fsync(self._file)
        except OSError as error:
            # From now on, only a new start can find out what the disk has.
            self._broken = f"{self._path}: cannot be synced: {error.strerror}; {_RESTART}"
            raise NotKeptError(self._broken) from None
        self._size += sum(map(len, frame))

    def rewrite(self, messages: Iterable[bytes | memoryview]) -> None:
        """Replace all frames by the parts of one update that makes the same state.

        Raise NotKeptError if that fails. The updates then stay in the log.
        """
        try:
            frames = chain.from_iterable(_frame([message]) for message in messages)
            write_new(NEW_FILE, self._folder, chain([MAGIC], frames), mode=_MODE)
        except OSError as error:
            with suppress(OSError):
                os.unlink(NEW_FILE, dir_fd=self._folder)
            self._rewritten_size = self._size // 2  # try again after more growth
            fault = f"{self._path}: cannot be rewritten: {error.strerror}"
            raise NotKeptError(f"{fault}; free some space, because it grows until then") from None
        try:
            self._put_in_place()
            before, self._file = self._file, self._opened()
            os.close(before)
            self._size = self._rewritten_size = os.fstat(self._file).st_size
        except OSError as error:  # either of the two files may have the name now
            self._broken = f"{self._path}: cannot be replaced: {error.strerror}; {_RESTART}"
            raise NotKeptError(self._broken) from None

    def close(self) -> None:
        for descriptor in (self._file, self._lock, self._folder):
            os.close(descriptor)

    def _opened(self) -> int:
        mode = os.stat(FILE, dir_fd=self._folder, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            fault = "is a symbolic link; move the file that it names here, in its place"
            raise InputError(f"{self._path}: {fault}")
        if not stat.S_ISREG(mode):  # to open a pipe would wait for ever
            raise InputError(f"{self._path}: not a regular file; {_REMEDY}")
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(FILE, flags, dir_fd=self._folder)

    def _put_in_place(self) -> None:
        os.replace(NEW_FILE, FILE, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        os.fsync(self._folder)  # so that the name survives a power cut

    def _in_place(self) -> bool:
        """Return whether the next start will find the file that is open here."""
        try:
            named = os.stat(FILE, dir_fd=self._folder)
        except OSError:
            return False
        return os.path.samestat(named, os.fstat(self._file))

    def _cut_back(self) -> None:
        """Remove what a failed write has left, or a start could not read the frames after it."""
        try:
            os.ftruncate(self._file, self._size)
        except OSError as error:
            self._broken = f"{self._path}: cannot be cut: {error.strerror}; {_RESTART}"

    def _replay(self, content: bytes, replay: Callable[[bytes], object]) -> int:
        """Replay every complete frame, and return where the last one ends."""
        if not content.startswith(MAGIC):
            raise InputError(f"{self._path}: offset 0: not a log of ad updates; {_REMEDY}")
        end = len(MAGIC)
        try:
            for frame_end, messages in _frames(content):
                for message in messages:
                    replay(message)
                end = frame_end
        except _DamageError as error:
            fault = f"offset {error.offset}: damaged: {error}"
            raise InputError(f"{self._path}: {fault}; {_REMEDY}") from None
        except GraceError as error:
            fault = f"an update after offset {end} does not replay: {error}"
            raise InputError(f"{self._path}: {fault}; {_REMEDY}") from None
        return end


class _DamageError(Exception):
    def __init__(self, offset: int, fault: str) -> None:
        super().__init__(fault)
        self.offset = offset


def _frame(messages: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """Return the parts of a frame. To join them would hold the interpreter's lock."""
    payload = [part for each in messages for part in (_SIZE.pack(len(each)), each)]
    digest = xxhash.xxh3_64()
    for part in payload:
        digest.update(part)
    header = _HEADER.pack(_MARK, sum(map(len, payload)), digest.intdigest())
    return [header, _CHECK.pack(xxhash.xxh3_64_intdigest(header)), *payload, _END]


def _frames(content: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the end and the updates of each complete frame; raise _DamageError for other bytes."""
    begin = len(MAGIC)
    while len(content) - begin >= _HEADER_BYTES:
        header = content[begin : begin + _HEADER.size]
        mark, size, digest = _HEADER.unpack(header)
        payload_begin = begin + _HEADER_BYTES
        (check,) = _CHECK.unpack(content[begin + _HEADER.size : payload_begin])
        if mark != _MARK or check != xxhash.xxh3_64_intdigest(header):
            if not any(content[payload_begin - 1 :]):
                return  # the disk never wrote all of it
            raise _DamageError(begin, "the header of a group of updates")
        end = payload_begin + size + len(_END)
        if end > len(content):
            return
        payload = content[payload_begin : end - len(_END)]
        whole = xxhash.xxh3_64_intdigest(payload) == digest and content[end - 1 : end] == _END
        if not whole:
            if not any(content[end - 1 :]):
                return
            raise _DamageError(begin, "a group of updates")
        messages, at = [], 0
        while at < len(payload):
            (size,) = _SIZE.unpack_from(payload, at)
            at += _SIZE.size
            messages.append(payload[at : at + size])
            at += size
        yield end, messages
        begin = end


def _write(file: int, parts: Sequence[bytes | memoryview]) -> None:
    left = deque(memoryview(part) for part in parts)
    while left:
        written = os.writev(file, [*islice(left, _MOST_PARTS)])
        while left and written >= len(left[0]):
            written -= len(left.popleft())
        if left:
            left[0] = left[0][written:]


def _make_folder(folder: Path) -> None:
    if not folder.parent.exists():
        folder.parent.mkdir(0o700, parents=True, exist_ok=True)
    folder.mkdir(0o700, exist_ok=True)  # the error is the better one if its parent is a file
    for parent in (folder.parent, folder.parent.parent):
        sync(parent)
