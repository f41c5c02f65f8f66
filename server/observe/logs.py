"""The server's log: one line a record on standard error, as JSON or as text.

A record gets its event and fields so: `LOG.info("ready", extra={"device": "cpu"})`. Messages
may quote a caller's values, so a line never has an exception's message: `exc_info` becomes the
exception's type and the places it came through. For the same reason a line of a foreign library
has its logger and place only. Text that a library prints becomes such a line, too (`PrintedText`).
"""

import io
import json
import logging
import math
import os
import select
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from grace.configs.serving import LogLevel, LogsConfig
from grace.server.threads import daemon_thread

LOGGER = "grace.server"
LOG = logging.getLogger(LOGGER)  # the log of the server's modules

MOST_PLACES = 20  # the innermost places of one exception: an endless recursion has thousands

_FOREIGN_SECONDS = 10.0  # least time between two lines from one place in another library's code
_OURS = "grace"
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure_logs(config: LogsConfig) -> None:
    writer = LineWriter(partial(_write, sys.stderr.fileno()))
    log_with(writer, JsonLines() if config.format == "json" else TextLines())
    set_log_level(config.level)


def log_with(writer: "LineWriter", formatter: logging.Formatter) -> None:
    """Send this process's log to the writer alone."""
    writer.addFilter(RareForeignLines())
    writer.setFormatter(formatter)
    logging.getLogger().handlers[:] = [writer]


def set_log_level(name: LogLevel) -> str:
    """Log lines of this level and above from now on; return the previous level."""
    level = logging.getLevelNamesMapping()[name.upper()]
    root, ours = logging.getLogger(), logging.getLogger(_OURS)
    previous = logging.getLevelName(ours.level).lower()
    root.setLevel(max(level, logging.WARNING))  # foreign libraries
    ours.setLevel(level)
    return previous


def flush_logs() -> None:
    """Wait until all lines are written, or for a second if no one reads them."""
    for handler in logging.getLogger().handlers:
        handler.flush()


class LineWriter(logging.Handler):
    """Writes on its own thread, many lines at once: writing gives up the interpreter lock, which
    the event loop would have to win back from the stages for every line.

    A caller waits until its warning is written, but at most `warning_seconds`. If no process reads
    the log, later callers do not wait, and lines beyond `most_lines` are lost. The log reports how
    many.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        most_lines: int = 10_000,
        gather_seconds: float = 0.02,
        warning_seconds: float = 0.2,
        flush_seconds: float = 1.0,
    ) -> None:
        super().__init__()
        self._write = write
        self._most_lines = most_lines
        self._gather_seconds = gather_seconds
        self._warning_seconds = warning_seconds
        self._flush_seconds = flush_seconds
        self._changed = threading.Condition()  # guards all below; no one writes while holding it
        self._records: list[logging.LogRecord] = []
        self._lost = self._accepted = self._written = 0
        self._hurry = False
        self._stuck = False  # a caller waited in vain, and no line has been written since
        daemon_thread("grace-log", self._write_on).start()

    def handle(self, record: logging.LogRecord) -> bool:
        """Emit without the handler's lock: a caller that waits must not delay the others."""
        passes = bool(self.filter(record))
        if passes:
            self.emit(record)
        return passes

    def emit(self, record: logging.LogRecord) -> None:
        with self._changed:
            if len(self._records) >= self._most_lines:
                self._lost += 1
                return
            self._records.append(record)
            self._accepted += 1
            if record.levelno >= logging.WARNING and not self._stuck:
                self._wait_written(self._warning_seconds)
            elif len(self._records) == 1:
                self._changed.notify_all()

    def flush(self) -> None:
        with self._changed:
            self._wait_written(self._flush_seconds)

    def _wait_written(self, seconds: float) -> None:
        accepted, self._hurry = self._accepted, True
        self._changed.notify_all()
        self._stuck = not self._changed.wait_for(lambda: self._written >= accepted, seconds)

    def _write_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._records)
                self._changed.wait_for(lambda: self._hurry, self._gather_seconds)
                self._hurry = False
                if self._lost:
                    lost = own_line(logging.WARNING, "log_lines_lost", lines=self._lost)
                    self._records.append(lost)
                    self._accepted, self._lost = self._accepted + 1, 0
                records, self._records = self._records, []
            self._write("".join(f"{line}\n" for line in map(self._line_of, records)))
            with self._changed:
                self._written += len(records)
                self._stuck = False
                self._changed.notify_all()

    def _line_of(self, record: logging.LogRecord) -> str:
        """Return the record's line, or one that says why it has none: the thread must not end."""
        try:
            return self.format(record)
        except Exception as error:  # noqa: BLE001, whatever a field raises as it becomes text
            where = f"{Path(record.pathname).name}:{record.lineno}"
            fields = {"where": where, "error": type(error).__name__}
            return self.format(own_line(logging.ERROR, "log_line_broke", **fields))


