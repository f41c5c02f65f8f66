"""Runs `grace` in this process, which saves loading torch again."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from grace.cli.main import app


def invoke_grace(*arguments: str | Path) -> Result:
    """Run a command. The result has `exit_code`, `stdout` and `stderr`."""
    environment = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner(env=environment).invoke(app, list(map(str, arguments)))


def printed(*arguments: str | Path) -> str:
    """Return the output of a command that succeeds."""
    done = invoke_grace(*arguments)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def reported(*arguments: str | Path) -> dict[str, Any]:
    """Return the report that a command prints with `--json`."""
    done = invoke_grace(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return dict(json.loads(done.stdout))


def complaint(*arguments: str | Path, code: int = 2) -> str:
    """Return the one line in which a command says why it failed."""
    done = invoke_grace(*arguments)
    assert (done.exit_code, done.stdout) == (code, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")
