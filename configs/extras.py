"""The command that installs what an extra of pyproject.toml lists.

It names the packages, so it works for a clone, a wheel and a path of sources alike.
"""

import shlex
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

_DISTRIBUTION = "grace-serving"
_PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def install_command(*extras: str) -> str:
    packages = dict.fromkeys(package for extra in extras for package in _packages(extra))
    return f"{shlex.quote(sys.executable)} -m pip install {shlex.join(packages)}"


def _packages(extra: str) -> Iterator[str]:
    for line in _requirements(extra):
        package, _, marker = line.partition(";")
        if f'extra == "{extra}"' in marker:
            if package.startswith(f"{_DISTRIBUTION}["):  # the packages of another extra
                yield from _packages(package.strip().partition("[")[2].rstrip("]"))
            else:
                yield package.strip()


def _requirements(extra: str) -> list[str]:
    try:
        return requires(_DISTRIBUTION) or []
    except PackageNotFoundError:  # sources on PYTHONPATH, not installed
        project = tomllib.loads(_PYPROJECT.read_text(encoding="utf-8"))["project"]
        listed = project["optional-dependencies"][extra]
        return [f'{line.partition(";")[0]}; extra == "{extra}"' for line in listed]
