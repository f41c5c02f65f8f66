"""The distribution: its links, its dependencies, its command."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import distributions, packages_distributions
from pathlib import Path
from typing import Any

import pytest

from support import layout
from support.command import run_python

OPTIONAL_EXTRAS = ("bench", "gpu", "plots", "ray", "serve")
"""Extras whose packages few modules import; a command that needs them names the extra."""


@pytest.fixture(scope="module")
def pyproject(repository: Path) -> dict[str, Any]:
    return tomllib.loads((repository / "pyproject.toml").read_text())


def third_party(sources: Iterable[Path]) -> dict[str, set[str]]:
    """Return the modules that these files import, with the distributions that may have them."""
    modules: set[str] = set()
    for file in sources:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                modules.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module)
    tops = {module.partition(".")[0] for module in modules}
    owners = packages_distributions()
    return {
        top: {owner.lower().replace("_", "-") for owner in owners.get(top, [top])}
        for top in tops - {*sys.stdlib_module_names, "grace", "support"}
    }


def declared(pyproject: dict[str, Any], *extras: str) -> set[str]:
    """Return the distributions of the project and of these extras."""
    project = pyproject["project"]
    lines = [
        *project["dependencies"],
        *(line for name in extras for line in project["optional-dependencies"][name]),
    ]
    names = {re.split("[<>=]", line)[0].lower() for line in lines}
    return names - {f"{project['name']}[serve]"}


def test_each_top_level_package_has_its_link_in_grace(repository: Path) -> None:
    files = (repository / "src" / "grace").iterdir()
    links = {file.name: file.readlink() for file in files if file.is_symlink()}
    assert links == {name: Path("../..") / name for name in layout.LAYERS}


def test_the_editable_install_puts_no_import_hook_between_reader_and_file(repository: Path) -> None:
    ours = [found for found in distributions() if found.name == "grace-serving"]
    files = [file.name for found in ours for file in found.files or ()]
    assert not [name for name in files if name.startswith("__editable__") and name.endswith(".py")]
    assert Path(sys.modules["support"].__path__[0]).is_relative_to(repository)


def test_the_declared_dependencies_are_the_imported_ones(
    repository: Path, pyproject: dict[str, Any]
) -> None:
    packages = [repository / name.replace(".", "/") for name in layout.packages_on_disk(repository)]
    imported = third_party(file for package in packages for file in package.glob("*.py"))
    ours = declared(pyproject, *OPTIONAL_EXTRAS)
    assert {top for top, owners in imported.items() if not owners & ours} == set()
    assert ours <= set().union(*imported.values())
    of_tests = third_party((repository / "tests").rglob("*.py"))
    known = ours | declared(pyproject, "dev")
    assert {top for top, owners in of_tests.items() if not owners & known} == set()
    assert "torch>=2.11,<2.14" in pyproject["project"]["optional-dependencies"]["serve"]
    assert pyproject["project"]["scripts"] == {"grace": "grace.cli.main:run"}
    assert pyproject["project"]["requires-python"] == ">=3.11"


@pytest.mark.subprocess
def test_windows_is_refused_in_one_line(repository: Path) -> None:
    code = """
import runpy, sys, setuptools.command.bdist_wheel, setuptools.command.build_py
sys.platform = "win32"
runpy.run_path("setup.py")
"""
    done = run_python(code, cwd=repository)
    refused = "error: GRACE does not run on Windows; install it in WSL 2 (Linux)\n"
    assert (done.returncode, done.stderr) == (1, refused)


def test_the_stubs_load_under_the_oldest_declared_grpcio_and_protobuf(repository: Path) -> None:
    project = (repository / "pyproject.toml").read_text()

    def oldest(name: str) -> tuple[int, ...]:
        return version(re.findall(rf'"{name}>=([\d.]+)[",]', project)[0])

    grpc_stubs = (repository / "proto" / "retrieval_pb2_grpc.py").read_text()
    (grpc_made,) = re.findall(r"GRPC_GENERATED_VERSION = '([\d.]+)'", grpc_stubs)
    stubs = (repository / "proto" / "retrieval_pb2.py").read_text()
    (protobuf_made,) = re.findall(r"# Protobuf Python Version: ([\d.]+)\n", stubs)
    assert version(grpc_made) <= oldest("grpcio")
    assert version(protobuf_made)[:2] <= oldest("protobuf")


def version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))
