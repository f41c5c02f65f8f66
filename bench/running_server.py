"""`grace serve` as a process of its own that ends with its owner, and what its log says."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from grace.configs.errors import CallError
from grace.configs.yaml_loader import read_yaml

__all__ = ["GRACE_SERVE", "RunningServer", "write_server_config"]

# Where the command stands depends on the installation; where the package is, Python knows.
GRACE_SERVE = (sys.executable, "-c", "from grace.cli.main import run; run()", "serve")

START_SECONDS = 120.0
STOP_SECONDS = 60.0
LOOK_AGAIN_SECONDS = 0.02
LAST_LINES = 12

FREE_PORTS: dict[str, dict[str, Any]] = {
    "listen": {"port": 0, "linger_seconds": 0.0},
    "admin": {"port": 0},
    "metrics": {"port": 0},
    "logs": {"format": "json"},
}


def write_server_config(
    file: Path, snapshots: Path, checkpoint: Path, profiles: Path, /, **sections: Any
) -> Path:
    """A configuration on free ports, told in a log that programs read.

    profiles  a file with a section `generation`
    sections  what else is to differ from the defaults
    """
    values: dict[str, Any] = {
        "snapshots": str(snapshots.resolve()),
        "checkpoint": str(checkpoint.resolve()),
        "generation": read_yaml(profiles)["generation"],
        **FREE_PORTS,
    }
    for name, given in sections.items():
        before = values.get(name)
        if isinstance(before, dict) and isinstance(given, Mapping):
            given = {**before, **given}
        values[name] = given
    file.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return file


class RunningServer:
    """Inside `with`, the server is ready; it is gone after leaving, however one leaves.

    Its log is a file: reading it along would cost the load.

    command        with its configuration, whose logs.format must be json
    start_seconds  until it is ready; a large model and catalogue take minutes
    """

    def __init__(
        self, command: Sequence[str | Path], log: Path, start_seconds: float = START_SECONDS
    ) -> None:
        self._command = [str(part) for part in command]
        self._log = log
        self._start_seconds = start_seconds

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            # A group of its own: Ctrl-C is for the owner, who then stops it.
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
            )
        try:
            self._wait_ready()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self._kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def address(self) -> str:
        """host:port of Retrieve."""
        return str(self._listening["retrieve"])

    @property
    def metrics(self) -> str:
        """URL to scrape."""
        return f"http://{self._listening['metrics']}/metrics"

    @property
    def last_lines(self) -> Sequence[str]:
        """The end of its log; there is none if it has not been started."""
        return self._lines()[-LAST_LINES:]

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log's entries of one event so far."""
        entries = map(_entry, self._lines())
        return [entry for entry in entries if entry.get("event") == name]

    def stop(self) -> None:
        """SIGTERM, once; the server must finish what is under way and exit 0."""
        if self._process.returncode is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise self._failed(f"did not end {STOP_SECONDS:g} s after SIGTERM: killed") from None
        finally:
            self._kill()
        if code:
            raise self._failed(f"ended with exit code {code}")

    @property
    def _listening(self) -> dict[str, Any]:
        return self.events("listening")[0]

    def _wait_ready(self) -> None:
        end = time.monotonic() + self._start_seconds
        while not self.events("ready"):
            if (code := self._process.poll()) is not None:
                raise self._failed(f"ended with exit code {code} before it was ready")
            if time.monotonic() > end:
                raise self._failed(f"was not ready after {self._start_seconds:g} s")
            time.sleep(LOOK_AGAIN_SECONDS)

    def _kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()

    def _failed(self, what: str) -> CallError:
        last = self.last_lines[-1] if self.last_lines else "its log is empty"
        return CallError("UNAVAILABLE", "", f"the server {what}: {last}")

    def _lines(self) -> list[str]:
        if not self._log.exists():
            return []
        return self._log.read_text(encoding="utf-8", errors="replace").splitlines()


def _entry(line: str) -> dict[str, Any]:
    """Nothing where a line is not JSON: one half written, or another program's."""
    try:
        entry = json.loads(line)
    except json.JSONDecodeError:
        return {}
    return entry if isinstance(entry, dict) else {}
