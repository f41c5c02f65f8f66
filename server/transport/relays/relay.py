"""A relay: a process that holds gRPC for a server, so that the server's interpreter is free of it.

    python -m grace.server.transport.relays.relay ARGUMENTS

The server starts it, with one end of a pair of sockets. A relay passes bytes on: it neither parses
nor counts, and decides nothing. It ends when the other end closes, for whatever reason.
"""

import asyncio
import ctypes
import gc
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import grpc
import uvloop

from grace.configs.errors import ConfigError
from grace.configs.serving import TlsConfig
from grace.proto.retrieval_pb2 import DESCRIPTOR
from grace.server.observe.logs import LOG, LineWriter, PrintedText, fields_of, flush_logs, log_with
from grace.server.threads import name_this_thread
from grace.server.transport.certificates import CertificateFiles
from grace.server.transport.listener.grpc_listener import GrpcContext, GrpcListener
from grace.server.transport.listener.listen_limits import ListenLimits
from grace.server.transport.relays.frames import Kind, Link, packed

IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that a relay ignores: the server handles them, and ends its relays itself."""

_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG
_CODES = {code.value[0]: code for code in grpc.StatusCode}


def main(arguments: str) -> int:
    """`arguments` are JSON: the descriptor of the socket, then the fields of ListenLimits."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)  # the server started it with them blocked
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    descriptor, *limits = json.loads(arguments)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_relay(socket.socket(fileno=descriptor), limits))


async def _relay(end: socket.socket, limits: Sequence[Any]) -> int:
    link = await Link.connected(end)
    loop = asyncio.get_running_loop()

    def send_lines(lines: str) -> None:
        loop.call_soon_threadsafe(link.send, Kind.LOG, 0, lines.encode())

    log_with(LineWriter(send_lines), _RelayedLines())
    code = 0
    try:
        with redirect_stderr(PrintedText()):
            await Relay(link, ListenLimits(*limits)).run()
    except* Exception as group:  # noqa: BLE001, the server logs it, and ends
        for error in group.exceptions:
            LOG.error("front_end_failed", exc_info=error)
        await asyncio.to_thread(flush_logs)  # which gives the link the lines
        code = 1
    await link.close()
    return code


class _RelayedLines(logging.Formatter):
    """Formats lines for the server, which formats them again as its configuration says."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps({"level": record.levelno, **fields_of(record)}, default=str)


class Relay:
    """Belongs to the event loop. A call is open here until gRPC is done with it."""

    def __init__(self, link: Link, limits: ListenLimits) -> None:
        service, methods = DESCRIPTOR.services_by_name["AdsRetrieval"], {"Retrieve": self._retrieve}
        self._link = link
        self._listener = GrpcListener(service, methods, limits, shares_port=True)
        self._loop = asyncio.get_running_loop()
        self._last_call = 0
        self._open: dict[int, asyncio.Future[bytes | list[Any]]] = {}

    async def run(self) -> None:
        """Carry out the server's orders until it closes its end."""
        orders: dict[str, Callable[..., Awaitable[object]]] = {
            "open": self._listen,
            "set_health": self._listener.set_health,
            "close": self._listener.close,
        }

        def received(kind: int, number: int, body: bytes) -> None:
            if kind == Kind.REPLY:
                self._resolve(number, body)
            elif kind == Kind.FAILURE:
                self._resolve(number, json.loads(body))
            elif kind == Kind.PING:
                # After the tasks of the calls whose replies came before.
                self._loop.call_soon(self._link.send, Kind.PONG, number)
            else:
                name, given = json.loads(body)
                tasks.create_task(self._carry_out(number, orders[name](**given)))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listener.ended())  # a fault of gRPC's ends this process
            await self._link.serve(received)
            os._exit(0)  # whatever is under way

    async def _carry_out(self, number: int, order: Awaitable[object]) -> None:
        fault = ""
        try:
            await order
        except ConfigError as error:
            fault = str(error)
        self._link.send(Kind.DONE, number, fault.encode())

    async def _listen(self, section: str, host: str, port: int, tls: Sequence[str] | None) -> None:
        """`tls` has the paths of a TlsConfig. The server logs their changes."""
        files = None
        if tls is not None:
            files = CertificateFiles(f"{section}.tls", TlsConfig(*map(Path, tls)))
        await self._listener.open(section, host, port, files)
        name_this_thread("grace-relay")  # after gRPC's threads began: they inherit the name
        gc.collect()
        gc.freeze()  # what is loaded stays

    async def _retrieve(self, message: bytes, context: GrpcContext) -> bytes:
        call = context.incoming(message)
        self._last_call = number = self._last_call + 1
        outcome = self._open[number] = self._loop.create_future()
        context.add_done_callback(lambda context: self._ended(number, unread=context.unread))
        self._link.send(Kind.CALL, number, *packed(call))
        end = await outcome
        if isinstance(end, bytes):
            return end
        code, details, trailers = end
        return await context.abort(_CODES[code], details, tuple(map(tuple, trailers)))

    def _ended(self, number: int, *, unread: bool) -> None:
        del self._open[number]
        self._link.send(Kind.ENDED, number, bytes([unread]))

    def _resolve(self, number: int, end: bytes | list[Any]) -> None:
        outcome = self._open.get(number)
        if outcome is not None and not outcome.done():  # otherwise its caller has gone
            outcome.set_result(end)


if __name__ == "__main__":
    os._exit(main(sys.argv[1]))  # ending the interpreter takes time and does nothing more
