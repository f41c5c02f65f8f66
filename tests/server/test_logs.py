"""The log: one line a record, with its fields, and never an exception's message."""

import io
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

import pytest

from grace.server.observe.logs import LOGGER, JsonLines, LineWriter, TextLines
from support.command import run_python
from support.raw_http2 import RawHttp2
from support.server_process import ServerProcess, wait_until

SECRET = "marker-4711"
IMPORTS = """
import logging, os, sys
from grace.configs.serving import LogsConfig
from grace.server.observe.logs import LOGGER, configure_logs, flush_logs
"""
"""What programs of other processes begin with."""
FORMATTERS = pytest.mark.parametrize("formatter", [JsonLines, TextLines])


def record_of(
    level: int,
    event: str,
    fields: Mapping[str, object] | None = None,
    error: BaseException | None = None,
) -> logging.LogRecord:
    """The record that a call on a logger makes."""
    caught = None if error is None else (type(error), error, error.__traceback__)
    logger = logging.Logger(LOGGER)
    return logger.makeRecord(LOGGER, level, __file__, 1, event, (), caught, extra=fields)


def quote(secret: str) -> None:
    raise KeyError(secret)


def caught(secret: str) -> ValueError:
    """An error that another one caused, both with the secret in their messages."""
    try:
        try:
            quote(secret)
        except KeyError as cause:
            raise ValueError(f"{secret!r} is wrong") from cause
    except ValueError as error:
        return error
    raise AssertionError


def test_a_record_is_a_line_of_json_or_of_text_which_leaves_out_what_is_unknown() -> None:
    fields = {"event": "request", "request_id": "r1", "field": None, "text": "two words"}
    record = record_of(logging.INFO, "request", fields)
    line = json.loads(JsonLines().format(record))
    assert line.pop("time").endswith("Z")
    assert line == {"level": "info", **fields}
    _, _, rest = TextLines().format(record).partition(" ")
    assert rest == 'INFO    request request_id=r1 text="two words"'


@FORMATTERS
@pytest.mark.parametrize("request_id", ["a\nb", "a\r\x1b[31mb", "a\u2028b", "\x00", 'a" code="OK'])
def test_a_request_id_cannot_break_the_line_or_pass_for_another_field(
    formatter: type[logging.Formatter], request_id: str
) -> None:
    fields = {"event": "request", "request_id": request_id, "code": "INTERNAL"}
    line = formatter().format(record_of(logging.INFO, "request", fields))
    assert line.isprintable()
    assert len(line.splitlines()) == 1
    if formatter is JsonLines:
        assert json.loads(line)["request_id"] == request_id
    else:
        assert f" request_id={json.dumps(request_id)} code=INTERNAL" in f"{line} "


@FORMATTERS
def test_the_line_of_an_exception_has_types_and_places_and_no_message(
    formatter: type[logging.Formatter],
) -> None:
    record = record_of(logging.ERROR, "batch_failed", error=caught(SECRET))
    line = formatter().format(record)
    assert SECRET not in line
    assert re.search(r"ValueError at server/test_logs.py:\d+; from KeyError at server/", line)


class Sink(io.StringIO):
    """Standard error that a reader may block."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.unblocked = threading.Event()
        self.unblocked.set()

    def write(self, text: str) -> int:
        self.unblocked.wait()
        self.writes += 1
        return super().write(text)


def logger_of(writer: LineWriter) -> logging.Logger:
    writer.setFormatter(JsonLines())
    logger = logging.Logger(LOGGER)
    logger.addHandler(writer)
    return logger


def test_many_lines_are_one_write_and_a_warning_is_there_at_once() -> None:
    sink = Sink()
    logger = logger_of(LineWriter(sink.write, gather_seconds=60.0, warning_seconds=60.0))
    for number in range(63):
        logger.info("request", extra={"event": "request", "number": number})
    assert sink.writes == 0
    logger.warning("late")
    entries = [json.loads(line) for line in sink.getvalue().splitlines()]
    assert sink.writes == 1
    assert [entry.get("number") for entry in entries] == [*range(63), None]


def test_lines_beyond_the_bound_are_lost_and_counted_and_delay_no_one() -> None:
    sink = Sink()
    writer = LineWriter(sink.write, most_lines=5, gather_seconds=60.0, flush_seconds=60.0)
    logger = logger_of(writer)
    sink.unblocked.clear()
    for _ in range(8):
        logger.info("request")
    sink.unblocked.set()
    writer.flush()
    entries = [json.loads(line) for line in sink.getvalue().splitlines()]
    assert [entry["event"] for entry in entries] == ["request"] * 5 + ["log_lines_lost"]
    assert entries[-1]["lines"] == 3


def test_a_line_that_cannot_be_written_is_replaced_and_later_ones_follow() -> None:
    class Broken:
        def __str__(self) -> str:
            raise KeyError(SECRET)

    sink = Sink()
    logger = logger_of(LineWriter(sink.write))
    logger.warning("first", extra={"field": Broken()})
    logger.warning("second")
    wait_until(lambda: "second" in sink.getvalue(), "the log goes on")
    broken, second = map(json.loads, sink.getvalue().splitlines())
    assert (broken["event"], broken["error"]) == ("log_line_broke", "KeyError")
    assert broken["where"].startswith("test_logs.py:")
    assert second["event"] == "second"


@pytest.mark.subprocess
def test_what_a_library_prints_is_a_line_with_its_place_and_its_exception() -> None:
    code = f"""
