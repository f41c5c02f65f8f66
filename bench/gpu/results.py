"""Result files: {machine, commit, command, rows}, from one run, or from several of one commit."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from bench.gpu.machine import device_text
from bench.gpu.options import BenchOptions
from bench.result_file import commit
from configs.errors import InputError

__all__ = ["Row", "read_rows", "row_key", "write_rows"]

Row: TypeAlias = dict[str, Any]

_KEYS = (
    "measure",
    "rung",
    "precision",
    "kernel",
    "variant",
    "mode",
    "step",
    "sids",
    "beams",
    "rps",
)
"""What tells one row from another; all else in it was measured."""


def row_key(row: Mapping[str, Any]) -> str:
    measured = ("rps",) if row.get("measure") == "saturation" else ()
    return json.dumps([None if name in measured else row.get(name) for name in _KEYS])


def write_rows(options: BenchOptions, rows: Sequence[Row]) -> None:
    assert options.out is not None
    result = {
        "machine": device_text(options.device),
        "commit": options.commit or commit(),
        "command": options.command,
        "rows": list(rows),
    }
    if options.add and options.out.exists():
        result = _joined(options.out, result)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def read_rows(path: Path) -> list[Row]:
    rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return rows


def _joined(path: Path, new: dict[str, Any]) -> dict[str, Any]:
    old = json.loads(path.read_text(encoding="utf-8"))
    for fact in ("machine", "commit"):
        if old[fact] != new[fact]:
            raise InputError(
                f"{path}: was measured with {fact} {old[fact]!r}, this is {new[fact]!r}; numbers "
                "of one file belong together: measure all of it, without --add"
            )
    again = {row_key(row) for row in new["rows"]}
    kept = [row for row in old["rows"] if row_key(row) not in again]
    return {
        **new,
        "command": f"{old['command']} && {new['command']}",
        "rows": [*kept, *new["rows"]],
    }
