"""Hardware counters of the attention kernels from Nsight Compute (ncu), or why there are none.

    ncu ... python -m grace.bench.gpu.instruments.counters [--tiny]   makes the calls to count

One process makes all calls, because starting the profiler and compiling take longer than everything
that is counted. A marking kernel comes before each call.
"""

import csv
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from grace.bench.gpu.subjects.attention_kernels import (
    cross_inputs,
    cross_kernels,
    distinct_table,
    self_inputs,
    self_kernel,
)
from grace.bench.gpu.subjects.workload import Workload, workload_of
from grace.bench.options import BenchOptions
from grace.bench.result_file import Row

COUNTED = (
    ("cross", "ours"),
    ("self", "fa2"),
    ("self", "coalesced"),
    ("self", "fused"),
    ("self", "ours distinct"),
)
"""Self-attention where no rows share their past: the paper counted a dense cache."""

_MARK = "spin_kernel"  # in the name of the kernel that torch's `_sleep` launches
_METRICS = {
    "instructions": "smsp__inst_executed.sum",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "hbm_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
}
_DURATION = "gpu__time_duration.sum"
_INSTALLED = Path("/opt/nvidia/nsight-compute")


def measure_counters(work: Workload) -> list[Row]:
    """Return a row for each of COUNTED; `unavailable` says why it has no counters."""
    found, reason = _counted(work)
    rows: list[Row] = []
    for place, (kind, variant) in enumerate(COUNTED):
        own = found[place] if found else {"unavailable": reason}
        rows.append({"measure": "counters", "kernel": kind, "variant": variant, **own})
    return rows


def _counted(work: Workload) -> tuple[list[dict[str, Any]] | None, str]:
    """The counters of each call, or the reason why there are none."""
    installed = [path for path in _INSTALLED.glob("*/ncu") if os.access(path, os.X_OK)]
    ncu = shutil.which("ncu") or (str(max(installed)) if installed else None)
    if ncu is None or not work.on_gpu:
        return None, "Nsight Compute (ncu) is not on this machine"
    command = [
        *(ncu, "--csv", "--page", "raw", "--profile-from-start", "off"),
        *("--target-processes", "all", "--clock-control", "none"),
        *("--metrics", ",".join((*_METRICS.values(), _DURATION))),
        *(sys.executable, "-m", "grace.bench.gpu.instruments.counters"),
        *(["--tiny"] if work.options.tiny else []),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = counters_of_csv(done.stdout)
    if len(found) == len(COUNTED):
        return found, ""
    faults = [line for line in done.stdout.splitlines() if "==ERROR==" in line]
    said = [*done.stderr.splitlines(), *faults] or ["it printed nothing"]
    return None, f"ncu: {said[-1].removeprefix('==ERROR==').strip()[:200]}"


def counters_of_csv(text: str) -> list[dict[str, Any]]:
    """Return the counters of each marked call's longest kernel; none without a table."""
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        return []
    _, *kernels = csv.DictReader(io.StringIO("\n".join(lines[begin:])))  # the first are units
    calls: list[list[dict[str, str]]] = []
    for kernel in kernels:
        if _MARK in kernel["Kernel Name"]:
            calls.append([])
        elif calls:
            calls[-1].append(kernel)
    return [_longest(call) for call in calls if call]


def _longest(kernels: Sequence[dict[str, str]]) -> dict[str, Any]:
    longest = max(kernels, key=lambda row: _number(row[_DURATION]))
    counters = {name: float(f"{_number(longest[x]):.5g}") for name, x in _METRICS.items()}
    return {"kernel_name": longest["Kernel Name"], **counters}


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def main() -> None:
    calls = _calls(workload_of(BenchOptions("attention", "cuda", tiny="--tiny" in sys.argv)))
    for call in calls:  # compiled before it is counted
        call()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    for call in calls:
        torch.cuda._sleep(1)  # type: ignore[no-untyped-call]  # noqa: SLF001
        call()
        torch.cuda.synchronize()
    torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


def _calls(work: Workload) -> list[Callable[[], object]]:
    """Those of COUNTED at the paper's widest step, t = 3 for self-attention."""
    ops, beams, dtype = work.load_ops(work.device), work.fixed.beams[-1], torch.bfloat16
    cross = cross_inputs(work, beams, dtype, seed=0)
    table = distinct_table(work, work.batch * beams, work.spec.sid_length - 1)
    own = self_inputs(work, table, dtype)
    return [
        partial(cross_kernels(ops, work.device)[variant], cross)
        if kind == "cross"
        else self_kernel(work, variant, ops, own)
        for kind, variant in COUNTED
    ]


if __name__ == "__main__":
    main()
