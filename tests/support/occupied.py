"""A server whose every place is taken, one known request after another: for tests of its queue."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from support.retrieve_calls import Call, Caller, message
from support.server_process import ServerProcess

__all__ = ["occupied_engine", "start_in_line", "wait_waiting"]


def wait_waiting(server: ServerProcess, requests: int) -> None:
    server.wait_until(
        lambda: server.metric("grace_queue_depth") == requests, f"{requests} requests wait"
    )


def start_in_line(
    server: ServerProcess, caller: Caller, request: Mapping[str, Any], *names: str, **fields: Any
) -> list[Call]:
    """Calls that wait in the line, in this order, behind those that do already."""
    ahead = int(server.metric("grace_queue_depth"))
    calls = []
    for place, name in enumerate(names, start=ahead + 1):
        calls.append(caller.start(message(request, request_id=name, **fields)))
        wait_waiting(server, place)
    return calls


@contextmanager
def occupied_engine(
    server: ServerProcess, caller: Caller, request: Mapping[str, Any]
) -> Iterator[list[Call]]:
    """Inside, the first call stands in the generate stage and the second is prepared ahead of it.

    So whatever else is called waits in the line. On leaving, the stage goes on. The server must be
    idle before; `server.faults` has nothing of what it did until then.
    """
    server.faults.forget()
    with server.faults.closed("generate"):
        running = caller.start(message(request, request_id="running"))
        server.wait_until(lambda: "running" in server.faults.reached("generate"), "one runs")
        prepared = caller.start(message(request, request_id="prepared"))
        server.wait_until(lambda: "prepared" in server.faults.reached("features"), "one is ahead")
        yield [running, prepared]
