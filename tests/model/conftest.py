"""Fixtures of the model's tests: one thread, and a small folder to train on."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from grace.catalogues.synth import preset_spec, write_folder
from grace.index.snapshot import Snapshot
from grace.index.tables.data_folder import read_data_folder
from grace.model.train.catalogue import catalogue_of
from grace.model.train.interactions import Interactions
from grace.model.train.log_reader import read_log
from support.training import SMALL_RECIPE, write_small_data


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small only wait for a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def training_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training")
    write_small_data(folder)
    (folder / "recipe.yaml").write_text(SMALL_RECIPE)
    return folder


@pytest.fixture(scope="session")
def training_catalogue(training_folder: Path) -> Snapshot:
    return catalogue_of(read_data_folder(training_folder))


@pytest.fixture(scope="session")
def training_log(training_folder: Path, training_catalogue: Snapshot) -> Interactions:
    folder = read_data_folder(training_folder)
    return read_log(folder, training_catalogue, ("action",)).interactions


@pytest.fixture(scope="session")
def demo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demonstration's catalogue, users and log."""
    folder = tmp_path_factory.mktemp("demo")
    write_folder(preset_spec("demo", seed=1), folder)
    return folder
