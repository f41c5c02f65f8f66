"""A whole training run: what it reports, and what it refuses before it starts."""

from dataclasses import replace
from pathlib import Path

import pytest

from grace.configs.errors import ConfigError, InputError
from grace.model.checkpoints.checkpoint import load_checkpoint
from grace.model.train.run import TrainingRun, train_model
from support.training import SMALL_RECIPE, write_small_data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training")
    write_small_data(folder)
    (folder / "recipe.yaml").write_text(SMALL_RECIPE)
    return folder


def silent(*_: object) -> None:
    pass


def test_a_run_judges_the_checkpoint_that_it_wrote(folder: Path, tmp_path: Path) -> None:
    run = TrainingRun(folder, tmp_path / "out", folder / "recipe.yaml", epochs=0.1)
    seen: list[str] = []
    report = train_model(run, lambda step, _done, _total, latest: seen.append(f"{step} {latest}"))
    assert report.config.steps == 3  # a tenth of 1,3xx events, 63 a step
    assert report.config.warmup_steps == 0
    assert len(report.losses) == 3
    assert seen[0].startswith("train loss 1")
    assert seen[-1] == "evaluate "
    assert report.weights == sum(w.numel() for w in load_checkpoint(run.out).parameters())
    assert list(report.recall["model"]) == [1, 5]  # 9 SIDs come out, so no recall at 10
    assert list(report.recall["popularity"]) == [1, 5, 10, 50]


def test_an_interformer_is_trained_with_the_logs_times_and_actions(
    folder: Path, tmp_path: Path
) -> None:
    config = tmp_path / "recipe.yaml"
    t5 = SMALL_RECIPE[SMALL_RECIPE.index("    t5:") : SMALL_RECIPE.index("  decoder:")]
    interformer = (
        "    interformer: {blocks: 1, d_model: 16, heads: 2, d_ff: 24, context_tokens: 7}\n"
    )
    side = SMALL_RECIPE.replace("max_length: 5", "max_length: 5, side: {action: 5}")
    config.write_text(side.replace(t5, interformer))
    report = train_model(TrainingRun(folder, tmp_path / "out", config, steps=20), silent)
    assert report.final_loss < 0.9 * report.losses[0]


def test_equal_runs_report_equal_numbers_and_another_seed_others(
    folder: Path, tmp_path: Path
) -> None:
    run = TrainingRun(folder, tmp_path / "a", folder / "recipe.yaml", steps=3)
    runs = run, replace(run, out=tmp_path / "b"), replace(run, out=tmp_path / "c", seed=2)
    one, same, other = (train_model(each, silent) for each in runs)
    assert replace(one, train_seconds=0) == replace(same, train_seconds=0)
    assert one.checkpoint != other.checkpoint
    assert one.losses != other.losses


def test_what_cannot_be_trained_is_refused_before_the_training(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    run = TrainingRun(folder, tmp_path / "x", folder / "recipe.yaml")
    cases = [
        (replace(run, out=tmp_path / "full"), InputError, "full is already there"),
        (replace(run, out=tmp_path / "full" / "file"), InputError, "file is already there"),
        (replace(run, data=tmp_path), ConfigError, r"targeting\.yaml: cannot be read"),
        (replace(run, config=tmp_path / "no.yaml"), ConfigError, r"no\.yaml: cannot be read"),
    ]
    for each, error, message in cases:
        with pytest.raises(error, match=message):
            train_model(each, lambda *_: pytest.fail("training has started"))
    assert not (tmp_path / "x").exists()
