"""Offer a server several times the load that its engine can bear, and measure its recovery.

    python -m grace.bench.load.overload --out overload.json --capacity 200 --seconds 30

The engine takes about 40 ms for any batch (`fixed_server.py`), and every call has a deadline.
Server and clients are processes; the clients have a lower priority. One more client, the probe,
offers a fifth of the capacity during the overload and after it. Its calls show how long the
recovery takes.
"""

import os
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from grace.bench.load.client import Call, LoadRun, OpenLoop, Target
from grace.bench.load.client_process import run_together
from grace.bench.load.ghz import percentile
from grace.bench.load.options import parser_of, positive, positive_integer, run_command
from grace.bench.load.shots import read_shots
from grace.bench.load.tiny_server import write_tiny_server_files
from grace.bench.result_file import Row, facts_of, record
from grace.bench.running_server import RunningServer
from grace.configs.errors import InputError

FIXED_SERVER = (sys.executable, "-m", "grace.bench.load.fixed_server")
NICE = 5
PROBE_SHARE = 0.2  # of the capacity
TAIL_SECONDS = 4.0
BATCH_SECONDS = 0.04
AT_ONCE = {"deadline_unmeetable", "overloaded", "queue_full"}


@dataclass(frozen=True, slots=True)
class Overload:
    """One overload."""

    times: float  # the offered load, in multiples of the capacity
    deadline_ms: float
    capacity: float  # requests a second that the engine can answer in full batches
    seconds: float
    processes: int = 2  # how many processes make the calls
    front_ends: int = 0
    server_cores: str = ""  # the processors of the server, as `taskset` reads them; all, if empty

    @property
    def batch(self) -> int:
        return max(1, round(BATCH_SECONDS * self.capacity))


def main(arguments: Sequence[str]) -> None:
    parser = parser_of("grace.bench.load.overload", __doc__)
    parser.add_argument("--out", type=Path, required=True, help="result file")
    for option, kind, default, means in (
        ("--capacity", positive, [200.0], "requests a second that the engine can answer"),
        ("--times", positive, [1.0, 2.0, 5.0], "offered load, in multiples of the capacity"),
        ("--deadlines-ms", positive, [800.0, 200.0], "deadlines of the calls"),
        ("--front-ends", int, [0], "listen.front_ends"),
    ):
        words = f"{means}; default: {' '.join(f'{each:g}' for each in default)}"
        parser.add_argument(option, type=kind, nargs="+", default=default, help=words)
    means = "length of each overload; default: 30"
    parser.add_argument("--seconds", type=positive, default=30.0, help=means)
    means = "client processes; default: 2"
    parser.add_argument("--processes", type=positive_integer, default=2, help=means)
    means = "processors of the server, such as 0,1; the clients run on those of this command"
    parser.add_argument("--server-cores", default="", help=means)
    options = parser.parse_args(arguments)
    cases = [
        Overload(
            times, deadline, capacity, options.seconds, options.processes, front_ends,
            options.server_cores,
        )
        for capacity, front_ends, deadline, times in product(
            options.capacity, options.front_ends, options.deadlines_ms, options.times
        )
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        rows = (measure(case, Path(folder)) for case in cases)
        record(rows, options.out, facts_of(parser.prog, arguments))


def measure(case: Overload, folder: Path) -> Row:
    """Run one overload against a new server and return its result."""
    files = write_tiny_server_files(Path(tempfile.mkdtemp(dir=folder)))
    config = files.write_config(
        "overload.yaml",
        generation={"max_batch": case.batch},
        listen={"front_ends": case.front_ends},
    )
    milliseconds = f"{1000 * case.batch / case.capacity:g}"
    command: tuple[str, ...] = (*FIXED_SERVER, "--batch-ms", milliseconds)
    if case.server_cores:
        command = (_taskset(), "--cpu-list", case.server_cores, *command)
    shots = read_shots(files.requests, case.deadline_ms / 1000)
    with RunningServer(config, files.folder / "log", command=command) as server:
        before = _executed(server)
        load = OpenLoop(case.times * case.capacity, case.seconds)
        # The overload's processes take seconds to start, and the probe must not end before they do.
        begins = threading.Event()
        with ThreadPoolExecutor(2, initializer=_be_nice) as pool:
            target = Target(server.address, shots)
            processes = max(2, case.processes)
            overloading = pool.submit(run_together, target, load, processes, begun=begins.set)
            overloading.add_done_callback(lambda _: begins.set())
            begins.wait()
            probe_load = OpenLoop(PROBE_SHARE * case.capacity, case.seconds + TAIL_SECONDS, seed=2)
            probing = pool.submit(run_together, target, probe_load)
            overload, probe = overloading.result(), probing.result()
        executed = _executed(server) - before
    return _row(case, overload, probe, executed)


def _taskset() -> str:
    found = shutil.which("taskset")
    if found is None:
        raise InputError("--server-cores: no taskset on PATH; install util-linux")
    return found


def _be_nice() -> None:
    """Lower the priority of this thread, and of the processes that it starts."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)


def _executed(server: RunningServer) -> float:
    """Count the requests of all batches that passed every stage."""
    return server.metrics().get(("grace_queue_duration_seconds_count", ""), 0.0)


def _row(case: Overload, overload: LoadRun, probe: LoadRun, executed: float) -> Row:
    end = (overload.began - probe.began).total_seconds() + case.seconds
    during = [call for call in probe.calls if call.intended < end]
    calls = [*overload.calls, *during]
    ok = sorted(1000 * (call.ended - call.sent) for call in calls if call.status == "OK")
    refused = sorted(1000 * (call.ended - call.sent) for call in calls if call.reason in AT_ONCE)
    warm_up = overload.warm_up_calls + probe.warm_up_calls
    answered = sum(call.status == "OK" for call in (*overload.calls, *probe.calls)) + warm_up
    late = sorted(1000 * call.lateness for call in calls)
    return {
        "offered": case.times,
        "deadline_ms": case.deadline_ms,
        "capacity_rps": case.capacity,
        "batch": case.batch,
        "front_ends": case.front_ends,
        "server_cores": case.server_cores or None,
        "seconds": case.seconds,
        "calls": len(calls),
        "goodput": round(len(ok) / case.seconds / case.capacity, 3),
        "executed_late": round(max(0.0, 1 - answered / executed), 4),
        "ok_p99_ms": round(percentile(ok, 99), 1),
        "refused_p99_ms": round(percentile(refused, 99), 1) if refused else None,
        "recovery_ms": round(1000 * _recovery(probe.calls, end)),
        "reasons": Counter(call.reason or call.status for call in calls if call.status != "OK"),
        "client_late_p99_ms": round(percentile(late, 99), 1),
        "load_average": round(os.getloadavg()[0], 1),
    }


def _recovery(calls: Sequence[Call], end: float) -> float:
    """Return the seconds from the overload's end to the last call that failed."""
    failed = [call.intended - end for call in calls if call.status != "OK"]
    return max(0.0, *failed) if failed else 0.0


if __name__ == "__main__":
    run_command(main)
