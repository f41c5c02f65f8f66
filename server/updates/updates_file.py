"""Follow a file of updates: JSON lines, each an UpdateAdsRequest, for pipelines that write to disk.

The file may grow, and another file may take its name. A last line without a newline waits for its
newline. At a faulty line the server stops following, because it could miss a stop if it skipped
the line. It goes on at the next FULL update, which replaces the whole state, or with another file.
If the file cannot be read, the server opens it again until it can.
"""

import json
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from google.protobuf.json_format import Parse, ParseDict, ParseError

from grace.configs.errors import RequestError, one_line
from grace.configs.regular_files import open_regular
from grace.index.updates.update import MOST_BYTES, read_update
from grace.proto.retrieval_pb2 import UpdateAdsRequest
from grace.server.errors import ServiceError
from grace.server.observe.logs import LOGGER
from grace.server.observe.thread_names import name_this_thread
from grace.server.updates.ad_updates import AdUpdates, Updated, UpdateResult

LOOK_SECONDS, RETRY_SECONDS = 0.1, 1.0
READ_BYTES = 1 << 20
MOST_LINE_BYTES = 4 * MOST_BYTES  # JSON takes more bytes than the message
TOGETHER = 1024  # updates that are submitted at once

_RETRIED = ("update_not_kept", "too_many_updates")
_REMEDY = "append a FULL update, or rename a corrected file over this one"
_LOG = logging.getLogger(LOGGER)


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    message: bytes
    full: bool


class _LineError(Exception):
    pass


class UpdatesFile:
    """Follows the file on its own thread.

    count      called for each line that is not an update
    fault      why the server does not follow the file, with the remedy; empty while it does
    caught_up  a future that is done once the server has read the file to its end, or cannot
    """

    def __init__(
        self,
        path: Path,
        updates: AdUpdates,
        count: Callable[[UpdateResult, int], None],
    ) -> None:
        self._path, self._updates, self._count = path, updates, count
        self.caught_up: Future[None] = Future()
        self._line_fault = self._read_fault = ""
        self._file: int | None = None
        self._read_bytes = self._lines = 0  # of this file
        self._rest: list[bytes] = []  # the begin of a line whose newline has not come
        self._missing_since: float | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="grace-upd-file", daemon=True)

    @property
    def fault(self) -> str:
        return self._line_fault or self._read_fault

    def start(self) -> None:
        self._thread.start()

    def close(self, seconds: float) -> None:
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        name_this_thread("grace-upd-file")
        while not self._closing.is_set():
            try:
                self._look()
                self._read_fault = ""
            except OSError as error:
                self._unreadable(error)
            except Exception as error:  # noqa: BLE001, the old state stays in force
                fields = {"path": str(self._path)}
                _LOG.error("updates_file_failed", exc_info=error, extra=fields)
                self._stop("internal error: see updates_file_failed in the server's log")
            if not self.caught_up.done():
                self.caught_up.set_result(None)
            self._closing.wait(LOOK_SECONDS)

    def _look(self) -> None:
        """Read to the end. If another file has the name now, begin that one."""
        if self._file is None and not self._open():
            return
        self._read_on()
        if self._was_replaced():
            self._read_on()  # lines that were written before the file lost its name
            self._forget()
            if self._open():
                self._read_on()

    def _open(self) -> bool:
        try:
            self._file = open_regular(self._path)
        except FileNotFoundError as error:
            self._wait_for_the_name(error)
            return False
        self._missing_since = None
        self._go_on()
        return True

    def _wait_for_the_name(self, error: FileNotFoundError) -> None:
        """Raise the error after a while: during a rotation no file may have the name."""
        self._missing_since = self._missing_since or monotonic()
        if monotonic() >= self._missing_since + RETRY_SECONDS:
            raise error

    def _was_replaced(self) -> bool:
        assert self._file is not None
        here = os.fstat(self._file)
        if here.st_size < self._read_bytes:  # it was truncated
            return True
        try:
            named = self._path.stat()
        except FileNotFoundError as error:
            self._wait_for_the_name(error)
            return False
        self._missing_since = None
        return (named.st_dev, named.st_ino) != (here.st_dev, here.st_ino)

    def _forget(self) -> None:
        assert self._file is not None
        os.close(self._file)
        self._file, self._rest = None, []
        self._read_bytes = self._lines = 0

    def _read_on(self) -> None:
        assert self._file is not None
        while not self._closing.is_set() and (chunk := os.read(self._file, READ_BYTES)):
            self._read_bytes += len(chunk)
            *lines, rest = chunk.split(b"\n")
            if lines:
                lines[0] = b"".join((*self._rest, lines[0]))
                self._rest = []
            self._rest.append(rest)
            if sum(map(len, self._rest)) > MOST_LINE_BYTES:
                line = self._lines + len(lines) + 1
                self._stop(f"line {line}: longer than {MOST_LINE_BYTES} bytes, the most")
                self._rest = []
            self._take(lines)

    def _take(self, lines: list[bytes]) -> None:
        updates: list[_Line] = []
        for text in lines:
            self._lines += 1
            if not text.strip():
                continue
            try:
                line = _read_line(self._lines, text)
            except _LineError as error:
                self._apply(updates)
                updates = []
                self._count("refused", 1)
                self._stop(f"line {self._lines}: {error}")
                continue
            if line.full or not (self._line_fault and not updates):
                updates.append(line)
        self._apply(updates)

    def _apply(self, lines: list[_Line]) -> None:
        """Wait until the updates are in force, in order, or until one of them has a fault."""
        while lines and not self._closing.is_set():
            if self._line_fault and not lines[0].full:
                lines = lines[1:]
                continue
            together = lines[:TOGETHER]
            done = self._applied(together)
            lines = lines[done:]
            if done < len(together):
                self._closing.wait(RETRY_SECONDS)

    def _applied(self, lines: list[_Line]) -> int:
        """Submit updates. Return how many of them need no second try."""
        waits: list[Future[Updated]] = []
        with suppress(ServiceError):  # too many updates wait
            waits.extend(self._updates.submit(line.message) for line in lines)
        for place, (line, wait) in enumerate(zip(lines, waits, strict=False)):
            try:
                wait.result()
            except ServiceError as error:
                if error.reason in _RETRIED:
                    return place
                self._stop(f"line {line.number}: {error.text}")
            else:
                if line.full:
                    self._go_on()
        return len(waits)

    def _stop(self, fault: str) -> None:
        if not self._line_fault:
            self._line_fault = one_line(f"{fault.rstrip('.')}; {_REMEDY}")
            self._log_stop(self._line_fault)

    def _unreadable(self, error: OSError) -> None:
        """Report it once, and begin the file again: numbers that are in force have no effect."""
        if not self._read_fault:
            remedy = "correct its path or its rights, and the server follows it again"
            self._read_fault = one_line(f"cannot be read: {error.strerror}; {remedy}")
            self._log_stop(self._read_fault)
        is_missing = isinstance(error, FileNotFoundError)  # the old file may still grow
        if self._file is not None and not is_missing:
            self._forget()
        self._closing.wait(RETRY_SECONDS)

    def _log_stop(self, fault: str) -> None:
        _LOG.error("updates_file_stopped", extra={"path": str(self._path), "fault": fault})

    def _go_on(self) -> None:
        if self._line_fault:
            _LOG.info("updates_file_followed", extra={"path": str(self._path)})
        self._line_fault = ""


