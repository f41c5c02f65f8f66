"""Declared options: a field or a parameter becomes an option, and its text the field's value."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from grace.cli.declared import as_options
from grace.cli.main import report_errors
from grace.configs.options import Argument, Option


@dataclass(frozen=True)
class Chosen:
    folder: Annotated[Path, Argument("Where.")]
    sizes: Annotated[tuple[int, ...], Option("Sizes.", commas="8,8", least=1)] = (3, 5)
    offsets: Annotated[tuple[int, ...] | None, Option("Offsets.", commas="1,9")] = None
    names: Annotated[tuple[str, ...], Option("Names.", "NAME", name="--called")] = ()
    kinds: Annotated[tuple[Literal["a", "b"], ...], "Kinds."] = ()
    force: Annotated[bool, "Replace."] = False
    share: Annotated[float, Option("A share.", least=0, most=1)] = 0.5


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("here", {}),
        ("here --sizes 7 --offsets 1,9", {"sizes": (7,), "offsets": (1, 9)}),
        ("here --called a --called b --called a", {"names": ("a", "b", "a")}),
        ("here --kinds b --kinds a", {"kinds": ("b", "a")}),
        ("here --force --share 1", {"force": True, "share": 1.0}),
        ("here --times 7", {"times": 7}),
        ("--force", "Missing argument 'FOLDER'"),
        ("here --sizes 7,many", "expected numbers of 1 or more such as 8,8, got '7,many'"),
        ("here --sizes 7,0", "expected numbers of 1 or more such as 8,8, got '7,0'"),
        ("here --offsets x", "expected numbers such as 1,9, got 'x'"),
        ("here --kinds c", "--kinds c: choose from a, b"),
        ("here --share 1.5", "Invalid value for '--share'"),
        ("here --no-force", "No such option: --no-force"),
    ],
)
def test_a_line_fills_what_is_declared(line: str, changed: dict[str, Any] | str) -> None:
    given: list[Any] = []

    def command(chosen: Chosen, times: Annotated[int, "Times."] = 2) -> None:
        given.append((chosen, times))

    app = typer.Typer(rich_markup_mode=None)
    app.command()(report_errors(as_options(command)))
    done = CliRunner().invoke(app, line.split())
    if isinstance(changed, str):
        assert (done.exit_code, changed in done.stderr) == (2, True), done.stderr
        return
    times = changed.pop("times", 2)
    assert given == [(Chosen(**{"folder": Path("here"), **changed}), times)]
