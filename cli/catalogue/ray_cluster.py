"""The tasks of a sharded build on a Ray cluster. Only this module needs Ray, an extra."""

import socket
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, TypeVar

import ray
from ray.exceptions import AuthenticationError, RayError, RayTaskError

from grace.configs.errors import GraceError, InputError, NativeError, WorkerError
from grace.index.builder import Task
from grace.index.tables.addresses import first_line

LOCAL = "local"  # the address that starts a cluster on this machine for one build

_JOIN = (
    "start one with `ray start --head` and give the HOST:PORT that it prints, usually port 6379, "
    f"or give `{LOCAL}`; if it asks for a token, copy ~/.ray/auth_token from its first machine, "
    "and set RAY_AUTH_MODE=token"
)
_NEEDS = (
    "every machine needs the ads and the snapshot root under the same paths, space there, and "
    "memory: with more --shards, tasks need less; with more --threads, fewer tasks share a machine"
)
_DISTRIBUTION = "grace-serving"
_LOCAL_STORE_BYTES = 1 << 28  # results name files and hold few numbers
_KNOCK_SECONDS = 10

Result = TypeVar("Result")


@contextmanager
def ray_tasks(address: str, threads: int) -> Iterator["RayTasks"]:
    """Run tasks on a cluster; each takes `threads` cores of one machine."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == LOCAL:
        quiet |= {"include_dashboard": False, "object_store_memory": _LOCAL_STORE_BYTES}
    _join(address, quiet)
    try:
        yield RayTasks(_slots(threads), threads)
    finally:
        ray.shutdown()


def _join(address: str, options: Mapping[str, Any]) -> None:
    host, _, port = address.rpartition(":")
    try:
        if host:  # fail within seconds if no server listens; Ray would wait for minutes
            socket.create_connection((host, int(port)), _KNOCK_SECONDS).close()
        ray.init(address=address, **options)
    except (AuthenticationError, OSError, RuntimeError, ValueError) as error:
        fault = f"cannot join a cluster there ({first_line(error)})"
        raise InputError(f"--ray {address}: {fault}; {_JOIN}") from None


def _slots(threads: int) -> int:
    nodes: list[dict[str, Any]] = ray.nodes()
    cores = [int(node["Resources"].get("CPU", 0)) for node in nodes if node["Alive"]]
    slots = sum(count // threads for count in cores)
    if slots == 0:
        raise InputError(
            f"--threads {threads}: the largest machine of the cluster gives {max(cores)} cores; "
            "give fewer threads"
        )
    return slots


@dataclass(frozen=True, slots=True)
class _Refused:
    error: GraceError


def _attempt(task: Task[Result], of_version: str) -> tuple[Result, int] | _Refused:
    """Run a task on the worker; return an error whose message is for the user."""
    installed = version(_DISTRIBUTION)
    if installed != of_version:
        fault = f"a worker has {_DISTRIBUTION} {installed}, this build is of {of_version}"
        return _Refused(WorkerError(f"{fault}: install the same version on every machine"))
    try:
        return task.run()
    except (InputError, NativeError) as error:
        return _Refused(error)
    except (GraceError, OSError, MemoryError) as error:  # other GraceErrors cannot be pickled
        fault = f"{task.name} on {socket.gethostname()}: {str(error) or 'out of memory'}"
        return _Refused(WorkerError(f"{fault}; {_NEEDS}"))


class RayTasks:
    def __init__(self, slots: int, threads: int) -> None:
        self.slots = slots  # tasks that run at once
        self._attempt: Any = ray.remote(_attempt).options(num_cpus=threads)

    def __call__(
        self, tasks: Sequence[Task[Result]], /
    ) -> Generator[tuple[Result, int], None, None]:
        """Yield the results in order. Stopping earlier ends the cluster's job and all its tasks.

        Do not cancel the tasks: if the result of a cancelled one arrives at that moment, Ray aborts
        this process ("Tried to complete task that was not pending").
        """
        ours = version(_DISTRIBUTION)
        waiting = [self._attempt.remote(task, ours) for task in tasks]
        try:
            for task in tasks:
                result = _result(task, waiting[0])
                del waiting[0]
                yield result
        finally:
            if waiting:
                ray.shutdown()


def _result(task: Task[Result], reference: Any) -> tuple[Result, int]:
    try:
        result: tuple[Result, int] | _Refused = ray.get(reference)
    except RayTaskError:  # our own mistake keeps its traceback
        raise
    except RayError as error:
        fault = f"its worker failed ({type(error).__name__}: {first_line(error)})"
        raise WorkerError(f"{task.name}: {fault}; {_NEEDS}") from None
    if isinstance(result, _Refused):
        raise result.error
    return result
