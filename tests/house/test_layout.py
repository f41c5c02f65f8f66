"""The layout: which package imports which, and the habits that keep the code readable."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support import layout
from support.command import run_python

RULES: list[Callable[[Path], list[str]]] = [
    layout.borders_without_face,
    layout.boundless_functions,
    layout.inits_below_tests,
    layout.local_imports,
    layout.long_files,
    layout.undocumented_packages,
    layout.unsorted_faces,
    layout.wrong_arrows,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_keeps(rule: Callable[[Path], list[str]], repository: Path) -> None:
    assert rule(repository) == []


def test_no_tracked_file_mentions_a_path_of_its_writers_machine(repository: Path) -> None:
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
    ("file", "line"),
    [
        ("configs/a.py", "import grace.index"),
        ("native/a.py", "from grace.index.trie import SidTrie"),
        ("index/deep/a.py", "import grace.bench.load as load"),
        ("index/a.py", "def f():\n    from grace.cli import main"),
        ("bench/a.py", "from support.oracle import eligible"),
    ],
)
def test_an_arrow_against_the_order_is_found(tree: Tree, file: str, line: str) -> None:
    (fault,) = layout.wrong_arrows(tree(file, line))
    assert fault.startswith(f"{file}:")


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("index/a.py", "from grace.native.loader import declare"),
        ("index/a.py", "from grace.index.trie import SidTrie"),
        ("cli/a.py", "import grace.proto, grace.bench"),
        ("tests/index/a.py", "import grace.cli"),
        ("index/a.py", "from .bench import trie"),
    ],
)
def test_an_arrow_along_the_order_passes(tree: Tree, file: str, line: str) -> None:
    assert layout.wrong_arrows(tree(file, line)) == []


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    import os",
        "class A:\n    async def f(self):\n        from os import path",
        "from importlib import import_module\nnumpy = import_module('numpy')",
        "numpy = __import__('numpy')",
    ],
)
def test_an_import_that_hides_in_a_function_is_found_outside_cli(tree: Tree, text: str) -> None:
    assert layout.local_imports(tree("index/a.py", text))
    assert layout.local_imports(tree("cli/a.py", text))[1:] == []


def test_only_the_operations_of_a_gpu_are_imported_when_it_is_asked_for(tree: Tree) -> None:
    lazy = "def f():\n    from grace.kernels.ops_cuda import CUDA_DECODER"
    assert layout.local_imports(tree("kernels/load.py", lazy)) == []
    assert layout.local_imports(tree("kernels/other.py", lazy))
    assert layout.local_imports(tree("kernels/load.py", lazy.replace("ops_cuda", "checks")))


def test_commands_may_import_inside_functions(tree: Tree) -> None:
    assert layout.local_imports(tree("cli/a.py", "def f():\n    import os")) == []


def test_a_file_over_400_lines_is_found(tree: Tree) -> None:
    assert layout.long_files(tree("index/a.py", "x = 1\n" * 400)) == []
    assert layout.long_files(tree("tests/index/test_a.py", "x = 1\n" * 401))


def test_a_function_over_60_lines_is_found(tree: Tree) -> None:
    assert layout.boundless_functions(tree("index/a.py", "def f():\n" + "    x = 1\n" * 60)) == []
    assert layout.boundless_functions(tree("index/a.py", "def f():\n" + "    x = 1\n" * 61))


def test_an_init_below_tests_is_found(tree: Tree) -> None:
    assert layout.inits_below_tests(tree("tests/index/__init__.py", ""))


@pytest.mark.parametrize(
    "text", ['__all__ = ["b", "a"]', '__all__: list[str] = ["a", "a"]', '__all__ = ["Aa", "B_B"]']
)
def test_an_unsorted_face_is_found(tree: Tree, text: str) -> None:
    assert layout.unsorted_faces(tree("index/a.py", text))
    assert layout.unsorted_faces(tree("index/a.py", '__all__ = ["B_B", "Aa", "a"]')) == []


def test_a_name_taken_across_a_border_must_be_offered(tree: Tree) -> None:
    tree("configs/errors.py", '__all__ = ["GraceError"]\nclass GraceError: ...\nclass Hidden: ...')
    tree("configs/own.py", "from grace.configs.errors import Hidden")
    root = tree(
        "index/a.py",
        "from grace.configs.errors import GraceError\nfrom grace.configs import errors",
    )
    assert layout.borders_without_face(root) == []
    (fault,) = layout.borders_without_face(
        tree("index/b.py", "from grace.configs.errors import Hidden")
    )
    assert fault == "index/b.py:1: grace.configs.errors offers no Hidden"


def test_a_package_that_does_not_say_what_it_is_for_is_found(tree: Tree) -> None:
    assert layout.undocumented_packages(tree("index/__init__.py", "x = 1"))


@pytest.mark.parametrize("home", ["home/me", "Users/me", "root", "tmp", "work"])
def test_a_path_of_the_writers_machine_is_found(tree: Tree, home: str) -> None:
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
