"""Intact versions, made once, and copies of them for tests that do damage."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from grace.index.matchers.modes import MatcherMode
from support.forgery import make_version


@pytest.fixture(scope="session")
def intact_of(tmp_path_factory: pytest.TempPathFactory) -> dict[MatcherMode, Path]:
    folder = tmp_path_factory.mktemp("intact")
    return {mode: make_version(folder / mode.value, mode=mode) for mode in MatcherMode}


@pytest.fixture
def version_of(intact_of: dict[MatcherMode, Path], tmp_path: Path) -> Callable[[MatcherMode], Path]:
    """Makes a copy of the small catalogue's version in a mode."""
    return lambda mode: shutil.copytree(intact_of[mode], tmp_path / intact_of[mode].name)


@pytest.fixture
def version(version_of: Callable[[MatcherMode], Path]) -> Path:
    return version_of(MatcherMode.UNION)