import contextlib, traceback
from grace.server.observe.logs import PrintedText
configure_logs(LogsConfig("json"))
with contextlib.redirect_stderr(PrintedText()):
    print("{SECRET}", file=sys.stderr)
    for _ in range(9):
        try:
            raise KeyError("{SECRET}")
        except KeyError:
            traceback.print_exc()
flush_logs()
print("plain again", file=sys.stderr)
"""
    *lines, last = run_python(IMPORTS + code).stderr.splitlines()
    printed, error = map(json.loads, lines)
    assert (printed["event"], printed["logger"]) == ("library", "stderr")
    assert error["error"] == "KeyError"
    assert error["where"].startswith("traceback.py:")
    assert SECRET not in "".join(lines)
    assert last == "plain again"


@pytest.fixture
def full_pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe that takes nothing more until it is read."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with suppress(BlockingIOError):
        while os.write(write, b"x" * 4096):
            pass
    os.set_blocking(write, True)
    yield read, write
    os.close(read)
    os.close(write)


def test_a_caller_waits_once_where_no_one_reads(full_pipe: tuple[int, int]) -> None:
    read, write = full_pipe

    def write_on(text: str) -> None:
        os.write(write, text.encode())

    writer = LineWriter(write_on, warning_seconds=1.0, flush_seconds=0.05)
    logger = logger_of(writer)
    begin = time.monotonic()
    for _ in range(600):
        logger.warning("not read")  # the first one waits in vain, the others would for 10 minutes
    assert time.monotonic() - begin < 300
    writer.flush()
    received = bytearray()
    while received.count(b"\n") < 600:
        received += os.read(read, 1 << 16)
    logger.warning("is read again")
    assert b"is read again" in os.read(read, 1 << 16)


@pytest.mark.subprocess
def test_a_standard_error_that_does_not_block_loses_nothing() -> None:
    code = """
os.set_blocking(sys.stderr.fileno(), False)
configure_logs(LogsConfig("json"))
for number in range(5000):
    logging.getLogger(LOGGER).info("line", extra={"number": number})
flush_logs()
"""
    numbers = [
        json.loads(line)["number"] for line in run_python(IMPORTS + code).stderr.splitlines()
    ]
    assert numbers == list(range(5000))


@pytest.mark.subprocess
def test_a_standard_error_that_is_gone_delays_no_one() -> None:
    code = """
configure_logs(LogsConfig("json"))
os.close(2)
for number in range(600):  # each would wait for 0.2 s
    logging.getLogger(LOGGER).warning("line")
flush_logs()
print("on")
"""
    begin = time.monotonic()
    assert run_python(IMPORTS + code).stdout == "on\n"
    assert time.monotonic() - begin < 60


@pytest.mark.subprocess
def test_headers_that_grpc_cannot_decode_do_not_fill_the_log(healthy_server: ServerProcess) -> None:
    before = len(healthy_server.lines)
    for address in (healthy_server.address, healthy_server.admin):
        with RawHttp2(address) as client:
            client.call(23, headers={"x-name": b"\xff"})
            client.read_ends(23)
    lines = [line for line in healthy_server.lines[before:] if '"library"' in line]
    assert len(lines) <= 3  # one from each process


@pytest.mark.subprocess
def test_the_configuration_decides_on_form_and_level() -> None:
    code = """
for config in (LogsConfig("json", "warning"), LogsConfig("text", "debug")):
    configure_logs(config)
    logging.getLogger(LOGGER).info("quiet")
    logging.getLogger(LOGGER).warning("loud")
    logging.getLogger("asyncio").info("foreign")
"""
    done = run_python(IMPORTS + code)
    first, *others = done.stderr.splitlines()
    assert (done.returncode, json.loads(first)["event"]) == (0, "loud")
    assert [line.split()[1:] for line in others] == [["INFO", "quiet"], ["WARNING", "loud"]]
