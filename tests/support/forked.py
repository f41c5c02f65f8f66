"""Run Python scripts in forks of a process that has imported the server: a start is mostly imports.

    process = forked([GRACE, "serve", "--config", config], environment)

A script runs from its first line to the end of its interpreter, in a process that has the
arguments, the environment, the folder and the standard files that it is given, and no other file.
Tests whose subject is the start of a command start the command itself.
"""

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent
MODULES = ("grace.cli.main", "grace.server.life_cycle")
LATE_MODULES = ("typer._adapters",)  # imported when a command runs; older packages lack it
MESSAGE_BYTES = 1 << 17


class Forked:
    """What `subprocess.Popen` has of a process. Read `stderr` to its end, and wait."""

    def __init__(self, server: "ForkServer", pid: int, stderr: int) -> None:
        self._server = server
        self.pid = pid
        self.stderr = os.fdopen(stderr, encoding="utf-8")
        self._process = os.pidfd_open(pid)
        weakref.finalize(self, os.close, self._process)
        self._code: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        return self._wait(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _wait(self, seconds: float | None) -> int | None:
        ends = select.poll()  # threads cannot share one
        ends.register(self._process, select.POLLIN)
        if self._code is None and ends.poll(None if seconds is None else seconds * 1000):
            with self._lock:
                if self._code is None:
                    self._code = self._server.ask({"ended": self.pid})
        return self._code


class ForkServer:
    """The process that forks. It has no thread, and never runs what its forks run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asks, answers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
        with answers:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "support.forked", str(answers.fileno())],
                # gRPC reads its verbosity when it is imported, here before `grace serve` sets it.
                env={**os.environ, "GRPC_VERBOSITY": "NONE", "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[answers.fileno()],
            )

    def fork(
        self, command: Sequence[str], environment: Mapping[str, str], stdout: int | None
    ) -> Forked:
        """Run a script whose standard input is /dev/null, as its output is if none is given."""
        nothing = os.open(os.devnull, os.O_RDWR)
        ours, stderr = os.pipe()
        order = {"command": command, "environment": environment, "folder": str(Path.cwd())}
        try:
            files = [nothing, nothing if stdout is None else stdout, stderr]
            return Forked(self, self.ask(order, files), ours)
        finally:
            os.close(stderr)
            os.close(nothing)

    def ask(self, request: Mapping[str, Any], files: Sequence[int] = ()) -> Any:
        with self._lock:
            socket.send_fds(self._asks, [json.dumps(request).encode()], files)
            return json.loads(self._asks.recv(MESSAGE_BYTES))

    def close(self) -> None:
        self._asks.close()
        self._process.wait()


@cache
def fork_server() -> ForkServer:
    """Return the one fork server of this process, which ends with it."""
    server = ForkServer()
    atexit.register(server.close)
    return server


def forked(
    command: Sequence[str], environment: Mapping[str, str], stdout: int | None = None
) -> Forked:
    """Run a Python script with arguments. Its standard output is /dev/null unless it is given."""
    return fork_server().fork(command, environment, stdout)


def take_orders(orders: socket.socket) -> Mapping[str, Any] | None:
    """Return each order in the process that is forked for it; at last, return None in this one."""
    while True:
        message, files, _, _ = socket.recv_fds(orders, MESSAGE_BYTES, 3)
        if not message:
            return None
        order: Mapping[str, Any] = json.loads(message)
        if "ended" in order:
            _, status = os.waitpid(order["ended"], 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
            if answer == 0:
                for standard, file in enumerate(files):
                    os.dup2(file, standard)
            for file in files:
                os.close(file)
            if answer == 0:
                return order
        orders.send(json.dumps(answer).encode())


def main() -> None:
    for module in (*MODULES, *filter(find_spec, LATE_MODULES)):
        import_module(module)
    gc.collect()
    gc.freeze()  # no collection of a fork looks at what it has inherited
    with socket.socket(fileno=int(sys.argv[1])) as orders:
        order = take_orders(orders)
    if order is None:
        return
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = list(order["command"])
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
