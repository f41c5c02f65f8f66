"""Runs `grace` as its users do: as a separate process. Mark the tests `subprocess`."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

GRACE = Path(sys.executable).with_name("grace")
TESTS = Path(__file__).resolve().parents[1]


def run_grace(
    *arguments: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The finished process: `returncode`, `stdout`, `stderr`. Output is plain and 100 wide."""
    return run_command(GRACE, *arguments, cwd=cwd, env=env)


def run_python(
    code: str, *arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return run_command(sys.executable, "-c", code, *arguments, cwd=cwd, env=env)


def without_torch(commands: Sequence[Sequence[str | Path]]) -> list[str]:
    """Return the standard error of each `grace` command in a process that cannot import torch."""
    code = f"""
import json, sys
sys.modules["torch"] = None
from typer.testing import CliRunner
from grace.cli.main import app
for arguments in {[[*map(str, command)] for command in commands]}:
    done = CliRunner().invoke(app, arguments)
    print(json.dumps(done.stderr or repr(done.exception)))
"""
    return [json.loads(line) for line in run_python(code).stdout.splitlines()]


def run_command(
    *command: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=plain_environment(**(env or {})),
        capture_output=True,
        text=True,
        check=False,
    )


def plain_environment(**more: str) -> dict[str, str]:
    """This process's environment, for output that is plain and 100 wide."""
    return {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", **more}
