"""CONTRIBUTING, the Makefile, CI and the hooks agree."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from support import layout


@pytest.fixture(scope="module")
def targets(repository: Path) -> list[str]:
    """The targets of the Makefile that say what they are for."""
    return re.findall(r"^([a-z-]+):.*## ", (repository / "Makefile").read_text(), re.MULTILINE)


def first_column(text: str, heading: str) -> list[str]:
    """The first cells of the table whose first heading this is."""
    rows = text.partition(f"\n| {heading} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [row.split("|")[1].strip() for row in rows]


@pytest.mark.subprocess
def test_plain_make_prints_every_target(repository: Path, targets: list[str]) -> None:
    # Without what a `make` that runs the tests adds to the environment.
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        ["make"], cwd=repository, env=outside, capture_output=True, text=True, check=True
    )
    assert [line.split()[1] for line in done.stdout.splitlines()] == targets
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (repository / "Makefile").read_text(), re.MULTILINE)
    assert phony.split() == targets
    assert all(len(line) <= 100 for line in done.stdout.splitlines())


def test_contributing_lists_targets_dependencies_and_packages(
    repository: Path, targets: list[str]
) -> None:
    contributing = (repository / "CONTRIBUTING.md").read_text()
    shown = first_column(contributing, "target")
    assert shown == [f"`make {target}`" for target in targets if target != "help"]
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["serve"]]
    names = [re.split(r"[<>=]", line)[0] for line in lines]
    assert first_column(contributing, "dependency") == sorted(names), "each has a reason"
    (listed,) = re.findall(r"only from those before it: (.*?)\. ", contributing, re.DOTALL)
    on_disk = {name for name in layout.packages_on_disk(repository) if "." not in name}
    assert re.findall(r"`(\w+)`", listed) == [name for name in layout.LAYERS if name in on_disk]


def test_files_that_a_document_names_exist(repository: Path) -> None:
    found = re.compile(r"[`(]((?:[\w.-]+/)+[\w.-]+\.(?:py|cpp|h|md|yaml|toml|json|png|svg))[`)]")
    missing = [
        f"{document.name}: {name}"
        for document in (*repository.glob("*.md"), *repository.glob("docs/*.md"))
        for name in found.findall(document.read_text())
        if name.partition("/")[0] in {file.name for file in repository.iterdir() if file.is_dir()}
        and not (repository / name).exists()
    ]
    assert missing == []


def test_ci_and_hooks_are_make_targets_and_nothing_of_their_own(
    repository: Path, targets: list[str]
) -> None:
    script = repository / ".ci" / "run"
    assert os.access(script, os.X_OK)
    commands = [line for line in script.read_text().splitlines() if line and line[0] != "#"]
    assert commands == [
        "set -euo pipefail",
        'cd "$(dirname "${BASH_SOURCE[0]}")/.."',
        "make check test",
    ]
    hooks = yaml.safe_load((repository / ".pre-commit-config.yaml").read_text())
    for hook in hooks["repos"][0]["hooks"]:
        make, target = hook["entry"].split()
        assert (make, target in targets) == ("make", True)
