"""`grace doctor`: check what this machine has, and report what is broken."""

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

import typer

from grace.cli.options import AsJson
from grace.configs.errors import NativeError
from grace.configs.machine import available_cores

NEEDED = (
    *("grpcio", "grpcio-health-checking", "grpcio-reflection", "numpy", "prometheus-client"),
    *("protobuf", "pyarrow", "pyyaml", "rich", "safetensors", "typer", "uvloop", "xxhash"),
)
REINSTALL = "run `make setup`, or `pip install grace-serving` again"


@dataclass(frozen=True, slots=True)
class Finding:
    """One row. A fault breaks a command of this version; a note does not."""

    name: str
    status: Literal["ok", "note", "fault"]
    found: str
    remedy: str = ""


def doctor(
    as_json: AsJson = False,
) -> None:
    """Check this machine: packages, native library, GPU. Exit code 1 if a command cannot work.

    Example: `grace doctor --json`
    """
    findings = list(examine())
    broken = any(finding.status == "fault" for finding in findings)
    if as_json:
        rows = [asdict(finding) for finding in findings]
        print(json.dumps({"ok": not broken, "findings": rows}, indent=2))
    else:
        _print(findings)
    raise typer.Exit(1 if broken else 0)


def examine() -> Iterator[Finding]:
    yield Finding("Python", "ok", f"{platform.python_version()} on {platform.platform()}")
    yield Finding("cores", "ok", str(available_cores()))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield Finding("memory", "ok", f"{memory / 2**30:.1f} GiB")
    yield from map(_package, NEEDED)
    yield _plots()
    yield _torch()
    yield _native_library()
    yield _compiler()
    yield _cuda_library()
    yield _nvcc()
    yield _gpu()


def _package(name: str) -> Finding:
    try:
        return Finding(name, "ok", version(name))
    except PackageNotFoundError:
        return Finding(name, "fault", "not installed", REINSTALL)


def _plots() -> Finding:
    try:
        return Finding("matplotlib", "ok", version("matplotlib"))
    except PackageNotFoundError:
        remedy = "pip install 'grace-serving[plots]'"
        return Finding("matplotlib", "note", "not installed: `grace train` needs --no-plot", remedy)


def _torch() -> Finding:
    try:
        installed = version("torch")
    except PackageNotFoundError:
        return Finding("torch", "fault", "not installed", REINSTALL)
    try:
        import torch
    except (ImportError, OSError) as error:
        return Finding("torch", "fault", f"{installed}, does not load: {error}", REINSTALL)
    has_cuda = "available" if torch.cuda.is_available() else "not available"
    return Finding("torch", "ok", f"{installed}, CUDA {has_cuda}")


def _native_library() -> Finding:
    from grace.native.build import read_record

    try:
        from grace.native.loader import library_path, load_library

        load_library()
    except NativeError as error:
        found, _, remedy = str(error).rpartition(": ")
        return Finding("native library", "fault", found, remedy)
    except ImportError as error:
        return Finding("native library", "fault", f"cannot be opened: {error}", REINSTALL)
    path = library_path()
    record = read_record(path.parent)
    made = f" ({record.compiler}; {' '.join(record.flags)})" if record else ""
    return Finding("native library", "ok", f"current, {path}{made}")


def _compiler() -> Finding:
    from grace.native.build import find_compiler

    try:
        return Finding("C++ compiler", "ok", shutil.which(find_compiler()[0]) or "")
    except NativeError as error:
        return Finding("C++ compiler", "note", "none: needed to build from sources", str(error))


def _cuda_library() -> Finding:
    from grace.native.build import CUDA, read_record
    from grace.native.loader import library_path, load_cuda_library

    path = library_path(CUDA)
    if not path.is_file():
        remedy = f"run `{CUDA.command}` with nvcc"
        return Finding("CUDA kernels", "note", "not built: a GPU needs them", remedy)
    try:
        load_cuda_library()
    except NativeError as error:
        found, _, remedy = str(error).rpartition(": ")
        return Finding("CUDA kernels", "note", found, remedy)
    record = read_record(path.parent, CUDA)
    made = f" ({record.compiler}; {' '.join(record.flags)})" if record else ""
    return Finding("CUDA kernels", "ok", f"current, {path}{made}")


def _nvcc() -> Finding:
    from grace.native.nvcc import find_nvcc

    try:
        return Finding("nvcc", "ok", find_nvcc()[0])
    except NativeError as error:
        return Finding("nvcc", "note", "none: needed to build the CUDA kernels", str(error))


def _gpu() -> Finding:
    from grace.native.nvcc import LEAST_CAPABILITY

    need = f"{LEAST_CAPABILITY[0]}.{LEAST_CAPABILITY[1]}"
    try:
        command = ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except FileNotFoundError:
        return Finding("GPU", "note", "none found: everything runs on the CPU")
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("GPU", "note", f"nvidia-smi failed: {error}", "reinstall the driver")
    found, older = [], []
    for row in listed.stdout.splitlines():
        name, _, capability = map(str.strip, row.rpartition(","))
        found.append(f"{name}, compute capability {capability} (needed: {need})")
        if not _reaches(capability, LEAST_CAPABILITY):
            older.append(name)
    if not found:
        return Finding("GPU", "note", "none found: everything runs on the CPU")
    remedy = f"use another GPU than {', '.join(older)}, or device cpu" if older else ""
    return Finding("GPU", "note" if older else "ok", "; ".join(found), remedy)


def _reaches(capability: str, least: tuple[int, int]) -> bool:
    """Compare a capability such as 9.0 with the least; any other text is below it."""
    major, _, minor = capability.partition(".")
    return major.isdigit() and minor.isdigit() and (int(major), int(minor)) >= least


def _print(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("check", "", "found", box=None, pad_edge=False)
    styles = {"ok": "green", "note": "yellow", "fault": "bold red"}
    for finding in findings:
        remedy = f"\n{finding.remedy}" if finding.remedy else ""
        status = Text(finding.status, style=styles[finding.status])
        table.add_row(finding.name, status, Text(finding.found + remedy, overflow="fold"))
    Console().print(table)