def _read_line(number: int, text: bytes) -> _Line:
    try:
        message = _parsed(text.decode()).SerializeToString()
        update = read_update(message)
    except UnicodeDecodeError:
        raise _LineError("not UTF-8 text") from None
    except ParseError as error:
        raise _LineError(f"not an UpdateAdsRequest: {str(error).splitlines()[0]}") from None
    except RequestError as error:
        raise _LineError(str(error)) from None
    return _Line(number, message, update.full)


def _parsed(text: str) -> UpdateAdsRequest:
    try:
        return _parsed_fast(text)
    except (ParseError, ValueError, RecursionError):
        return Parse(text, UpdateAdsRequest())  # which words the fault, if it is one


def _parsed_fast(text: str) -> UpdateAdsRequest:
    """Parse as protobuf's parser does, which takes ten seconds for a line of a million ids.

    Later stops wait for that. Raise an exception for a faulty line, and for unusual ones.
    """
    lists: list[list[int]] = []

    def with_places(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Replace each list of ids by its place in `lists`."""
        fields = dict(pairs)
        if len(fields) < len(pairs):
            raise ValueError("a key stands twice in an object")
        if isinstance(ids := fields.get("ids"), list):
            lists.append(_integers(ids))
            fields["ids"] = [len(lists) - 1]
        return fields

    fields = json.loads(text, object_pairs_hook=with_places)
    if not isinstance(fields, dict):
        raise ValueError("no object")
    request = ParseDict(fields, UpdateAdsRequest())
    for level in (*request.stop.values(), *request.resume.values()):
        if level.ids:
            (place,) = level.ids
            level.ids[:] = lists[place]
    return request


def _integers(ids: list[Any]) -> list[int]:
    texts = [each for each in ids if type(each) is str]
    if any(" " in text for text in texts) or not set(map(type, ids)) <= {int, str}:
        raise ValueError("other ids")
    return list(map(int, ids))