def own_line(level: int, event: str, **fields: object) -> logging.LogRecord:
    """Return a line of the log about the log itself."""
    record = logging.LogRecord(LOGGER, level, "", 0, event, None, None)
    record.__dict__.update(fields)
    return record


def _write(descriptor: int, text: str) -> None:
    """Write without `sys.stderr`, whose lock the end of the process would wait for."""
    line = text.encode(errors="backslashreplace")
    while line:
        try:
            line = line[os.write(descriptor, line) :]
        except BlockingIOError:  # another process that shares it made it non-blocking
            select.select((), (descriptor,), ())
        except OSError:
            return  # standard error is gone: there is nowhere left to report it


class PrintedText(io.TextIOBase):
    """Standard error for libraries that print: each print becomes a line of the log.

    Callers can cause prints, and the event loop must not wait until they are written. The line has
    the place of the print, and the exception that is being handled there.
    """

    encoding = "utf-8"

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if text.strip():
            logging.getLogger("stderr").warning(text, exc_info=sys.exception(), stacklevel=2)
        return len(text)

    def fileno(self) -> int:
        return 2


class RareForeignLines(logging.Filter):
    """Lets each line of another library through at most once in ten seconds. Callers can cause such
    lines, with a header that gRPC cannot decode for example, and every warning delays the event
    loop."""

    def __init__(self) -> None:
        super().__init__()
        self._latest: dict[tuple[str, str, int], float] = {}  # by the place in the code

    def filter(self, record: logging.LogRecord) -> bool:
        if _is_ours(record):
            return True
        place = record.name, record.pathname, record.lineno
        passes = record.created - self._latest.get(place, -math.inf) >= _FOREIGN_SECONDS
        if passes:
            self._latest[place] = record.created
        return passes


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(
            {"time": _time(record), "level": record.levelname.lower(), **fields_of(record)},
            default=str,
        )


class TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = fields_of(record)
        event = fields.pop("event")
        pairs = (f"{name}={_shown(value)}" for name, value in fields.items() if value is not None)
        return " ".join((_time(record), f"{record.levelname:7}", str(event), *pairs))


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return all that a line says of a record, but for its time and level."""
    if _is_ours(record):
        given = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        fields = {"event": record.getMessage(), **given}
    else:
        where = f"{Path(record.pathname).name}:{record.lineno}"
        fields = {"event": "library", "logger": record.name, "where": where}
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        fields |= {"error": type(error).__name__, "places": places_of(error)}
    return fields


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] == _OURS


def places_of(error: BaseException) -> str:
    """Return `file:line` of each call, outermost first, of the error and of what caused it."""
    chains: list[str] = []
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        frames = traceback.extract_tb(cause.__traceback__, limit=-MOST_PLACES)
        # A file and its folder: enough to find it, and the same on every machine.
        files = ("/".join(Path(frame.filename).parts[-2:]) for frame in frames)
        lines = (str(frame.lineno) for frame in frames)
        places = " > ".join(map(":".join, zip(files, lines, strict=True)))
        chains.append(f"{type(cause).__name__} at {places or 'no known place'}")
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return "; from ".join(chains)


def _shown(value: object) -> str:
    """Return the value on one line and in one piece, whatever characters a request_id has."""
    text = str(value)
    if isinstance(value, float):  # measured: more digits would mean nothing
        text = f"{value:.3g}" if abs(value) < 999.5 else f"{value:.0f}"
    plain = text.isprintable() and not any(sign in text for sign in ' "=\\')
    return text if plain and text else json.dumps(text)
