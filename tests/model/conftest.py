"""Fixtures of the model's tests: one thread, and a small folder to train on."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from grace.catalogues.synth import preset_spec, write_folder
from grace.index.snapshot import Snapshot
from grace.index.tables.data_folder import ADS_FILE, LOG_FILE, TARGETING_FILE, read_data_folder
from grace.model.train.interactions import Interactions
from grace.model.train.log_reader import catalogue_of, read_log
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


@pytest.fixture(scope="session")
def folder_with_users(training_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The training folder, whose log also says who the users are."""
    folder = tmp_path_factory.mktemp("with-users")
    ads = pq.read_table(training_folder / ADS_FILE)
    years = [[None, 20.0, 30.0][ad % 3] for ad in range(len(ads))]
    pq.write_table(ads.append_column("years_min", [years]), folder / ADS_FILE)
    schema = (training_folder / TARGETING_FILE).read_text() + "ranges: {years: {}}\n"
    (folder / TARGETING_FILE).write_text(schema)
    rows = pq.read_table(training_folder / LOG_FILE).to_pylist()
    for row in rows:
        user = row["user_id"]
        row["country"] = ["US", "DE", "GB", None][user % 4]
        row["years"] = [19.5, 20.0, 31.0, None][user // 2 % 4]
        row["gender"] = ["female", "male"][user % 2]
        row["location"] = [["us", "us/ca"], ["de"], None][user % 3]
    pq.write_table(pa.Table.from_pylist(rows), folder / LOG_FILE)
    return folder
