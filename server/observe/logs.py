"""The server's log: one line a record on standard error, as JSON or as text.

Who logs gives a record its event and fields: `LOG.info("ready", extra={"event": "ready", ...})`.
An exception given as `exc_info` becomes its type and the places it came through. Its message is
left out, because it may quote a caller's values; records of foreign libraries, whose messages may
quote exceptions of ours, are told by logger and place for the same reason.
"""

import json
import logging
import os
import select
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import PurePath
from typing import Any

from grace.configs.serving import LogsConfig
from grace.server.observe.fault_places import places_of
from grace.server.observe.thread_names import name_this_thread

__all__ = [
    "LOGGER",
    "JsonLines",
    "LineWriter",
    "TextLines",
    "configure_logs",
    "fields_of",
    "flush_logs",
]

LOGGER = "grace.server"
"""The name of the logger that the server's modules use."""

GATHER_SECONDS = 0.02
MOST_LINES = 10_000
WARNING_SECONDS = 0.2
FLUSH_SECONDS = 1.0

_OURS = "grace"
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure_logs(config: LogsConfig) -> None:
    """Makes this process's logging what the configuration says."""
    handler = LineWriter(partial(_write, sys.stderr.fileno()))
    handler.setFormatter(JsonLines() if config.format == "json" else TextLines())
    level = logging.getLevelNamesMapping()[config.level.upper()]
    root, ours = logging.getLogger(), logging.getLogger(_OURS)
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.WARNING))
    ours.setLevel(level)


def flush_logs() -> None:
    """Waits until all lines are written, or for FLUSH_SECONDS if nobody reads them."""
    for handler in logging.getLogger().handlers:
        handler.flush()


class LineWriter(logging.Handler):
    """Writes on a thread of its own, many lines at once: writing gives up the interpreter lock,
    which a caller on the event loop would have to win back from the stages for every line.

    What warns is written before the call returns, if that takes WARNING_SECONDS at most. Where
    nobody reads, nobody waits, either: only that thread does, for ever. The lines beyond
    MOST_LINES are then lost, and their number is told.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        super().__init__()
        self._write = write
        self._changed = threading.Condition()  # guards all below; nothing is written under it
        self._records: list[logging.LogRecord] = []
        self._lost = 0
        self._taken_in = 0
        self._written = 0
        self._hurry = False
        self._stuck = False  # somebody waited in vain, and no line has been written since
        threading.Thread(target=self._write_on, name="grace-log", daemon=True).start()

    def handle(self, record: logging.LogRecord) -> bool:
        """Not under the handler's lock: whoever waits for a line must not hold up the others."""
        passes = bool(self.filter(record))
        if passes:
            self.emit(record)
        return passes

    def emit(self, record: logging.LogRecord) -> None:
        urgent = record.levelno >= logging.WARNING
        with self._changed:
            if len(self._records) >= MOST_LINES:
                self._lost += 1
                return
            self._records.append(record)
            self._taken_in += 1
            if urgent and not self._stuck:
                self._wait_written(WARNING_SECONDS)
            elif len(self._records) == 1:
                self._changed.notify_all()

    def flush(self) -> None:
        with self._changed:
            self._wait_written(FLUSH_SECONDS)

    def _wait_written(self, seconds: float) -> None:
        taken_in, self._hurry = self._taken_in, True
        self._changed.notify_all()
        self._stuck = not self._changed.wait_for(lambda: self._written >= taken_in, seconds)

    def _write_on(self) -> None:
        name_this_thread("grace-log")
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._records)
                self._changed.wait_for(lambda: self._hurry, GATHER_SECONDS)
                self._hurry = False
                records, self._records = self._records, []
                lost, self._lost = self._lost, 0
            if lost:
                records.append(_lines_lost(lost))
            self._write("".join(f"{self.format(record)}\n" for record in records))
            with self._changed:
                self._written += len(records) - bool(lost)
                self._stuck = False
                self._changed.notify_all()


def _write(descriptor: int, text: str) -> None:
    """Past `sys.stderr`, whose lock the end of the process would wait for."""
    line = text.encode(errors="backslashreplace")
    while line:
        try:
            line = line[os.write(descriptor, line) :]
        except BlockingIOError:  # somebody who shares it made it so
            select.select((), (descriptor,), ())
        except OSError:
            return  # nowhere is left to tell that standard error is gone


def _lines_lost(count: int) -> logging.LogRecord:
    text = "lines were lost: nobody read the log"
    record = logging.LogRecord(LOGGER, logging.WARNING, "", 0, text, None, None)
    record.__dict__.update(event="log_lines_lost", lines=count)
    return record


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
    """All that a line says of a record beside its time and level."""
    if record.name.partition(".")[0] == _OURS:
        given = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        fields = {"event": given.pop("event", None) or record.getMessage(), **given}
    else:
        where = f"{PurePath(record.pathname).name}:{record.lineno}"
        fields = {"event": "library", "logger": record.name, "where": where}
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        fields |= {"error": type(error).__name__, "places": places_of(error)}
    return fields


def _shown(value: object) -> str:
    """On one line and in one piece, whatever characters a caller's request_id has."""
    text = str(value)
    plain = text.isprintable() and not any(sign in text for sign in ' "=\\')
    return text if plain and text else json.dumps(text)
