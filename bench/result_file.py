"""The result files that hold every number of the documents: {machine, commit, command, rows}."""

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

from grace.configs.errors import InputError
from grace.configs.machine import available_cores

Row: TypeAlias = dict[str, Any]

_ROOT = Path(__file__).resolve().parent.parent
_KEYS = (
    "measure", "rung", "precision", "kernel", "variant", "mode", "step", "sids", "values", "beams",
    "rps", "table", "catalogue", "audience", "bucket", "from_pct", "kind", "position", "snapshot",
    "batch", "rows", "kept",
)  # fmt: skip
"""The fields that identify a row of `grace bench`; all others were measured."""


def facts_of(program: str, arguments: Sequence[str], device: str | None = None) -> dict[str, str]:
    """Return the machine, the commit and the command that measure the rows."""
    command = shlex.join([*program.split(), *arguments])
    return {"machine": device or machine(), "commit": commit(), "command": command}


def record(
    rows: Iterable[Mapping[str, Any]],
    out: Path | None,
    facts: Mapping[str, str],
    *,
    add: bool = False,
    only: Sequence[str] = (),
    print_rows: bool = False,
) -> Sequence[Row]:
    """Save each row before the next is measured, and return all; standard error shows the time.

    With `print_rows`, standard output gets each row as a line of JSON. With `add`, the file keeps
    the rows that this run does not measure again. Without it, a run of `only` some parts may not
    replace an existing file. The check that the file can be written comes before any measurement,
    and its content stays until the first row.
    """
    result: dict[str, Any] = {**facts, "rows": []}
    if out is not None:
        require_place(out)
        if out.exists() and add:
            result = _continued(read_result(out), facts, out)
        elif out.exists() and only:
            raise InputError(
                f"--out {out} is already there and --only {only[0]} would leave nothing else in "
                "it: give --add to keep its other rows, or remove it"
            )
        try:
            _unfinished(out).touch()
        except OSError as error:
            raise InputError(f"--out {out}: cannot be written: {error.strerror}") from None
    begin = perf_counter()
    try:
        for count, row in enumerate(rows, 1):
            _put(result["rows"], row, again=add)
            if out is not None:  # an interrupted run keeps its finished rows
                _unfinished(out).write_text(_text(result), encoding="utf-8")
                _unfinished(out).replace(out)
            if print_rows:
                print(json.dumps(row), flush=True)
            many = "s" if count > 1 else ""
            print(f"{perf_counter() - begin:.1f} s: {count} row{many}", file=sys.stderr, flush=True)
    finally:
        if out is not None:
            _unfinished(out).unlink(missing_ok=True)
    rows_of_file: Sequence[Row] = result["rows"]
    return rows_of_file


def write_result(
    path: Path, program: str, arguments: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {**facts_of(program, arguments), "rows": list(rows)}
    path.write_text(_text(result), encoding="utf-8")


def read_result(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"{path}: not measured yet: run `make bench`")
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def rows_of(rows: Sequence[Row], *measures: str) -> list[Row]:
    return [row for row in rows if row["measure"] in measures]


def require_place(out: Path) -> None:
    """Refuse a place that no command can write, before anything is measured."""
    if out.is_dir():
        raise InputError(f"--out {out}: is a folder; name a file")
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: its folder does not exist; make it first")


def _unfinished(out: Path) -> Path:
    return out.with_name(f"{out.name}.unfinished")


def _continued(old: dict[str, Any], facts: Mapping[str, str], out: Path) -> dict[str, Any]:
    for fact in ("machine", "commit"):
        if old[fact] != facts[fact]:
            raise InputError(
                f"{out}: was measured with {fact} {old[fact]!r}, this is {facts[fact]!r}; numbers "
                "of one file belong together: measure all of it, without --add"
            )
    return {**old, "command": f"{old['command']} && {facts['command']}"}


def _put(rows: list[Mapping[str, Any]], row: Mapping[str, Any], again: bool) -> None:
    """Add the row, or put it in place of the one that it measures again."""
    keys = [_key(each) for each in rows]
    if again and _key(row) in keys:
        rows[keys.index(_key(row))] = row
    else:
        rows.append(row)


def _key(row: Mapping[str, Any]) -> list[Any]:
    measured = ("rps",) if row.get("measure") in ("alone", "saturation") else ()
    return [None if name in measured else row.get(name) for name in _KEYS]


def _text(result: Mapping[str, Any]) -> str:
    return json.dumps(result, indent=1) + "\n"


def machine() -> str:
    """Describe this machine, such as "2 cores of AMD EPYC, 23 GiB, Linux 6.1.0 x86_64"."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return (
        f"{available_cores()} cores of {_processor()}, {memory:.0f} GiB, {platform.system()} "
        f"{platform.release()} {platform.machine()}"
    )


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "an unnamed processor"


def commit(root: Path = _ROOT) -> str:
    """Return a checkout's current commit, marked as dirty if files but results differ from it."""
    if shutil.which("git") is None:
        return "none"
    ceiling = {**os.environ, "GIT_CEILING_DIRECTORIES": str(root.resolve().parent)}
    described, changed = (
        subprocess.run(
            ["git", *words], cwd=root, env=ceiling, capture_output=True, text=True, check=False
        )
        for words in (
            ("describe", "--always", "--abbrev=12", "--exclude=*"),
            ("diff", "--quiet", "HEAD", "--", ".", ":!bench/results"),
        )
    )
    return described.stdout.strip() + "-dirty" * (changed.returncode == 1) or "none"
