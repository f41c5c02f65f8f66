"""The committed demonstration model, evaluated again on a new copy of its catalogue and log."""

import json
import re
import runpy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from grace.index.snapshot import Snapshot
from grace.index.tables.data_folder import read_data_folder
from grace.kernels import DecodeIndex
from grace.model.checkpoints.checkpoint import CPU, checkpoint_id, load_encoder_decoder
from grace.model.train.evaluate import CUTOFFS, Search, ranked
from grace.model.train.interactions import HistoryBatches, Interactions, history_input
from grace.model.train.log_reader import catalogue_of, read_log
from grace.model.train.recipe import Recipe, read_recipe, recipe_for
from support.in_process import invoke_grace


@pytest.fixture(scope="module")
def checkpoint(repository: Path) -> Path:
    return repository / "model" / "demo"


@pytest.fixture(scope="module")
def metrics(checkpoint: Path) -> dict[str, Any]:
    written: dict[str, Any] = json.loads((checkpoint / "metrics.json").read_text())
    (row,) = written["rows"]
    return {**row, "command": written["command"]}


@pytest.fixture(scope="module")
def catalogue(demo_folder: Path) -> Snapshot:
    return catalogue_of(read_data_folder(demo_folder))


@pytest.fixture(scope="module")
def log(demo_folder: Path, catalogue: Snapshot) -> Interactions:
    return read_log(read_data_folder(demo_folder), catalogue).interactions


@pytest.fixture(scope="module")
def recipe(catalogue: Snapshot, log: Interactions) -> Recipe:
    return recipe_for(read_recipe(None), catalogue, log)


def test_it_is_the_default_recipes_model_for_the_demo_catalogue_and_small(
    checkpoint: Path, metrics: dict[str, Any], recipe: Recipe
) -> None:
    assert load_encoder_decoder(checkpoint).spec == recipe.model
    assert metrics["config"] == asdict(recipe.training)
    assert sum(file.stat().st_size for file in checkpoint.iterdir()) <= 3_000_000


def test_its_metrics_are_of_these_weights_and_this_log(
    checkpoint: Path, metrics: dict[str, Any], log: Interactions
) -> None:
    assert metrics["checkpoint"] == checkpoint_id(checkpoint)
    assert metrics["training_events"] == len(log.examples())
    assert metrics["held_out_users"] == len(log.last_events()) == 1200


def test_its_recall_is_that_of_its_metrics_and_clearly_above_the_followers(
    checkpoint: Path,
    metrics: dict[str, Any],
    recipe: Recipe,
    log: Interactions,
    catalogue: Snapshot,
) -> None:
    profile = recipe.generation.profiles[recipe.generation.default_profile]
    search = Search(load_encoder_decoder(checkpoint), DecodeIndex.of(catalogue, CPU), profile)
    batches = HistoryBatches(log, history_input(recipe.model))
    ranks = ranked(search, batches, log.last_events(), lambda *_: None)
    found = ranks.qualities(CUTOFFS, search.profile.num_sids)
    assert found["model"].recall[10] >= found["followers"].recall[10] + 0.05
    assert found["model"].recall[10] >= 3 * found["popularity"].recall[10]
    for name, quality in found.items():
        for k, value in quality.recall.items():
            # Another order of addition may swap near-ties of a few users.
            assert metrics["recall"][name][str(k)] == pytest.approx(value, abs=0.01), (name, k)


def test_the_document_shows_these_numbers(repository: Path, metrics: dict[str, Any]) -> None:
    text = (repository / "docs" / "training.md").read_text()
    for name, row in metrics["recall"].items():
        cells = " | ".join(f"{100 * row[k]:.1f} %" for k in ("1", "5", "10", "50"))
        assert f"| {name} | {cells} |" in text
    assert f"{metrics['weights']:,} weights" in text
    config = metrics["config"]
    assert f"{config['steps']:,} steps of {config['batch']} examples" in text


def test_the_program_of_the_page_on_models_finds_ads_with_it(
    checkpoint: Path,
    demo_folder: Path,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folders = ("--data", demo_folder, "--root", demo_folder / "snapshots")
    assert invoke_grace("build", *folders).exit_code == 0
    page = (repository / "docs" / "model.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(demo_folder)
    Path("checkpoint").symlink_to(checkpoint)
    Path("program.py").write_text(program)
    capsys.readouterr()
    runpy.run_path("program.py")
    assert re.match(r"\[(\d+ *){5,}", capsys.readouterr().out)
