"""The Python of README and docs/model.md runs as it is written there."""

import re
import runpy
import shutil
from pathlib import Path

import pytest

from support.in_process import invoke_grace


@pytest.fixture(scope="module")
def folder(demo_folder: Path, repository: Path) -> Path:
    """The demonstration's files with a snapshot and a checkpoint."""
    files = ("--ads", demo_folder / "ads.parquet", "--targeting", demo_folder / "targeting.yaml")
    assert invoke_grace("build", *files, "--root", demo_folder / "snapshots").exit_code == 0
    shutil.copytree(repository / "model" / "demo", demo_folder / "checkpoint")
    return demo_folder


@pytest.mark.parametrize("page", ["README.md", "docs/model.md"])
def test_its_python_finds_ads(
    page: str,
    folder: Path,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (repository / page).read_text(), re.DOTALL)
    monkeypatch.chdir(folder)
    Path("program.py").write_text(code)
    runpy.run_path("program.py")
    assert re.match(r"\[(\d+ *){5,}", capsys.readouterr().out)
