"""Rules of the layout that no linter has. Each returns its findings as `file:line: fault`."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

LAYERS = (
    *("proto", "configs", "native", "index", "kernels", "model", "server", "client"),
    *("catalogues", "bench", "cli"),
)
"""A package imports only from those before it."""

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

_HOMES = ("work", "root", "home", "Users", "tmp", "mnt")
_MACHINE_PATH = re.compile(rb"(?<![\w.>}$)/-])/(?:%s)/" % "|".join(_HOMES).encode())


def wrong_arrows(root: Path) -> list[str]:
    faults = []
    for file, node in _product_imports(root):
        package = file.relative_to(root).parts[0]
        for module in _imported(node):
            target = module.removeprefix("grace.").partition(".")[0]
            if not module.startswith("grace.") and target in LAYERS:
                faults.append(_at(root, file, node, f"import grace.{target}, not {target}"))
            if target in LAYERS and LAYERS.index(target) > LAYERS.index(package):
                faults.append(_at(root, file, node, f"{package} imports {target}"))
            if target in ("tests", "support"):
                faults.append(_at(root, file, node, f"{package} imports test code"))
    return faults


def circles(root: Path) -> list[str]:
    """Find modules that depend on a module that depends on them, wherever the import stands."""
    below: dict[str, set[str]] = {}
    for file, node in _product_imports(root):
        name = ".".join(("grace", *file.relative_to(root).with_suffix("").parts))
        below.setdefault(name.removesuffix(".__init__"), set()).update(_imported(node))
    order = TopologicalSorter(below)
    try:
        order.prepare()
    except CycleError as error:
        return [f"a circle: {' <- '.join(error.args[1])}"]
    return []


def long_files(root: Path) -> list[str]:
    """Find files that are too long; generated stubs may be."""
    return [
        f"{file.relative_to(root)}:{lines}: longer than {MAX_FILE_LINES} lines"
        for file in _python_files(root)
        if (lines := len(file.read_text().splitlines())) > MAX_FILE_LINES
        and not file.stem.endswith(("_pb2", "_pb2_grpc"))
    ]


def boundless_functions(root: Path) -> list[str]:
    """Find bodies too long for a screen. A long signature may list a command's options."""
    faults = []
    for file in _python_files(root):
        for function in _nodes(file):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            first, last = function.body[0], function.body[-1]
            lines = (last.end_lineno or last.lineno) - first.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                faults.append(_at(root, file, function, f"{function.name}() has {lines} lines"))
    return faults


def private_imports(root: Path) -> list[str]:
    """Yield the product's imports of another file's names with a leading underscore."""
    return [
        _at(root, file, node, f"{alias.name} belongs to {node.module}")
        for file, node in _product_imports(root)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("grace.")
        for alias in node.names
        if alias.name.startswith("_")
    ]


def machine_paths(root: Path, files: list[Path]) -> list[str]:
    """Find absolute paths of the author's machine, which mean nothing to a reader."""
    faults = []
    for file in files:
        for number, line in enumerate(file.read_bytes().splitlines(), 1):
            if found := _MACHINE_PATH.search(line):
                fault = f"mentions {found.group().decode()}"
                faults.append(f"{file.relative_to(root)}:{number}: {fault}")
    return faults


def packages_on_disk(root: Path) -> list[str]:
    """Every folder with Python files below a top-level package, as a dotted name."""
    tops = [entry.parent for entry in root.glob("*/__init__.py") if entry.parent.name in LAYERS]
    folders = {file.parent for top in tops for file in top.rglob("*.py")}
    return sorted(".".join(folder.relative_to(root).parts) for folder in folders)


def tracked_files(root: Path) -> list[Path]:
    """Return the files that git tracks or would track. Skip the test outside a checkout."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    files = (root / name for name in listed.stdout.split("\0") if name)
    return [file for file in files if file.is_file() and not file.is_symlink()]


def _python_files(root: Path) -> list[Path]:
    folders = [root / name for name in (*LAYERS, "tests")]
    return sorted([*root.glob("*.py"), *(file for at in folders for file in at.rglob("*.py"))])


def _product_imports(root: Path) -> Iterator[tuple[Path, ast.Import | ast.ImportFrom]]:
    for file in _python_files(root):
        if file.relative_to(root).parts[0] in LAYERS:
            for node in _nodes(file):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    yield file, node


@cache
def _nodes(file: Path) -> list[ast.stmt]:
    """Return the statements of a file, also those within others."""
    nodes: list[ast.stmt] = []
    found: list[ast.AST] = [ast.parse(file.read_text(), str(file))]
    while found:
        inner = [
            node for node in ast.iter_child_nodes(found.pop()) if not isinstance(node, ast.expr)
        ]
        nodes += (node for node in inner if isinstance(node, ast.stmt))
        found += inner
    return nodes


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if node.module and not node.level:
        if node.module == "grace":
            return [f"grace.{alias.name}" for alias in node.names]
        return [node.module]
    return []


def _at(root: Path, file: Path, node: ast.AST, fault: str) -> str:
    return f"{file.relative_to(root)}:{getattr(node, 'lineno', 1)}: {fault}"
