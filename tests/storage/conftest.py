"""An intact version, made once, and copies of it for tests that do damage."""

import shutil
from pathlib import Path

import pytest

from support.forgery import make_version


@pytest.fixture(scope="session")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_version(tmp_path_factory.mktemp("intact"))


@pytest.fixture
def version(intact: Path, tmp_path: Path) -> Path:
    """A copy of the small catalogue's version."""
    return shutil.copytree(intact, tmp_path / intact.name)
