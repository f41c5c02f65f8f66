"""A program that shells call in place of `grace`: it runs in a fork, which has imported `grace`.

    with forked_grace(folder / "grace"):
        subprocess.run(["bash", "-c", "grace doctor"], env={"PATH": str(folder), ...})

The fork has the program's arguments, environment, folder and standard files, and gets its signals.
The program ends with the fork's exit code.
"""

import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from support.command import GRACE
from support.forked import MESSAGE_BYTES, fork_server

PROGRAM = f"""\
#!{sys.executable} -ISs
import json, os, signal, socket, sys
order = {{
    "command": ["{GRACE}", *sys.argv[1:]], "environment": dict(os.environ), "folder": os.getcwd()
}}
asks = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asks.connect(SOCKET)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, lambda number, _: asks.send(str(int(number)).encode()))
socket.send_fds(asks, [json.dumps(order).encode()], [0, 1, 2])
code = int(asks.recv(9))
sys.exit(code if code >= 0 else 128 - code)
"""


@contextmanager
def forked_grace(program: Path) -> Iterator[None]:
    """Write the program, and serve its calls inside `with`."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with TemporaryDirectory(prefix="grace-") as folder, closing(listener):
        listener.bind(f"{folder}/calls")  # pytest's folders are too long for a socket's name
        listener.listen()
        program.write_text(PROGRAM.replace("SOCKET", repr(f"{folder}/calls")))
        program.chmod(0o755)
        threading.Thread(target=_accept, args=(listener,), daemon=True).start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket) -> None:
    with suppress(OSError):  # the listener is closed
        while True:
            threading.Thread(target=_run, args=(listener.accept()[0],), daemon=True).start()


def _run(call: socket.socket) -> None:
    """Run the order of one call, pass signals on, and answer with the exit code."""
    with call:
        message, files, _, _ = socket.recv_fds(call, MESSAGE_BYTES, 3)
        pid = fork_server().ask(json.loads(message), files)
        for file in files:
            os.close(file)
        fork = os.pidfd_open(pid)
        try:
            while fork not in select.select([call.fileno(), fork], [], [])[0]:
                # A program that was killed sends nothing more, and takes its fork with it.
                number = int(call.recv(9) or signal.SIGKILL)
                signal.pidfd_send_signal(fork, number)
                if number == signal.SIGKILL:
                    break
            code = fork_server().ask({"ended": pid})
        finally:
            os.close(fork)
        with suppress(BrokenPipeError):
            call.send(str(code).encode())
