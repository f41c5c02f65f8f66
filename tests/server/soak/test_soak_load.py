"""Long loads of a server: mixed calls, and more than it can bear.

A mixed load leaves memory, threads and descriptors as they were, and counters add up. In the other
the engine takes a fixed time for a batch of any size. Its limits hold on a machine that has two
cores for server and clients: OVERLOAD_CAPACITY sets the engine's requests a second, so that the
engine is what is overloaded and not the cores, and OVERLOAD_SECONDS the length of each overload.
Latencies of a busy machine say nothing.
"""

import os
from pathlib import Path

import pytest

from grace.bench.load.overload import Overload, measure
from grace.bench.load.soak.__main__ import run_soak, soak_report
from support.served import front_ends
from support.serving_files import ServingFiles

pytestmark = [pytest.mark.subprocess, pytest.mark.soak]

SECONDS = float(os.environ.get("SOAK_SECONDS", "120"))


@front_ends
def test_mixed_load_leaves_memory_threads_and_descriptors_as_they_were(
    serving_files: ServingFiles, front_ends: int
) -> None:
    finished = run_soak(serving_files.tiny_server_files, SECONDS, front_ends)
    assert finished.passed, soak_report(finished)


OVERLOAD_SECONDS = float(os.environ.get("OVERLOAD_SECONDS", "30"))
CAPACITY = float(os.environ.get("OVERLOAD_CAPACITY", "100"))
TRIES = 3  # other programs on the machine may spoil a run


@pytest.mark.parametrize("deadline_ms", [800.0, 200.0])
@pytest.mark.parametrize("times", [2.0, 5.0])
def test_an_overloaded_server_wastes_no_work_refuses_at_once_and_recovers(
    tmp_path: Path, times: float, deadline_ms: float
) -> None:
    case = Overload(times, deadline_ms, CAPACITY, OVERLOAD_SECONDS)
    broken: list[str] = []
    for number in range(TRIES):
        folder = tmp_path / str(number)
        folder.mkdir()
        row = measure(case, folder)
        print(row)
        promises = {
            "goodput": row["goodput"] >= 0.95,
            "executed_late": row["executed_late"] <= 0.03,
            "ok_p99_ms": row["ok_p99_ms"] <= deadline_ms,
            "refused_p99_ms": row["refused_p99_ms"] <= 20.0,
            "recovery_ms": row["recovery_ms"] <= 1000.0,
        }
        broken = [f"{name}: {row[name]}" for name, kept in promises.items() if not kept]
        if not broken:
            return
    pytest.fail(f"{broken} in the last of {TRIES} runs: {row}")
