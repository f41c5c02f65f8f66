"""A real server in another process, with all that a test sees of it from outside.

    with ServerProcess(files.write_config()) as server:              grace serve, in a fork
    with ServerProcess(config, faults=Faults(tmp_path)) as server:   the same, with faults
    with ServerProcess(config, command=server_script()) as server:   grace serve, with its imports

Inside, the server is ready (unless `ready=False`). Leaving kills it, if it still runs. Logs must be
JSON, as `ServingFiles.write_config` has it.
"""

import fcntl
import json
import os
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from support.command import GRACE, plain_environment
from support.faults import Faults
from support.forked import TESTS, Forked, forked

PATIENCE_SECONDS = 60.0
"""How long to wait for an event that must come; a busy machine may take long."""
LOOK_AGAIN_SECONDS = 0.005
SMALLEST_PIPE = 4096
FAULTY_SERVER = Path(__file__).with_name("faulty_server.py")

Labels = frozenset[tuple[str, str]]


def wait_until(holds: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"waited {seconds} s in vain until {what}"
        time.sleep(LOOK_AGAIN_SECONDS)


def children_of(pid: int) -> list[int]:
    return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


class ServerProcess:
    def __init__(
        self,
        config: Path,
        *,
        faults: Faults | None = None,
        ready: bool = True,
        command: Sequence[str | Path] = (),
    ) -> None:
        """Run `grace serve --config CONFIG`, or another `command` in place of `grace serve`."""
        self.config = config
        self._faults = faults
        self._command = command
        self._ready = ready
        self._lines: list[str] = []
        self._reads = threading.Event()
        self._reads.set()

    def __enter__(self) -> Self:
        self._process = self._started()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if self._ready:
            try:
                self.wait_ready()
            except BaseException:
                self.kill()
                raise
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    @property
    def faults(self) -> Faults:
        assert self._faults is not None, "this server has no faults"
        return self._faults

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def children(self) -> list[int]:
        """The processes that it has started: its relays."""
        return children_of(self.pid)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def address(self) -> str:
        """host:port of Retrieve, health and reflection."""
        return str(self._listening["retrieve"])

    @property
    def admin(self) -> str:
        """host:port of the Admin service."""
        return str(self._listening["admin"])

    @property
    def metrics_address(self) -> str:
        """host:port of the metrics, in plaintext."""
        return str(self._listening["metrics"])

    @property
    def lines(self) -> list[str]:
        """All that the server has written to stderr so far."""
        return list(self._lines)

    def log(self, event: str) -> list[dict[str, Any]]:
        """The log's entries of one event so far."""
        return [entry for entry in map(_entry, self.lines) if entry.get("event") == event]

    def wait_log(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        """The entries of an event, once there are that many."""
        self.wait_until(lambda: len(self.log(event)) >= count, f"the log has {event!r}")
        return self.log(event)

    @contextmanager
    def unread_log(self) -> Iterator[Callable[[], int]]:
        """Inside, no one reads the log. Counts its bytes that wait in its pipe, a small one."""
        stream = self._process.stderr
        assert stream is not None
        fcntl.fcntl(stream, fcntl.F_SETPIPE_SZ, SMALLEST_PIPE)
        self._reads.clear()
        try:
            yield lambda: _unread_bytes(stream.fileno())
        finally:
            self._reads.set()

    def wait_ready(self) -> None:
        self.wait_log("ready")

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Fails, with the log, if the server ends before."""

        def held_or_ended() -> bool:
            ended = not self.running
            if ended:
                self._reader.join()
            return holds() or ended

        wait_until(held_or_ended, what)
        assert holds(), f"the server ended before {what}\n" + "".join(self.lines)

    def metrics(self) -> dict[tuple[str, Labels], float]:
        """Every sample of a scrape by its name and labels."""
        with urlopen(f"http://{self.metrics_address}/metrics", timeout=30) as reply:
            text = reply.read().decode()
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of a name that have these labels, among others."""
        return sum(
            value
            for (sample, given), value in self.metrics().items()
            if sample == name and given.issuperset(labels.items())
        )

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        """The exit code, once all of the log has been read."""
        code = self._process.wait(seconds)
        self._reader.join()
        return code

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()

    @property
    def _listening(self) -> dict[str, Any]:
        return self.wait_log("listening")[0]

    def _started(self) -> Forked | subprocess.Popen[str]:
        paths = str(TESTS), os.environ.get("PYTHONPATH")
        environment = plain_environment(PYTHONPATH=os.pathsep.join(filter(None, paths)))
        program = self._command or server_script(self._faults)
        command = [str(part) for part in (*program, "--config", self.config)]
        if not self._command:
            return forked(command, environment)
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            for line in stream:
                self._reads.wait()
                self._lines.append(line)


def server_script(faults: Faults | None = None) -> Sequence[str | Path]:
    """Return the Python script that is the server, and its first arguments."""
    if faults is None:
        return (GRACE, "serve")
    return (FAULTY_SERVER, "--faults", faults.folder)


def _unread_bytes(pipe: int) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return int(count)


def _entry(line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError:
        return {}
    return entry if isinstance(entry, dict) else {}
