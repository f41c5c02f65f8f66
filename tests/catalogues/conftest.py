"""The catalogues that several tests read, each made once: their arrays are read-only."""

from pathlib import Path

import pytest

from grace.catalogues.folder import Written
from grace.catalogues.synth import Catalogue, make_catalogue, preset_spec, write_folder


@pytest.fixture(scope="session")
def tiny() -> Catalogue:
    return make_catalogue(preset_spec("tiny", seed=3))


@pytest.fixture(scope="session")
def small() -> Catalogue:
    return make_catalogue(preset_spec("small", seed=3))


def silent(done: int, total: int) -> None:
    assert 0 < done <= total


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Written]:
    """The tiny catalogue's files, with their summary."""
    out = tmp_path_factory.mktemp("synth") / "catalogue"
    return out, write_folder(preset_spec("tiny", seed=3), out, force=False, progress=silent)
