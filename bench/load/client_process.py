"""A load from processes of its own, so that nothing else that runs here makes its calls late."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from grace.bench.load.client import Load, OpenLoop
from grace.bench.load.result import read_result
from grace.configs.errors import InputError

__all__ = ["run_in_a_process"]


def run_in_a_process(
    address: str,
    data: Path,
    load: Load,
    out: Path,
    connections: int = 4,
    timeout_ms: float | None = None,
    processes: int = 1,
) -> dict[str, Any]:
    """The result, also in the file `out`; it says itself if it is not valid.

    `connections` of each of the `processes` that make the load together.
    """
    out.unlink(missing_ok=True)
    command = [sys.executable, "-m", "grace.bench.load", "--address", address, "--data", str(data)]
    command += ["--seconds", str(load.seconds), "--connections", str(connections)]
    command += ["--processes", str(processes)]
    if isinstance(load, OpenLoop):
        command += ["--rate", str(load.rate), "--seed", str(load.seed)]
    else:
        command += ["--in-flight", str(load.in_flight)]
    if timeout_ms is not None:
        command += ["--timeout-ms", str(timeout_ms)]
    subprocess.run([*command, "--out", str(out)], check=False)
    if not out.exists():
        raise InputError(f"{address}: the load could not be made; its client says why above")
    return read_result(out)
