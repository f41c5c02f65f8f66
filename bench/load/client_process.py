"""Several client processes that make one load together.

One Python process makes about a thousand calls a second and is late beyond that. So each of N
processes makes every N-th call of the load, over its own connections and by one common clock. Their
calls are merged before anything is computed: a percentile is of calls, never of percentiles.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from grace.bench.load.client import Load, LoadRun, Part, Target, run_load
from grace.configs.errors import GraceError, InputError

_NOTICE_SECONDS = 0.1  # the begin is announced this long ahead, so that no process hears it late


def run_together(
    target: Target,
    load: Load,
    processes: int = 1,
    *,
    apart: bool = False,
    begun: Callable[[], None] = lambda: None,
) -> LoadRun:
    """Make the load from N processes.

    If N is 1, this process makes it, unless it must be `apart` because other threads work here.

    begun  called when other processes begin the load
    """
    if processes == 1 and not apart:
        return run_load(target, load)
    with ExitStack() as stack:
        team = [
            stack.enter_context(spawned(_make_part, number, processes, target, load))
            for number in range(processes)
        ]
        _receive(target.address, team)  # returns when every process is ready
        begin = time.perf_counter() + _NOTICE_SECONDS
        for _, pipe in team:
            pipe.send(begin)
        begun()
        return merged(_receive(target.address, team))


@contextmanager
def spawned(
    function: Callable[..., None], *arguments: object
) -> Iterator[tuple[SpawnProcess, Connection]]:
    """Call a function in another process inside `with`; it gets the other end of the pipe first."""
    context = get_context("spawn")  # a forked copy would lack gRPC's threads
    ours, theirs = context.Pipe()
    process = context.Process(target=function, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        ours.close()
        process.terminate()
        process.join()


def merged(runs: Sequence[LoadRun]) -> LoadRun:
    """Join the runs of several processes into one, with the calls in the order of their ends."""
    calls = sorted((call for run in runs for call in run.calls), key=lambda call: call.ended)
    return LoadRun(
        address=runs[0].address,
        began=min(run.began for run in runs),
        seconds=max(run.seconds for run in runs),
        calls=tuple(calls),
        warm_up_calls=sum(run.warm_up_calls for run in runs),
        processes=sum(run.processes for run in runs),
    )


def _receive(address: str, team: Sequence[tuple[SpawnProcess, Connection]]) -> list[Any]:
    """Return one message of each process; raise the error that a process sent."""
    received = []
    for number, (process, pipe) in enumerate(team):
        try:
            received.append(pipe.recv())
        except EOFError:
            process.join()
            raise InputError(
                f"{address}: process {number} of {len(team)} of the load ended with exit code "
                f"{process.exitcode}; what it printed is above"
            ) from None
        if isinstance(received[-1], GraceError):
            raise received[-1]
    return received


def _make_part(pipe: Connection, number: int, of: int, target: Target, load: Load) -> None:
    """Report ready, receive the start time, make a part of the load, and send its run or error."""

    def begin() -> float:
        pipe.send("ready")
        at: float = pipe.recv()
        return at

    try:
        pipe.send(run_load(target, load, Part(number, of, begin)))
    except GraceError as error:
        pipe.send(error)
