"""The server's log: one line a record on standard error, as JSON or as text.

Who logs gives a record its event and fields: `LOG.info("ready", extra={"event": "ready", ...})`.
An exception given as `exc_info` becomes its type and the places it came through. Its message is
left out, because it may quote a caller's values; records of foreign libraries, whose messages may
quote exceptions of ours, are told by logger and place for the same reason.
"""

import json
import logging
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any, TextIO

from configs.serving import LogsConfig
from server.fault_places import places_of

__all__ = ["LOGGER", "JsonLines", "LineWriter", "TextLines", "configure_logs", "flush_logs"]

LOGGER = "grace.server"
"""The name of the logger that the server's modules use."""

GATHER_SECONDS = 0.02
MOST_LINES = 10_000

_OURS = "grace"
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure_logs(config: LogsConfig) -> None:
    """Makes this process's logging what the configuration says."""
    handler = LineWriter(sys.stderr)
    handler.setFormatter(JsonLines() if config.format == "json" else TextLines())
    level = logging.getLevelNamesMapping()[config.level.upper()]
    root, ours = logging.getLogger(), logging.getLogger(_OURS)
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.WARNING))
    ours.setLevel(level)


def flush_logs() -> None:
    for handler in logging.getLogger().handlers:
        handler.flush()


class LineWriter(logging.Handler):
    """Writes on a thread of its own, many lines at once: writing gives up the interpreter lock,
    which a caller on the event loop would have to win back from the stages for every line.

    What warns is written before the call returns. Where nobody reads, the lines beyond
    MOST_LINES are lost, and their number is told.
    """

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self._out = out
        self._writing = threading.Lock()  # not the one that `emit` is called under
        self._records: deque[logging.LogRecord] = deque()
        self._lost = 0
        self._some = threading.Event()
        threading.Thread(target=self._write_on, name="grace-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        if len(self._records) >= MOST_LINES:
            self._lost += 1
            return
        self._records.append(record)
        if record.levelno >= logging.WARNING:
            self.flush()
        elif not self._some.is_set():
            self._some.set()

    def flush(self) -> None:
        with self._writing:
            lines = [self.format(self._records.popleft()) for _ in range(len(self._records))]
            if self._lost:
                lost, self._lost = self._lost, 0
                lines.append(self.format(_lines_lost(lost)))
            if lines:
                # Nowhere is left to tell that standard error is gone.
                with suppress(OSError, ValueError):
                    self._out.write("".join(f"{line}\n" for line in lines))
                    self._out.flush()

    def _write_on(self) -> None:
        while self._some.wait():
            time.sleep(GATHER_SECONDS)
            self._some.clear()
            self.flush()


def _lines_lost(count: int) -> logging.LogRecord:
    text = "lines were lost: nobody read the log"
    record = logging.LogRecord(LOGGER, logging.WARNING, "", 0, text, None, None)
    record.__dict__.update(event="log_lines_lost", lines=count)
    return record


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(
            {"time": _time(record), "level": record.levelname.lower(), **_fields(record)},
            default=str,
        )


class TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        event = fields.pop("event")
        pairs = (f"{name}={_shown(value)}" for name, value in fields.items() if value is not None)
        return " ".join((_time(record), f"{record.levelname:7}", str(event), *pairs))


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
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
