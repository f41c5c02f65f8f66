"""Hardware counters of single kernels from Nsight Compute, or why there are none.

One process makes all calls, a mark before each: starting the profiler, and compiling, takes longer
than everything that is counted.
"""

import csv
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grace.bench.gpu.counted_call import COUNTED, MARK
from grace.bench.gpu.options import BenchOptions
from grace.bench.gpu.results import Row

__all__ = ["all_counters", "counters_of_csv", "find_ncu"]

_METRICS = {
    "instructions": "smsp__inst_executed.sum",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "hbm_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "microseconds": "gpu__time_duration.sum",
}
_SECONDS = 300
_INSTALLED = Path("/opt/nvidia/nsight-compute")


def all_counters(options: BenchOptions) -> list[Row]:
    """A row for each of COUNTED; `unavailable` says why it has none: the tool is missing, or the
    machine forbids it."""
    found, reason = _measured(options)
    rows: list[Row] = []
    for place, (kind, variant) in enumerate(COUNTED):
        own = found[place] if found else {"unavailable": reason}
        rows.append({"measure": "counters", "kernel": kind, "variant": variant, **own})
    return rows


def find_ncu(installed: Path = _INSTALLED) -> str | None:
    """On PATH, or the newest where Nsight Compute installs itself."""
    on_path = shutil.which("ncu")
    if on_path is not None:
        return on_path
    there = [path for path in installed.glob("*/ncu") if os.access(path, os.X_OK)]
    return str(max(there)) if there else None


def _measured(options: BenchOptions) -> tuple[list[dict[str, Any]] | None, str]:
    """The counters of each call, or the reason why there are none."""
    ncu = find_ncu()
    if ncu is None or options.device.type != "cuda":
        return None, "Nsight Compute (ncu) is not on this machine"
    command = [ncu, "--csv", "--page", "raw", "--profile-from-start", "off"]
    command += ["--target-processes", "all", "--clock-control", "none"]
    command += ["--metrics", ",".join(_METRICS.values())]
    command += [sys.executable, "-m", "grace.bench.gpu.counted_call"]
    command += ["--tiny"] if options.tiny else []
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        return None, f"ncu did not end within {_SECONDS} s"
    found = counters_of_csv(done.stdout)
    if len(found) == len(COUNTED):
        return found, ""
    lines = [line for line in done.stdout.splitlines() if "==ERROR==" in line]
    if lines:
        return None, f"ncu: {lines[0].partition('==ERROR==')[2].strip()[:200]}"
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return None, (
        f"ncu told of {len(found)} of {len(COUNTED)} calls, exit {done.returncode}: {last[:200]}"
    )


def counters_of_csv(text: str) -> list[dict[str, Any]]:
    """Of each marked call that launched kernels, those of its longest; none without a table."""
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        return []
    units, *kernels = csv.DictReader(io.StringIO("\n".join(lines[begin:])))
    calls: list[list[dict[str, str]]] = []
    for kernel in kernels:
        if MARK in kernel["Kernel Name"]:
            calls.append([])
        elif calls:
            calls[-1].append(kernel)
    return [_longest(units, call) for call in calls if call]


def _longest(units: dict[str, str], kernels: Sequence[dict[str, str]]) -> dict[str, Any]:
    time = _METRICS["microseconds"]
    longest = max(kernels, key=lambda row: _number(row[time]))
    scale = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}
    counters: dict[str, Any] = {"kernel_name": longest["Kernel Name"]}
    for name, metric in _METRICS.items():
        factor = scale.get(units[metric], 1.0) if metric == time else 1.0
        counters[name] = float(f"{_number(longest[metric]) * factor:.5g}")
    return counters


def _number(text: str) -> float:
    return float(text.replace(",", ""))
