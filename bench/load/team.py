"""One load that several processes make together.

A Python process makes about a thousand calls a second and is late beyond it. So each process makes
every so-manieth call of the load, over connections of its own, all by the same clock; what is told
of the load is told of all their calls together. A percentile is of the calls, never of percentiles.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from grace.bench.load.calls import LoadRun
from grace.bench.load.client import ClosedLoop, Load, Part, Progress, run_load
from grace.bench.load.shots import Shot
from grace.configs.errors import GraceError, InputError

__all__ = ["merged", "run_together"]

_TOLD_BEFORE_SECONDS = 0.1  # the begin, so that it is not over before the last has heard of it
_PROGRESS_SECONDS = 0.5
_READY = "ready"


def run_together(
    address: str,
    shots: Sequence[Shot],
    load: Load,
    processes: int = 1,
    connections: int = 4,
    progress: Progress = lambda seconds: None,
) -> LoadRun:
    """`connections` of each process. A load by one process is made here, in this one."""
    if isinstance(load, ClosedLoop) and load.in_flight < processes:
        raise InputError(
            f"--in-flight {load.in_flight}: too few for {processes} processes, of which each needs "
            "a call under way; lower --processes"
        )
    if processes == 1:
        return run_load(address, shots, load, connections, progress)
    # Not forked: gRPC's threads would be missing in the copy.
    context = get_context("spawn")
    with ExitStack() as stack:
        team: list[tuple[SpawnProcess, Connection]] = []
        for number in range(processes):
            ours, theirs = context.Pipe()
            arguments = (theirs, address, tuple(shots), load, connections, number, processes)
            process = context.Process(target=_make_part, args=arguments, daemon=True)
            process.start()
            stack.callback(_end, process, ours)
            theirs.close()
            team.append((process, ours))
        for answer in _answers(address, team, lambda: None):
            assert answer == _READY
        begin = time.perf_counter() + _TOLD_BEFORE_SECONDS
        for _, pipe in team:
            pipe.send(begin)
        runs = _answers(address, team, lambda: progress(time.perf_counter() - begin))
        return merged(runs)


def merged(runs: Sequence[LoadRun]) -> LoadRun:
    """All calls in the order of their ends, as one process records them."""
    calls = sorted((call for run in runs for call in run.calls), key=lambda call: call.ended)
    return LoadRun(
        address=runs[0].address,
        began=min(run.began for run in runs),
        seconds=max(run.seconds for run in runs),
        calls=tuple(calls),
        warm_up_calls=sum(run.warm_up_calls for run in runs),
        processes=sum(run.processes for run in runs),
    )


def _answers(
    address: str, team: Sequence[tuple[SpawnProcess, Connection]], tick: Callable[[], None]
) -> list[Any]:
    """What each process says next; raises what one of them raised."""
    said: dict[int, Any] = {}
    places = {pipe: place for place, (_, pipe) in enumerate(team)}
    while len(said) < len(team):
        waiting = [pipe for pipe, place in places.items() if place not in said]
        for pipe in connection.wait(waiting, _PROGRESS_SECONDS):
            assert isinstance(pipe, Connection)
            place = places[pipe]
            try:
                said[place] = pipe.recv()
            except EOFError:
                process = team[place][0]
                process.join()
                raise InputError(
                    f"{address}: process {place} of {len(team)} of the load ended with exit code "
                    f"{process.exitcode}; what it says stands above"
                ) from None
            if isinstance(said[place], GraceError):
                raise said[place]
        tick()
    return [said[place] for place in range(len(team))]


def _make_part(
    pipe: Connection,
    address: str,
    shots: tuple[Shot, ...],
    load: Load,
    connections: int,
    number: int,
    of: int,
) -> None:
    """What a process of the team does."""

    def begin() -> float:
        pipe.send(_READY)
        told: float = pipe.recv()
        return told

    try:
        run = run_load(address, shots, load, connections, part=Part(number, of, begin))
    except GraceError as error:
        pipe.send(error)
    else:
        pipe.send(run)


def _end(process: SpawnProcess, pipe: Connection) -> None:
    """It has told all, or has nobody left to tell."""
    pipe.close()
    process.terminate()
    process.join()
