"""`grace train`. Nothing here reads progress: a slow run prints its progress on stderr."""

import json
import sys
from pathlib import Path

import pytest

from grace.model.checkpoints.checkpoint import checkpoint_id
from support.in_process import invoke_grace

FILES = ("model.safetensors", "model.yaml")
PNG = b"\x89PNG\r\n\x1a\n"


def test_it_writes_a_checkpoint_its_metrics_and_a_loss_curve(
    training_folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="only the extra `plots` draws the loss curve")
    data, out = training_folder, tmp_path / "new" / "checkpoint"
    options = ("--config", data / "recipe.yaml", "--steps", "3")
    done = invoke_grace("train", "--data", data, "--out", out, *options)
    assert done.exit_code == 0
    assert {file.name for file in out.iterdir()} == {*FILES, "loss.png", "metrics.json"}
    assert (out / "loss.png").read_bytes().startswith(PNG)
    assert checkpoint_id(out) in done.stdout
    for recommender in ("model", "followers", "popularity", "random"):
        assert f"\n{recommender} " in done.stdout
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["command"].startswith(f"grace train --data {data} --out {out} --config ")
    (row,) = metrics["rows"]
    assert row["checkpoint"] == checkpoint_id(out)


def test_json_is_the_metrics(training_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "checkpoint"
    done = invoke_grace(
        *("train", "--data", training_folder, "--out", out),
        *("--config", training_folder / "recipe.yaml"),
        *("--steps", "3", "--seed", "7", "--json", "--no-plot"),
    )
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    (row,) = json.loads((out / "metrics.json").read_text())["rows"]
    assert report == {"out": str(out), **row}
    assert (report["config"]["steps"], report["seed"]) == (3, 7)
    assert {file.name for file in out.iterdir()} == {*FILES, "metrics.json"}


def test_a_length_given_twice_is_refused(training_folder: Path, tmp_path: Path) -> None:
    twice = ("--out", tmp_path / "x", "--steps", "1", "--epochs", "1")
    done = invoke_grace("train", "--data", training_folder, *twice)
    assert done.exit_code == 2
    assert "--steps or --epochs, not both" in done.stderr


def test_without_matplotlib_the_remedies_are_named_before_training(
    training_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "grace.model.train.plot", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    absent = tmp_path / "matplotlib" / "__init__.py"
    absent.parent.mkdir()
    absent.write_text("raise ModuleNotFoundError('as if absent', name='matplotlib')")
    monkeypatch.syspath_prepend(tmp_path)
    done = invoke_grace("train", "--data", training_folder, "--out", tmp_path / "x")
    assert done.exit_code == 2
    assert done.stderr == (
        "error: the loss curve needs matplotlib: pip install 'grace-serving[plots]', or give "
        "--no-plot\n"
    )
    assert not (tmp_path / "x").exists()
