"""Servers whose generate stage stands still, so that a test knows what waits in the queue."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from support.retrieve_calls import Call, Caller, message
from support.server_process import ServerProcess

FAULTY_PLACES = 19
"""The places in the queue of the servers with faults that tests share."""


def start_waiting(
    server: ServerProcess, caller: Caller, request: Mapping[str, Any], *names: str, **fields: Any
) -> list[Call]:
    """Start calls one by one, each after the one before it waits in the queue."""
    ahead = int(server.metric("grace_queue_depth"))
    calls = []
    for place, name in enumerate(names, start=ahead + 1):
        calls.append(caller.start(message(request, request_id=name, **fields)))
        server.wait_until(
            lambda: server.metric("grace_queue_depth") == place,  # noqa: B023
            f"{place} requests wait",
        )
    return calls


@contextmanager
def occupied_engine(
    server: ServerProcess, caller: Caller, request: Mapping[str, Any]
) -> Iterator[list[Call]]:
    """Stop one call in the generate stage and prepare a second ahead of it: all others wait in the
    queue. On leaving, the stage goes on.

    The server must be idle before. `server.faults` forgets its earlier batches.
    """
    server.faults.forget()
    with server.faults.closed("generate"):
        running = caller.start(message(request, request_id="running"))
        server.wait_until(lambda: "running" in server.faults.reached("generate"), "one runs")
        prepared = caller.start(message(request, request_id="prepared"))
        server.wait_until(lambda: "prepared" in server.faults.reached("features"), "one is ahead")
        yield [running, prepared]
