"""`grace doctor`: check what this machine has, and report what is broken."""

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Literal, TypeAlias

import typer

from grace.cli.options import AsJson
from grace.configs.errors import NativeError
from grace.configs.extras import install_command
from grace.configs.machine import available_cores

if TYPE_CHECKING:
    from grace.native.build import Target

NEEDED = (
    *("grpcio", "grpcio-health-checking", "grpcio-reflection", "numpy", "prometheus-client"),
    *("protobuf", "pyarrow", "pyyaml", "rich", "safetensors", "typer", "xxhash"),
)
LIGHT = "not installed: `grace serve` and the commands that use a model need it"
REINSTALL = "run `make setup`, or `pip install grace-serving` again"


Status: TypeAlias = Literal["ok", "note", "fault"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One row. A fault breaks a command; a note says what lacks without an extra or a GPU."""

    name: str
    status: Status
    found: str
    remedy: str = ""


def doctor(
    as_json: AsJson = False,
) -> None:
    """Check this machine: packages, native library, GPU. Exit code 1 if a command cannot work.

    Example: `grace doctor`
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
    yield from (_package(name, "fault", "not installed", REINSTALL) for name in NEEDED)
    yield _package("uvloop", "note", LIGHT, install_command("serve"))
    yield _torch()
    yield from _native()
    yield _gpu()


def _package(name: str, status: Status, without: str, remedy: str) -> Finding:
    """Report the version of a package, or if it is missing this status, text and remedy."""
    try:
        return Finding(name, "ok", version(name))
    except PackageNotFoundError:
        return Finding(name, status, without, remedy)


def _torch() -> Finding:
    package = _package("torch", "note", LIGHT, install_command("serve"))
    if package.status == "note":
        return package
    try:
        import torch
    except (ImportError, OSError) as error:
        found = f"{package.found} does not load: {error}"
        return Finding("torch", "fault", found, REINSTALL)
    has_cuda = "available" if torch.cuda.is_available() else "not available"
    return Finding("torch", "ok", f"{package.found}, CUDA {has_cuda}")


def _native() -> Iterator[Finding]:
    from grace.native.build import CPU, CUDA, find_compiler, find_nvcc
    from grace.native.loader import library_path, load_cuda_library, load_library

    yield _library("native library", CPU, load_library, "fault")
    yield _tool("C++ compiler", find_compiler, "none: needed to build from sources")
    if library_path(CUDA).is_file():
        yield _library("CUDA kernels", CUDA, load_cuda_library, "note")
    else:
        remedy = f"run `{CUDA.command}` with nvcc"
        yield Finding("CUDA kernels", "note", "not built: a GPU needs them", remedy)
    yield _tool("nvcc", find_nvcc, "none: needed to build the CUDA kernels")


def _library(name: str, target: "Target", load: Callable[[], object], status: Status) -> Finding:
    from grace.native.build import read_record
    from grace.native.loader import library_path

    try:
        load()
    except NativeError as error:
        found, _, remedy = str(error).rpartition(": ")
        return Finding(name, status, found, remedy)
    except ImportError as error:
        return Finding(name, status, f"cannot be opened: {error}", REINSTALL)
    path = library_path(target)
    _, _, made = read_record(path.parent, target).partition("; ")
    return Finding(name, "ok", f"current, {path}" + (f" ({made})" if made else ""))


def _tool(name: str, find: Callable[[], Sequence[str]], without: str) -> Finding:
    try:
        return Finding(name, "ok", shutil.which(find()[0]) or "")
    except NativeError as error:
        return Finding(name, "note", without, str(error))


def _gpu() -> Finding:
    from grace.native.build import LEAST_CAPABILITY

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
    from rich.table import Table
    from rich.text import Text

    from grace.cli.tables import table_console

    table = Table("check", "", "found", box=None, pad_edge=False)
    styles = {"ok": "green", "note": "yellow", "fault": "bold red"}
    for finding in findings:
        remedy = f"\n{finding.remedy}" if finding.remedy else ""
        status = Text(finding.status, style=styles[finding.status])
        table.add_row(finding.name, status, Text(finding.found + remedy, overflow="fold"))
    table_console().print(table)
