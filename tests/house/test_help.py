"""The help of every command, on a terminal of 80 columns."""

import re
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from grace.cli.main import app

GROUP = typer.main.get_group(app)


def commands() -> list[tuple[str, ...]]:
    """Every command, with the one that it belongs to."""
    below = {name: getattr(command, "commands", {}) for name, command in GROUP.commands.items()}
    return [(), *((name,) for name in below), *((a, b) for a, each in below.items() for b in each)]


def help_of(command: tuple[str, ...]) -> str:
    done = CliRunner(env={"COLUMNS": "80", "TERM": "xterm"}).invoke(app, [*command, "--help"])
    assert done.exit_code == 0
    return done.output


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_help_has_whole_names_and_named_values_in_80_columns(command: tuple[str, ...]) -> None:
    shown = help_of(command)
    if len(command) == 1:
        assert f"grace {command[0]}" in shown.partition("Example")[2]
    assert max(map(len, shown.splitlines())) <= 80
    assert re.search(r"<[a-z]|…", shown) is None
    assert "..." not in shown.partition("\nCommands:")[2]
    found: Any = GROUP
    for name in command:
        found = found.commands[name]
    listed = shown.partition("\nOptions:\n")[2].splitlines()
    heads = [line.split("  ")[1] for line in listed if line.startswith("  -")]
    options = [each for each in found.params if each.param_type_name == "option"]
    for option in options:
        (head,) = (head for head in heads if option.opts[0] in re.split(r"[ ,]+", head))
        names = ", ".join(sorted(option.opts, key=len))
        other = "".join(f" / {name}" for name in option.secondary_opts)
        value = re.fullmatch(rf"{names}{other}( \S+)?", head)
        assert value is not None, head
        assert (value[1] is None) == option.is_flag, head
