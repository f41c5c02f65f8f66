"""Result files, {machine, commit, command, rows}: written row by row while a table is measured."""

import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter
from typing import Any, Self, TypeAlias

from grace.bench.gpu.measure import device_text
from grace.bench.gpu.options import BenchOptions
from grace.bench.result_file import commit
from grace.configs.errors import InputError

__all__ = ["ResultFile", "Row", "read_rows", "write_table"]

Row: TypeAlias = dict[str, Any]

_KEYS = (
    "measure", "rung", "precision", "kernel", "variant", "mode", "step", "sids", "beams", "rps",
)  # fmt: skip
"""The fields that identify a row; all others were measured."""


def write_table(options: BenchOptions, rows: Iterable[Row]) -> list[Row]:
    """Print each row, and save it before the next is measured; standard error shows the time."""
    begin, done = perf_counter(), list[Row]()
    with nullcontext() if options.out is None else ResultFile(options, options.out) as file:
        for row in rows:
            done.append(row)
            if file is not None:
                file.add(row)
            print(json.dumps(row), flush=True)
            count = f"{len(done)} row{'s' if len(done) > 1 else ''}"
            print(f"{perf_counter() - begin:.1f} s: {count}", file=sys.stderr, flush=True)
    return done


def read_rows(path: Path) -> list[Row]:
    rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return rows


class ResultFile:
    """Written anew with every row, so that a run that is cut short leaves what it measured."""

    def __init__(self, options: BenchOptions, path: Path) -> None:
        """Raise, before anything is measured, if the file cannot be written or added to.

        The file keeps its content until the first row.
        """
        self._path = path
        self._unfinished = path.with_name(f"{path.name}.unfinished")
        self._result: dict[str, Any] = {
            "machine": device_text(options.device),
            "commit": options.commit or commit(),
            "command": options.command,
            "rows": [],
        }
        if path.is_dir():
            raise InputError(f"--out {path}: is a folder; name a file")
        if not path.parent.is_dir():
            raise InputError(f"--out {path}: its folder does not exist; make it first")
        if path.exists():
            if options.add:
                self._continue(json.loads(path.read_text(encoding="utf-8")))
            elif options.only:
                raise InputError(
                    f"--out {path} is already there and --only {options.only[0]} would leave "
                    "nothing else in it: give --add to keep its other rows, or remove it"
                )
        try:
            self._write()
        except OSError as error:
            raise InputError(f"--out {path}: cannot be written: {error.strerror}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._unfinished.unlink(missing_ok=True)

    def add(self, row: Row) -> None:
        """Add the row, or put it in place of the row with the same key."""
        rows = self._result["rows"]
        keys = [_key(each) for each in rows]
        if _key(row) in keys:
            rows[keys.index(_key(row))] = row
        else:
            rows.append(row)
        self._write()
        self._unfinished.replace(self._path)

    def _write(self) -> None:
        text = json.dumps(self._result, indent=1) + "\n"
        self._unfinished.write_text(text, encoding="utf-8")

    def _continue(self, old: dict[str, Any]) -> None:
        for fact in ("machine", "commit"):
            if old[fact] != self._result[fact]:
                raise InputError(
                    f"{self._path}: was measured with {fact} {old[fact]!r}, this is "
                    f"{self._result[fact]!r}; numbers of one file belong together: measure all of "
                    "it, without --add"
                )
        self._result["command"] = f"{old['command']} && {self._result['command']}"
        self._result["rows"] = old["rows"]


def _key(row: Mapping[str, Any]) -> str:
    measured = ("rps",) if row.get("measure") == "saturation" else ()
    return json.dumps([None if name in measured else row.get(name) for name in _KEYS])
