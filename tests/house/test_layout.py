"""The layout: which package imports which, and limits that keep the code readable."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support import layout
from support.command import run_python
from support.lines import PARTS, lines_of_parts

Rule = Callable[[Path], list[str]]
RULES: list[Rule] = [
    layout.boundless_functions,
    layout.circles,
    layout.long_files,
    layout.private_imports,
    layout.wrong_arrows,
]


def test_the_code_keeps_the_rules(repository: Path) -> None:
    assert [fault for rule in RULES for fault in rule(repository)] == []


@pytest.mark.parametrize("part", PARTS)
def test_the_code_keeps_its_budgets_of_lines(repository: Path, part: str) -> None:
    assert 0 < lines_of_parts(repository)[part] <= PARTS[part][1]


def test_no_tracked_file_mentions_a_path_of_its_author_s_machine(repository: Path) -> None:
    assert layout.machine_paths(repository, layout.tracked_files(repository)) == []


@pytest.mark.subprocess
def test_nothing_below_the_models_loads_torch_or_grpc() -> None:
    code = """
import pkgutil, sys
from importlib import import_module
for name in ("grace.configs", "grace.native", "grace.index"):
    for module in pkgutil.walk_packages(import_module(name).__path__, f"{name}."):
        import_module(module.name)
print(sorted({"torch", "grpc"} & set(sys.modules)))
"""
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("[]\n", "")
