"""`grace train`. Nothing here reads progress: a slow run prints its progress on stderr."""

import json
import signal
import statistics
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.index.tables.data_folder import ADS_FILE, LOG_FILE, TARGETING_FILE
from grace.model.checkpoints.checkpoint import checkpoint_id
from support.command import GRACE, plain_environment, run_python
from support.in_process import invoke_grace

FILES = ("model.safetensors", "model.yaml", "recipe.yaml")


Line = list[str | Path]


def line(data: Path, out: Path, *options: str | Path, recipe: Path | None = None) -> Line:
    """Train by the data's recipe, or another."""
    config = recipe or data / "recipe.yaml"
    return ["train", "--data", data, "--out", out, "--config", config, *options]


def test_it_writes_a_checkpoint_and_its_metrics(training_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "checkpoint"
    done = invoke_grace(*line(training_folder, out, "--steps", "3", "--seed", "7", "--json"))
    assert done.exit_code == 0
    assert {file.name for file in out.iterdir()} == {*FILES, "metrics.json"}
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["command"].split()[0] == "grace"
    (row,) = metrics["rows"]
    assert row["checkpoint"] == checkpoint_id(out)
    assert (row["config"]["steps"], row["seed"]) == (3, 7)
    assert json.loads(done.stdout) == {"out": str(out), **row}


def test_several_seeds_show_how_recall_varies(training_folder: Path, tmp_path: Path) -> None:
    done = invoke_grace(*line(training_folder, tmp_path / "out", "--steps", "3", "--seeds", "3"))
    recalls = []
    for seed in (1, 2, 3):
        metrics = json.loads((tmp_path / f"out/seed-{seed}/metrics.json").read_text())
        assert metrics["rows"][0]["seed"] == seed
        recalls.append(metrics["rows"][0]["recall"]["model"]["5"])
    (_, _, table) = done.stdout.partition("Recall of the model over 3 seeds")
    rows = {row.split()[0]: row.split()[1:] for row in table.splitlines()[2:]}
    assert rows["mean"][1] == f"{statistics.mean(recalls):.1%}"
    assert rows["deviation"][1] == f"{statistics.stdev(recalls):.1%}"
    rest = line(training_folder, tmp_path / "out", "--steps", "3", "--seed", "4", "--seeds", "2")
    assert invoke_grace(*rest).exit_code == 0
    again = invoke_grace(*line(training_folder, tmp_path / "out", "--seed", "0", "--seeds", "2"))
    assert "seed-1: is already there" in again.stderr
    assert not (tmp_path / "out/seed-0").exists(), "the error comes before the first training"


def test_a_model_behind_followers_is_reported_with_the_remedy(
    training_folder: Path, tmp_path: Path
) -> None:
    """One step teaches nothing. Without `split`, `followers` has seen the clicks of every user."""
    table = pq.read_table(training_folder / LOG_FILE).drop_columns(["split"])
    pq.write_table(table, tmp_path / LOG_FILE)
    for name in (TARGETING_FILE, ADS_FILE):
        (tmp_path / name).symlink_to(training_folder / name)
    recipe = training_folder / "recipe.yaml"
    short = invoke_grace(*line(tmp_path, tmp_path / "short", "--steps", "1", recipe=recipe))
    assert "The model is behind `followers` at k = 5" in short.stdout
    assert "with --steps 2 or more" in short.stdout
    for recommender in ("model", "followers", "popularity"):
        assert f"\n{recommender} " in short.stdout
    whole = invoke_grace(*line(tmp_path, tmp_path / "whole", "--steps", "400", recipe=recipe))
    assert whole.exit_code == 0
    assert "behind `followers`" not in whole.stdout


def test_threads_of_a_training_sleep_while_they_wait_unless_the_caller_says_otherwise(
    tmp_path: Path,
) -> None:
    command = f"{GRACE} train --data {tmp_path} --out {tmp_path}/x".split()
    environment = plain_environment(OMP_DISPLAY_ENV="VERBOSE")
    environment.pop("OMP_WAIT_POLICY", None)  # this test run's own
    for given, spins in (({}, "0"), ({"GOMP_SPINCOUNT": "7"}, "7")):
        done = subprocess.run(
            command, env={**environment, **given}, capture_output=True, text=True, check=False
        )
        assert "is no data folder" in done.stderr, "torch is loaded by then"
        assert f"GOMP_SPINCOUNT = '{spins}'" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_training_without_its_temporary_files(
    number: signal.Signals, training_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "tmp").mkdir()
    out = tmp_path / "out"
    train = [GRACE, *line(training_folder, out, "--steps", "1000000")]
    environment = plain_environment(TMPDIR=str(tmp_path / "tmp"))
    with subprocess.Popen(train, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            while " steps of " not in process.stderr.readline():
                assert process.poll() is None
            assert list(tmp_path.glob(".grace-train-*"))
            process.send_signal(number)
            error = process.stderr.read()
        finally:
            process.kill()
    assert process.returncode == 130
    assert error.endswith("interrupted\n")
    assert [file.name for file in tmp_path.iterdir()] == ["tmp"]
    assert list((tmp_path / "tmp").iterdir()) == []


DROPPED_SIGNAL = """
import gc, signal, threading
from grace.cli.main import run

def send(phase, facts):
    handled = callable(signal.getsignal(signal.SIGTERM))  # by the command, by now
    if handled and threading.current_thread() is threading.main_thread():
        gc.callbacks.remove(send)
        signal.raise_signal(signal.SIGTERM)
        while True:  # until Python calls the handler
            pass

gc.callbacks.append(send)
run()
"""


def test_a_signal_ends_a_training_even_if_python_drops_its_interrupt(
    training_folder: Path, tmp_path: Path
) -> None:
    """Python ignores what a callback of its garbage collector raises, or of its import system."""
    command = line(training_folder, tmp_path / "out", "--steps", "1000000")
    done = run_python(DROPPED_SIGNAL, *map(str, command))
    assert "Exception ignored in: <function send" in done.stderr
    assert done.returncode == 130
    assert done.stderr.endswith("interrupted\n")


def test_a_training_under_nohup_goes_on_without_its_terminal(
    training_folder: Path, tmp_path: Path
) -> None:
    """Enough steps for the signal to come before the end."""
    train = ["nohup", GRACE, *line(training_folder, tmp_path / "out", "--steps", "111")]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(
        train, env=plain_environment(), stdin=nothing, stdout=nothing, stderr=pipe, text=True
    ) as process:
        assert process.stderr is not None
        while " steps of " not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGHUP)
        process.stderr.read()
    assert process.returncode == 0


def test_ads_that_a_build_refuses_and_events_of_them_are_counted(
    training_folder: Path, tmp_path: Path
) -> None:
    table = pq.read_table(training_folder / ADS_FILE)
    rows = table.to_pylist()
    faulty = tuple(rows[0]["sid"])
    refused = 0
    for row in rows:
        if tuple(row["sid"]) == faulty:
            row["sid"] = [64, 0, 0, 0]  # beyond the vocabulary
            refused += 1
    pq.write_table(pa.Table.from_pylist(rows, table.schema), tmp_path / ADS_FILE)
    for name in (TARGETING_FILE, LOG_FILE):
        (tmp_path / name).symlink_to(training_folder / name)
    events = pq.read_table(tmp_path / LOG_FILE)["sid"].to_pylist()
    lost = [tuple(sid) for sid in events].count(faulty)
    assert lost
    train = ("train", "--data", tmp_path, "--steps", "1", "--json")
    done = invoke_grace(*train, "--out", tmp_path / "a", "--max-unknown", "0.5")
    report = json.loads(done.stdout)
    assert (report["refused_ads"], report["unknown_events"]) == (refused, lost)
    done = invoke_grace(*train, "--out", tmp_path / "b", "--max-unknown", "0")
    assert done.exit_code == 2
    assert f"{lost} of {len(events):,} events" in done.stderr
