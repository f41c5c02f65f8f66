import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

import typer
from rich.table import Table
from rich.text import Text

from grace.cli.options import AsJson
from grace.cli.reports import table_console
from grace.configs.errors import NativeError
from grace.configs.extras import install_command
from grace.configs.machine import available_cores

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


def doctor(as_json: AsJson = False) -> None:
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
    yield from _packages()
    yield from _torch()
    yield from _native()


def _packages() -> Iterator[Finding]:
    """Report the version of each package that the project or its extra `serve` needs."""
    missing: dict[str, tuple[Status, str, str]] = {
        "": ("fault", "not installed", REINSTALL),
        'extra == "serve"': ("note", LIGHT, install_command("serve")),
    }
    try:
        needed = requires("grace-serving") or []
    except PackageNotFoundError:  # sources on PYTHONPATH
        needed = []
    for line in needed:
        name, of = re.split(r"[^\w-]", line)[0], line.partition("; ")[2]
        if of in missing:
            try:
                yield Finding(name, "ok", version(name))
            except PackageNotFoundError:
                yield Finding(name, *missing[of])


def _torch() -> Iterator[Finding]:
    """Report whether torch loads, the GPUs that it finds, and how models run there."""
    from grace.native.build import CUDA, FP8_CAPABILITY, LEAST_CAPABILITY, code_for
    from grace.native.loader import library_path

    if find_spec("torch") is None:
        return
    try:
        import torch
    except (ImportError, OSError) as error:
        yield Finding("torch loads", "fault", f"no: {error}", REINSTALL)
        return
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not gpus:
        yield Finding("GPU", "note", "torch finds none: everything runs on the CPU")
    for number in range(gpus):
        capability = torch.cuda.get_device_capability(number)
        shown, needed = (".".join(map(str, each)) for each in (capability, LEAST_CAPABILITY))
        found = f"{torch.cuda.get_device_name(number)}, compute capability {shown}"
        if capability >= LEAST_CAPABILITY:
            code = code_for(capability, library_path(CUDA)) or "portable code"
            fp8 = ", fp8" if capability == FP8_CAPABILITY else ""
            found += f"; runs {code}; precisions fp32, bf16{fp8}"
            yield Finding(f"cuda:{number}", "ok", found)
        else:
            remedy = f"compute capability {needed} is needed: use another GPU, or device cpu"
            yield Finding(f"cuda:{number}", "note", found, remedy)


def _native() -> Iterator[Finding]:
    from grace.native.build import CPU, CUDA, find_compiler, find_nvcc
    from grace.native.loader import library_path, load_cuda_library, load_library

    yield _library("native library", library_path(CPU), load_library, "fault")
    yield _tool("C++ compiler", find_compiler, "none: needed to build from sources")
    if (kernels := library_path(CUDA)).is_file():
        yield _library("CUDA kernels", kernels, load_cuda_library, "note")
    else:
        remedy = f"run `{CUDA.command}` with nvcc"
        yield Finding("CUDA kernels", "note", "not built: a GPU needs them", remedy)
    yield _tool("nvcc", find_nvcc, "none: needed to build the CUDA kernels")


def _library(name: str, path: Path, load: Callable[[], object], status: Status) -> Finding:
    try:
        load()
    except NativeError as error:
        found, _, remedy = str(error).rpartition(": ")
        return Finding(name, status, found, remedy)
    except ImportError as error:
        return Finding(name, status, f"cannot be opened: {error}", REINSTALL)
    return Finding(name, "ok", f"current, {path}")


def _tool(name: str, find: Callable[[], Sequence[str]], without: str) -> Finding:
    try:
        return Finding(name, "ok", shutil.which(find()[0]) or "")
    except NativeError as error:
        return Finding(name, "note", without, str(error))


def _print(findings: list[Finding]) -> None:
    table = Table("check", "", "found", box=None, pad_edge=False)
    styles = {"ok": "green", "note": "yellow", "fault": "bold red"}
    for finding in findings:
        remedy = f"\n{finding.remedy}" if finding.remedy else ""
        status = Text(finding.status, style=styles[finding.status])
        table.add_row(finding.name, status, Text(finding.found + remedy, overflow="fold"))
    table_console().print(table)
