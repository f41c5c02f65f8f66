"""A child process that runs inside a `with` block, and writes its log to a file."""

import os
import random
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Self

from grace.configs.errors import CallError

LOOK_AGAIN_SECONDS = 0.02
LAST_LINES = 12


def free_port() -> int:
    """Return a free port below the system's ephemeral ports, so that a restart finds it free."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)):
                return port


class ChildProcess(ABC):
    """A program that is ready inside `with`, and always ends with the block.

    It writes its log to a file, so this process need not read its output.

    name           in errors, such as "the server"
    start_seconds  time limit for the start
    environment    variables in addition to those of this process
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        start_seconds: float,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._name = name
        self._command = command
        self._log = log
        self._start_seconds = start_seconds
        self._environment = {**os.environ, **environment}

    @abstractmethod
    def is_ready(self) -> bool: ...

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            # Its own process group: Ctrl-C reaches only the owner, which then ends the program.
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )
        try:
            self.wait_until(self.is_ready, "it was ready", self._start_seconds)
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._kill()

    @property
    def pid(self) -> int:
        """The id of the process, and of its group."""
        return self._process.pid

    @property
    def last_lines(self) -> Sequence[str]:
        """The last lines of its log; none before the start."""
        return self.lines()[-LAST_LINES:]

    def wait_until(self, holds: Callable[[], bool], what: str, seconds: float) -> None:
        """Return once `holds()` is true. `what` describes that in the past tense, for errors."""
        end = time.monotonic() + seconds
        while not holds():
            if (code := self._process.poll()) is not None:
                raise self.failed(f"ended with exit code {code} before {what}")
            if time.monotonic() > end:
                raise self.failed(f"took more than {seconds:g} s until {what}")
            time.sleep(LOOK_AGAIN_SECONDS)

    def failed(self, what: str) -> CallError:
        """Return an error that says what the program did, with the last line of its log."""
        last = self.last_lines[-1] if self.last_lines else "its log is empty"
        return CallError("UNAVAILABLE", "", f"{self._name} {what}: {last}")

    def lines(self) -> Sequence[str]:
        """Return its log so far."""
        if not self._log.exists():
            return []
        return self._log.read_text(encoding="utf-8", errors="replace").splitlines()

    def _kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
