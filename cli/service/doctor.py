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

LIGHT = "not installed: `grace serve` and the commands that use a model need it"
REINSTALL = "run `make setup`, or `pip install grace-serving` again"


Status: TypeAlias = Literal["ok", "note", "fault"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One row. A fault breaks a command; a note says what is absent without an extra or a GPU."""

    name: str
    status: Status
    found: str
    remedy: str = ""


def doctor(
    as_json: AsJson = False,
) -> None:
    """Check this machine: torch, native library, GPU. Exit code 1 if a command cannot work.

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
    yield _torch()
    yield from _native()
    yield _gpu()


def _torch() -> Finding:
    try:
        found = version("torch")
    except PackageNotFoundError:
        return Finding("torch", "note", LIGHT, install_command("serve"))
    try:
        import torch
    except (ImportError, OSError) as error:
        return Finding("torch", "fault", f"{found} does not load: {error}", REINSTALL)
    has_cuda = "available" if torch.cuda.is_available() else "not available"
    return Finding("torch", "ok", f"{found}, CUDA {has_cuda}")


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

    try:
        command = ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except FileNotFoundError:
        return Finding("GPU", "note", "none found: everything runs on the CPU")
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("GPU", "note", f"nvidia-smi failed: {error}", "reinstall the driver")
    found = listed.stdout.split("\n")
    if not any(found):
        return Finding("GPU", "note", "none found: everything runs on the CPU")
    need = f"compute capability {'.'.join(map(str, LEAST_CAPABILITY))} is needed"
    return Finding("GPU", "ok", f"{'; '.join(filter(None, found))}; {need}")


def _print(findings: list[Finding]) -> None:
    for finding in findings:
        print(f"{finding.status:<6}{finding.name}: {finding.found}")
        if finding.remedy:
            print(f"      {finding.remedy}")
