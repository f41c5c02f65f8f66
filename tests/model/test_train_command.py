"""`grace train` as a process."""

import json
from pathlib import Path

import pytest

from grace.model.checkpoints.checkpoint import checkpoint_id
from support.command import run_grace
from support.training import SMALL_RECIPE, write_small_data

pytestmark = pytest.mark.subprocess

FILES = ("model.safetensors", "model.yaml")
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training")
    write_small_data(folder)
    (folder / "recipe.yaml").write_text(SMALL_RECIPE)
    return folder


def test_it_writes_a_checkpoint_its_metrics_and_a_loss_curve(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "checkpoint"
    done = run_grace("train", "--data", data, "--out", out, "--config", data / "recipe.yaml")
    assert (done.returncode, done.stderr) == (0, "")
    assert {file.name for file in out.iterdir()} == {*FILES, "loss.png", "metrics.json"}
    assert (out / "loss.png").read_bytes().startswith(PNG)
    assert checkpoint_id(out) in done.stdout
    for recommender in ("model", "followers", "popularity", "random"):
        assert f"\n{recommender} " in done.stdout
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["command"].startswith(f"grace train --data {data} --out {out} --config ")
    (row,) = metrics["rows"]
    assert row["checkpoint"] == checkpoint_id(out)
    assert row["loss"]["final"] < row["loss"]["first"]


def test_json_is_the_metrics(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "checkpoint"
    done = run_grace(
        *("train", "--data", data, "--out", out, "--config", data / "recipe.yaml"),
        *("--steps", "3", "--seed", "7", "--json", "--no-plot"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    (row,) = json.loads((out / "metrics.json").read_text())["rows"]
    assert report == {"out": str(out), **row}
    assert (report["config"]["steps"], report["seed"]) == (3, 7)
    assert {file.name for file in out.iterdir()} == {*FILES, "metrics.json"}


def test_a_folder_that_is_taken_is_one_line_with_the_remedy(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run_grace("train", "--data", data, "--out", tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: --out {tmp_path} is already there; choose a new folder, or remove it\n"
    )


def test_steps_and_epochs_together_are_refused(data: Path, tmp_path: Path) -> None:
    done = run_grace(
        "train", "--data", data, "--out", tmp_path / "x", "--steps", "1", "--epochs", "1"
    )
    assert done.returncode == 2
    assert "--steps or --epochs, not both" in done.stderr


def test_without_matplotlib_the_extra_and_the_way_round_are_named_before_training(
    data: Path, tmp_path: Path
) -> None:
    absent = tmp_path / "matplotlib" / "__init__.py"
    absent.parent.mkdir()
    absent.write_text("raise ModuleNotFoundError('as if absent', name='matplotlib')")
    done = run_grace(
        *("train", "--data", data, "--out", tmp_path / "x", "--config", data / "recipe.yaml"),
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 2
    assert done.stderr == (
        "error: the loss curve needs matplotlib: pip install 'grace-serving[plots]', or give "
        "--no-plot\n"
    )
    assert not (tmp_path / "x").exists()
