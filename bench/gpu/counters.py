"""Hardware counters of one kernel from Nsight Compute, or why there are none."""

import csv
import io
import shutil
import subprocess
import sys
from typing import Any

from bench.gpu.options import BenchOptions
from bench.gpu.results import Row

__all__ = ["counters_of_csv", "kernel_counters"]

_METRICS = {
    "instructions": "smsp__inst_executed.sum",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "hbm_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "microseconds": "gpu__time_duration.sum",
}
_SECONDS = 90


def kernel_counters(options: BenchOptions, kind: str, variant: str) -> Row:
    """`unavailable` says why there are none: the tool is missing, or the machine forbids it."""
    ncu = shutil.which("ncu")
    if ncu is None or options.device.type != "cuda":
        return {"unavailable": "Nsight Compute (ncu) is not on this machine"}
    command = [ncu, "--csv", "--page", "raw", "--profile-from-start", "off", "--target-processes"]
    command += ["all", "--metrics", ",".join(_METRICS.values()), sys.executable, "-m"]
    command += ["bench.gpu.counted_call", kind, variant, *(["--tiny"] if options.tiny else [])]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        return {"unavailable": f"ncu did not end within {_SECONDS} s"}
    found = counters_of_csv(done.stdout)
    if found is None:
        lines = [line for line in done.stdout.splitlines() if "==ERROR==" in line]
        reason = lines[0].partition("==ERROR==")[2].strip() if lines else f"exit {done.returncode}"
        return {"unavailable": f"ncu: {reason[:200]}"}
    return found


def counters_of_csv(text: str) -> dict[str, Any] | None:
    """The counters of the kernel that took longest; None if the text has no table."""
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        return None
    rows = list(csv.DictReader(io.StringIO("\n".join(lines[begin:]))))
    units, kernels = rows[0], rows[1:]
    if not kernels:
        return None
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
