"""Follow a file of updates that a program writes: JSON lines, each an UpdateAdsRequest.

The file may grow, and another file may take its name. A last line without a newline waits for its
newline. After a faulty line the follower sends nothing, because the server could miss a stop if the
follower skipped the line. It goes on at a FULL update, which replaces the whole state, or when
another file takes the name.
"""

import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import monotonic, sleep
from typing import NoReturn

from grace.client.admin_client import AdminClient
from grace.client.follower import LOOK_SECONDS, RETRY_SECONDS, Follower, may_pass
from grace.client.request_json import filled
from grace.configs.errors import CallError, RequestError, one_line
from grace.configs.regular_files import open_regular
from grace.configs.strict_json import without_repeats
from grace.proto.retrieval_pb2 import UpdateAdsRequest

READ_BYTES = 1 << 20
MOST_LINE_BYTES = 256 << 20  # four times what a server takes: JSON needs more bytes
TOGETHER, TOGETHER_BYTES = 32, 1 << 20  # updates that are sent before the first reply has come

_REMEDY = "append a FULL update, or rename a corrected file over this one"


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    text: bytes


class GrowingFile:
    """The lines of a file, which are those of another file once that has taken its name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._read_bytes = self._lines = 0  # of this file
        self._rest: list[bytes] = []  # the start of a line whose newline has not come

    def new_lines(self) -> Iterator[list[Line]]:
        """Yield the lines that have come since the last call, in groups of lines of one file.

        Raise OSError if the file cannot be read. The next call then reads it from its start, unless
        it has only lost its name and may still grow.
        """
        try:
            yield from self._read_on()
            if self._file is None or self._was_replaced():
                yield from self._read_on()  # lines that were written before it lost its name
                self.begin_again()
                self._file = open_regular(self._path)
                yield from self._read_on()
        except FileNotFoundError:
            raise
        except OSError:
            self.begin_again()
            raise

    def begin_again(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file, self._rest = None, []
        self._read_bytes = self._lines = 0

    def _was_replaced(self) -> bool:
        assert self._file is not None
        here, named = os.fstat(self._file), self._path.stat()
        is_cut = here.st_size < self._read_bytes
        return is_cut or (named.st_dev, named.st_ino) != (here.st_dev, here.st_ino)

    def _read_on(self) -> Iterator[list[Line]]:
        while self._file is not None and (chunk := os.read(self._file, READ_BYTES)):
            self._read_bytes += len(chunk)
            *ends, rest = chunk.split(b"\n")
            if ends:
                ends[0] = b"".join((*self._rest, ends[0]))
                self._rest = []
            self._rest.append(rest)
            lines = [Line(number, text) for number, text in enumerate(ends, self._lines + 1)]
            self._lines += len(ends)
            if sum(map(len, self._rest)) > MOST_LINE_BYTES:  # so its reader refuses it
                lines.append(Line(self._lines + 1, b"".join(self._rest)))
                self._rest = []
            if lines:
                yield lines


@dataclass(frozen=True, slots=True)
class _Update:
    line: int
    request: UpdateAdsRequest

    @property
    def sequence(self) -> int:
        return self.request.sequence

    @property
    def full(self) -> bool:
        return self.request.kind == UpdateAdsRequest.KIND_FULL


class _LineError(Exception):
    pass


class _ServerBeganAgainError(Exception):
    """The server has fewer updates than before: it has another state, which lacks older lines."""


class UpdatesFollower(Follower):
    def __init__(
        self, path: Path, client: AdminClient, timeout: float, show: Callable[[str, bool], None]
    ) -> None:
        super().__init__(client, timeout, show)
        self._path, self._file = path, GrowingFile(path)
        self._threads = ThreadPoolExecutor(TOGETHER)
        self._fault = ""  # of a line, after which only a FULL update is sent
        self._unsure = 0  # updates up to this one may be in force without a reply that said so
        self._open: _Update | None = None  # a part, after which others must come
        self._incomplete = 0  # the update whose parts were sent again
        self._failed_looks = 0  # at the file, in a row

    def run(self) -> NoReturn:
        self.sequence = self._unsure = self._last_update()
        self._show(f"{self._path}: followed from update {self.sequence}", False)
        confirmed = -RETRY_SECONDS
        while True:
            try:
                for lines in self._file.new_lines():
                    self._take(lines)
                self._failed_looks = 0
                if monotonic() >= confirmed + RETRY_SECONDS:
                    self._last_update(all_sent=True)
                    self._waits_after = ""
                    confirmed = monotonic()
            except _ServerBeganAgainError:
                self._file.begin_again()
            except OSError as error:
                self._cannot_read(error)
            self._page(bool(self._fault) or self._failed_looks * LOOK_SECONDS >= RETRY_SECONDS)
            sleep(LOOK_SECONDS)

    def _last_update(self, *, all_sent: bool = False) -> int:
        """Return the number of the server's last update. Wait for the server if it is not there.

        With `all_sent`, tell the server that it has all lines: it may wait for that.
        """
        sequence = None
        while sequence is None:
            try:
                if all_sent:
                    sequence = self._client.confirm_updates(self.sequence, self._timeout).sequence
                else:
                    sequence = self._client.status(self._timeout).updates.sequence
            except CallError as error:
                if not may_pass(error):
                    raise
                self._wait_after(error)
                all_sent = False  # lines may have come while the server was away
        if sequence < self.sequence:
            self.sequence = self._unsure = sequence
            self._show(f"{self._path}: read again from its start, for update {sequence + 1}", False)
            raise _ServerBeganAgainError
        return sequence

    def _take(self, lines: list[Line]) -> None:
        if lines[0].number == 1:
            self._go_on()  # another file
            self._open = None
        before = self.sequence
        updates: deque[_Update] = deque()
        for line in lines:
            if not line.text.strip():
                continue
            try:
                updates.append(_read(line))
            except _LineError as error:
                self._send(updates)
                self._stop(line.number, str(error))
        self._send(updates)
        if self.sequence != before:
            self._show(f"line {lines[-1].number}: update {self.sequence} is in force", False)

    def _send(self, updates: deque[_Update]) -> None:
        """Send the updates until all are in force or one has a fault, and empty the queue."""
        while updates:
            first = updates[0]
            if self._open and (first.sequence, first.full) != (self._open.sequence, True):
                part = f"part {self._open.request.part + 1} of update {self._open.sequence}"
                self._stop(self._open.line, f"{part} is missing after it")
            in_force = 0 < first.sequence <= min(self.sequence, self._unsure)
            if in_force and first.full:
                self._go_on()
            if in_force or (self._fault and not first.full):
                updates.popleft()
            else:
                for _ in range(self._sent(_together(updates))):
                    updates.popleft()

    def _sent(self, group: list[_Update]) -> int:
        """Send updates together. Return how many of them need no second try."""
        before = self.sequence
        submit, timeout = self._threads.submit, self._timeout
        calls = [submit(self._client.update_ads, each.request, timeout) for each in group]
        for place, (update, call) in enumerate(zip(group, calls, strict=True)):
            try:
                reply = call.result()
            except CallError as error:
                if may_pass(error):
                    self._unsure = group[-1].sequence
                    self._wait_after(error)
                    self.sequence = max(self.sequence, min(self._last_update(), self._unsure))
                    if update.request.parts:
                        raise _ServerBeganAgainError from None  # it may have lost the parts before
                    return place
                self._stop(update.line, error.text)
                continue
            self._waits_after = ""
            for each in reply.refused:
                fault = f"line {update.line}: put[{each.place}]: ad {each.ad_id}: {each.fault}"
                self._show(one_line(f"{self._path}: {fault}"), True)
            if update.request.parts and reply.sequence < update.sequence:
                self._open = update
                if update.request.part == update.request.parts:
                    self._not_complete(update)
                continue  # other parts will come
            self._open = None
            self.sequence = max(self.sequence, update.sequence)
            if update.full:
                self._go_on()
            if not reply.applied and update.sequence > max(before, self._unsure):
                fault = f"sequence: another sender has used the number {update.sequence}"
                self._stop(update.line, f"{fault}; let only one send updates")
        return len(group)

    def _not_complete(self, update: _Update) -> None:
        """Send all parts of an update again, but only once."""
        if self._incomplete != update.sequence:
            self._incomplete = update.sequence
            raise _ServerBeganAgainError
        fault = "the server has not got all parts of the update"
        self._stop(update.line, f"{fault}; write them in order, from 1")

    def _stop(self, line: int, fault: str) -> None:
        self._open = None
        if not self._fault:
            self._fault = one_line(f"line {line}: {fault.rstrip('.')}; {_REMEDY}")
            self._show(f"{self._path}: {self._fault}", True)

    def _go_on(self) -> None:
        if self._fault:
            self._show(f"{self._path}: followed again", False)
        self._fault = ""

    def _cannot_read(self, error: OSError) -> None:
        """Report it once, after a second: during a rotation the name is missing for a moment."""
        self._failed_looks += 1
        if self._failed_looks == RETRY_SECONDS / LOOK_SECONDS:
            remedy = "correct its path or its rights, and it is followed again"
            self._show(f"{self._path}: cannot be read: {error.strerror}; {remedy}", True)


def _together(updates: deque[_Update]) -> list[_Update]:
    """Return the first updates, as many as may be sent together.

    Calls may overtake each other. A server keeps a DELTA update waiting for those that it follows,
    and refuses it if it refuses one of them. So they are DELTA updates with consecutive numbers, or
    one update alone.
    """
    group = [first := updates[0]]
    size = first.request.ByteSize()
    for each in islice(updates, 1, TOGETHER):
        size += each.request.ByteSize()
        in_a_row = each.sequence == group[-1].sequence + 1 > 1
        if first.full or each.full or not in_a_row or size > TOGETHER_BYTES:
            break
        group.append(each)
    return group


def _read(line: Line) -> _Update:
    if len(line.text) > MOST_LINE_BYTES:
        raise _LineError(f"more than {MOST_LINE_BYTES} bytes")
    try:
        values = json.loads(line.text.decode(), object_pairs_hook=without_repeats)
        if isinstance(values, dict) and isinstance(puts := values.get("put"), list):
            values["put"] = [json.dumps(x) if isinstance(x, dict) else x for x in puts]
        return _Update(line.number, filled(UpdateAdsRequest(), values))
    except UnicodeDecodeError:
        raise _LineError("not UTF-8 text") from None
    except (RequestError, ValueError, RecursionError) as error:
        raise _LineError(f"not an UpdateAdsRequest: {error}") from None
