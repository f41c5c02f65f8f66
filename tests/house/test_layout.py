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
    layout.inits_below_tests,
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


@pytest.fixture
def tree(tmp_path: Path) -> Callable[[str, str], Path]:
    def write(name: str, text: str) -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return tmp_path

    return write


Tree = Callable[[str, str], Path]


@pytest.mark.parametrize(
    ("rule", "file", "text"),
    [
        (layout.wrong_arrows, "configs/a.py", "import grace.index"),
        (layout.wrong_arrows, "native/a.py", "from grace.index.trie import SidTrie"),
        (layout.wrong_arrows, "index/deep/a.py", "import grace.bench.load as load"),
        (layout.wrong_arrows, "index/a.py", "def f():\n    from grace.cli import main"),
        (layout.wrong_arrows, "index/a.py", "from grace import server"),
        (layout.wrong_arrows, "bench/a.py", "from support.oracle import eligible"),
        (layout.wrong_arrows, "bench/a.py", "from index.trie import SidTrie"),
        (layout.long_files, "tests/index/test_a.py", "x = 1\n" * 401),
        (layout.boundless_functions, "index/a.py", "def f():\n" + "    x = 1\n" * 61),
        (layout.inits_below_tests, "tests/index/__init__.py", ""),
        (layout.private_imports, "index/a.py", "from grace.configs.own import _hidden"),
    ],
)
def test_each_rule_finds_what_it_forbids(tree: Tree, rule: Rule, file: str, text: str) -> None:
    (fault,) = rule(tree(file, text))
    assert fault.startswith(f"{file}:")


@pytest.mark.parametrize("home", ["home/me", "Users/me", "root", "tmp", "work"])
def test_a_path_of_the_author_s_machine_is_found(tree: Tree, home: str) -> None:
    root = tree("a.md", f"see `/{home}/ads.parquet`")
    assert layout.machine_paths(root, [root / "a.md"])
    root = tree("a.md", f"see docs/{home}/x, ROOT/{home}/x and <out>/{home}/x")
    assert layout.machine_paths(root, [root / "a.md"]) == []


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
