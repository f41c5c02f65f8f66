"""Trainings with validation and dropout: how they stop, continue, and start from a checkpoint."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from grace.configs.errors import CheckpointError, ConfigError, InputError
from grace.configs.options import TrainingRun
from grace.index.snapshot import Snapshot
from grace.index.tables.data_folder import ADS_FILE, LOG_FILE, TARGETING_FILE, read_data_folder
from grace.model.checkpoints.checkpoint import checkpoint_id, load_checkpoint
from grace.model.checkpoints.init import random_model
from grace.model.train.interactions import HistoryBatches, history_input
from grace.model.train.log_reader import read_log
from grace.model.train.loop import Progress, fit
from grace.model.train.recipe import read_recipe, recipe_for
from grace.model.train.run import train_model
from support.builds import silent
from support.training import SMALL_RECIPE, small_run

CAREFUL = "training: {validate_every: 10, dropout: 0.2, event_dropout: 0.3, "


def stopping(after: int, at: str = "train") -> Progress:
    def progress(what: str, done: int, _total: int, _latest: str) -> None:
        if what == at and done >= after:
            raise KeyboardInterrupt

    return progress


@pytest.fixture
def careful(training_folder: Path, tmp_path: Path) -> TrainingRun:
    """A run with dropout, smoothing and validation, on a log without `split`."""
    table = pq.read_table(training_folder / LOG_FILE).drop_columns(["split"])
    (tmp_path / "data").mkdir()
    pq.write_table(table, tmp_path / "data" / LOG_FILE)
    for name in (TARGETING_FILE, ADS_FILE):
        (tmp_path / "data" / name).symlink_to(training_folder / name)
    config = tmp_path / "recipe.yaml"
    small = SMALL_RECIPE.replace("batch: 63, ", "batch: 31, label_smoothing: 0.1, ")
    config.write_text(small.replace("training: {", CAREFUL))
    return small_run(tmp_path / "data", tmp_path / "whole", config=config)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_stopped_training_goes_on_to_the_weights_of_one_that_was_not_stopped(
    careful: TrainingRun, tmp_path: Path, device: str
) -> None:
    careful = replace(careful, device=device)
    whole = train_model(careful, silent)
    stopped = replace(careful, out=tmp_path / "stopped")
    kept = tmp_path / "stopped.unfinished"
    notes: list[str] = []
    for after in (7, 30, 60):  # the last two are steps that validate
        with pytest.raises(KeyboardInterrupt):
            train_model(stopped, stopping(after), notes.append)
        assert kept.exists()
        assert not stopped.out.exists()
        assert notes[-1].startswith(f"stopped after step {after} of 60; {kept} keeps the state")
    for other in (replace(stopped, seed=2), replace(stopped, steps=59)):
        with pytest.raises(InputError, match=r"another recipe, .* or PyTorch; remove"):
            train_model(other, silent)
    again = train_model(stopped, silent, notes.append)
    assert f"{kept}: the training continues after step 60" in notes
    assert (again.checkpoint, again.losses) == (whole.checkpoint, whole.losses)
    assert not kept.exists()
    full = replace(stopped, out=tmp_path / "full")
    (tmp_path / ".writing-full.unfinished").symlink_to("/dev/full")
    with pytest.raises(InputError, match=r"full.unfinished: cannot be written: .*; make room, or"):
        train_model(full, stopping(1))
    damaged = replace(stopped, out=tmp_path / "damaged")
    (tmp_path / "damaged.unfinished").write_bytes(b"no state")
    with pytest.raises(KeyboardInterrupt):
        train_model(replace(stopped, out=tmp_path / "measured"), stopping(1, "evaluate"))
    assert (tmp_path / "measured.unfinished").exists()
    measured = train_model(replace(stopped, out=tmp_path / "measured"), silent)
    assert measured.checkpoint == whole.checkpoint
    with pytest.raises(InputError, match=r"unfinished: cannot be read: .*; remove it, or choose"):
        train_model(damaged, silent)


def test_validation_events_choose_the_weights_and_training_sees_none_of_them(
    careful: TrainingRun, training_catalogue: Snapshot
) -> None:
    folder = read_data_folder(careful.data)
    log = read_log(folder, training_catalogue, validation=True).interactions
    sizes = np.diff(log.offsets)
    assert log.validation.tolist() == (log.offsets[1:][sizes > 2] - 2).tolist()
    assert log.last_events().tolist() == (log.offsets[1:][sizes > 1] - 1).tolist()
    unseen = {*log.validation.tolist(), *log.last_events().tolist()}
    assert {*log.examples().tolist()} == {*range(len(log.leaves))} - unseen
    recipe = recipe_for(read_recipe(careful.config), training_catalogue, log)
    batches = HistoryBatches(log, history_input(recipe.model))
    model = random_model(recipe.model, 1)
    scores = iter([0.1, 0.3, 0.2, 0.25, 0.3])
    at: list[dict[str, torch.Tensor]] = []

    def score() -> float:
        at.append({name: weight.clone() for name, weight in model.state_dict().items()})
        return next(scores)

    losses = fit(model, batches, replace(recipe.training, patience=3), 1, silent, score)
    assert len(losses) == 50, "the third score in a row that is no better ends it"
    after = model.state_dict()
    assert all(torch.equal(weight, after[name]) for name, weight in at[1].items())
    assert any(not torch.equal(weight, after[name]) for name, weight in at[2].items())


def test_a_log_without_events_to_validate_is_an_error(
    careful: TrainingRun, training_folder: Path
) -> None:
    with pytest.raises(InputError, match=r"has no event for training.validate_every: it needs a"):
        train_model(replace(careful, data=training_folder), silent)


def test_weights_that_overflow_name_the_learning_rate(careful: TrainingRun, tmp_path: Path) -> None:
    config = tmp_path / "hot.yaml"
    config.write_text("training: {steps: 9, learning_rate: 1.0e+30, validate_every: 1}")
    with pytest.raises(ConfigError, match=r"not finite; .*: train it again with a lower"):
        train_model(replace(careful, config=config), silent)


def test_the_folder_of_a_link_gets_the_checkpoint(careful: TrainingRun, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("new")
    report = train_model(replace(careful, out=tmp_path / "link", steps=1), silent)
    assert checkpoint_id(tmp_path / "new") == report.checkpoint


def test_a_checkpoint_is_trained_on_with_its_own_model(
    careful: TrainingRun, tmp_path: Path
) -> None:
    first = train_model(careful, silent)
    rest = tmp_path / "rest.yaml"
    rest.write_text("training: {steps: 9, batch: 63, learning_rate: 0.001}")
    further = replace(careful, config=rest, start=careful.out, out=tmp_path / "further")
    report = train_model(further, silent)
    assert report.losses[0] < 0.7 * first.losses[0]
    assert load_checkpoint(further.out).spec == load_checkpoint(careful.out).spec
    with pytest.raises(ConfigError, match=r"model: the checkpoint of --from has one; remove it"):
        train_model(replace(further, config=careful.config, out=tmp_path / "x"), silent)
    with pytest.raises(CheckpointError, match="sid_space is 'small-1', but the catalogue has 'oth"):
        train_model(replace(further, sid_space="other", out=tmp_path / "x"), silent)
