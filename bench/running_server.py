"""`grace serve` as a child process that ends with its owner, and the events in its log."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import yaml

from grace.configs.errors import CallError
from grace.configs.yaml_loader import read_yaml

# Not the `grace` script: its place depends on the installation, the package's does not.
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
    """Write a configuration with free ports, which the server logs as JSON, and return its path.

    profiles  a file with a section `generation`
    sections  other values that differ from the defaults; a section is merged over the free ports'
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
    """A server that is ready inside `with`, and has ended after the block in any case.

    Its log is a file, so that this process need not read along during a load.

    config         the configuration, whose logs.format must be json
    options        other options of `grace serve`
    start_seconds  time limit for the start; a large model and catalogue take minutes
    command        what to run instead of `grace serve`
    environment    variables that the server has besides this process's
    """

    def __init__(
        self,
        config: Path,
        log: Path,
        *options: str | Path,
        start_seconds: float = START_SECONDS,
        command: Sequence[str] = GRACE_SERVE,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._command = [*command, "--config", str(config), *map(str, options)]
        self._log = log
        self._start_seconds = start_seconds
        self._environment = {**os.environ, **environment}

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            # Its own process group: Ctrl-C reaches only the owner, which then stops the server.
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )
        try:
            self._wait_ready()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
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
        return str(self.events("listening")[0]["retrieve"])

    @property
    def admin_address(self) -> str:
        """host:port of Admin."""
        return str(self.events("listening")[0]["admin"])

    @property
    def last_lines(self) -> Sequence[str]:
        """The last lines of its log; none before the start."""
        return self._lines()[-LAST_LINES:]

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the log's entries of this event so far."""
        found = []
        for line in self._lines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:  # the line is incomplete, or not from the server
                continue
            if isinstance(entry, dict) and entry.get("event") == name:
                found.append(entry)
        return found

    def stop(self) -> None:
        """Send SIGTERM, once; the server must finish its calls and exit with 0."""
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
