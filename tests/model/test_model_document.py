"""The Python of README and docs/model.md runs as it stands there."""

import re
import shutil
from pathlib import Path

import pytest

from support.command import run_grace, run_python

pytestmark = pytest.mark.subprocess


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """The demonstration's catalogue and snapshot, and its checkpoint."""
    folder = tmp_path_factory.mktemp("documents")
    assert run_grace("demo", "--out", folder, "--users", "1").returncode == 0
    shutil.copytree(repository / "model" / "demo", folder / "checkpoint")
    return folder


@pytest.mark.parametrize("page", ["docs/model.md"])
def test_its_python_finds_ads(page: str, folder: Path, repository: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (repository / page).read_text(), re.DOTALL)
    done = run_python(code, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.match(r"\[(\d+ *){5,}", done.stdout)
