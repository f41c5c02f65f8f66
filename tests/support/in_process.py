"""Runs `grace` in this process, which saves loading torch again."""

from pathlib import Path

from typer.testing import CliRunner, Result

from grace.cli.main import app


def invoke_grace(*arguments: str | Path) -> Result:
    """Run a command. The result has `exit_code`, `stdout` and `stderr`."""
    environment = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner(env=environment).invoke(app, list(map(str, arguments)))
