"""The help of every command, on a terminal of 80 columns, and the shells' completion."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from grace.cli.main import app
from support.command import GRACE, plain_environment

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


@pytest.mark.subprocess
def test_a_shell_completes_commands_and_options_once_it_is_told_to(tmp_path: Path) -> None:
    """The shell's own function is called as the shell calls it when its user presses Tab."""
    environment = plain_environment(HOME=str(tmp_path), PATH=f"{GRACE.parent}:/usr/bin:/bin")
    script = """
grace --install-completion > /dev/null
source ~/.bash_completions/grace.sh
function_name=$(complete -p grace | sed 's/.*-F \\([^ ]*\\).*/\\1/')
for typed in "retr" "retrieve --max" "admin roll"; do
  COMP_WORDS=(grace $typed); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
  $function_name grace; echo "${COMPREPLY[@]}"
done
"""
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout.split(), done.stderr) == (["retrieve", "--max-ads", "rollback"], "")
