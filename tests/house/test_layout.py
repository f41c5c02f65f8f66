"""The layout: which package imports which, and limits that keep the code readable."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

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


def test_each_seeded_fault_changes_one_place_and_names_its_tests(repository: Path) -> None:
    def is_stale(row: dict[str, Any]) -> bool:
        tests = (repository / test.partition("::")[0] for test in row["tests"])
        text = (repository / row["file"]).read_text(encoding="utf-8")
        return text.count(row["old"]) != 1 or not all(test.exists() for test in tests)

    tables = (repository / "tests" / "mutations").glob("*.yaml")
    rows = [row for table in tables for row in yaml.safe_load(table.read_text(encoding="utf-8"))]
    assert [row["name"] for row in rows if is_stale(row)] == []


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
