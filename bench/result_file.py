"""The result files that hold every number of the documents: {machine, commit, command, rows}."""

import json
import os
import platform
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grace.configs.errors import InputError
from grace.configs.machine import available_cores

__all__ = ["commit", "machine", "read_result", "record", "write_result"]

_ROOT = Path(__file__).resolve().parent.parent


def record(
    program: str, arguments: Sequence[str], rows: Iterable[Mapping[str, Any]], out: Path | None
) -> None:
    """Print each row when it is measured; write all of them to `out`, if there is one."""
    measured = []
    for row in rows:
        print(json.dumps(row), flush=True)
        measured.append(row)
    if out is not None:
        write_result(out, program, arguments, measured)


def write_result(
    path: Path, program: str, arguments: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> None:
    result = {
        "machine": machine(),
        "commit": commit(),
        "command": shlex.join([*program.split(), *arguments]),
        "rows": list(rows),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def read_result(path: Path) -> Mapping[str, Any]:
    """Read what `write_result` wrote."""
    if not path.is_file():
        raise InputError(f"{path}: not measured yet: run `make bench`")
    result: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def machine() -> str:
    """Describe this machine, such as "2 cores of AMD EPYC, 23 GiB, Linux x86_64"."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return (
        f"{available_cores()} cores of {_processor()}, {memory:.0f} GiB, {platform.system()} "
        f"{platform.machine()}"
    )


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "an unnamed processor"


def commit() -> str:
    """Return the current commit, marked as dirty if files on disk differ from it."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or "none"
