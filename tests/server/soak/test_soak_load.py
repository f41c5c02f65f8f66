"""A long mixed load: memory, threads and descriptors do not grow, and counters add up."""

import json
import os
from pathlib import Path

import pytest

from grace.bench.load import serve_bench
from grace.bench.load.soak.__main__ import main as soak_command
from grace.bench.load.soak.soak import run_soak, soak_report
from support.served import front_ends
from support.serving_files import ServingFiles

pytestmark = [pytest.mark.subprocess, pytest.mark.soak]

SECONDS = float(os.environ.get("SOAK_SECONDS", "120"))


@front_ends
def test_mixed_load_leaves_memory_threads_and_descriptors_as_they_were(
    serving_files: ServingFiles, front_ends: int
) -> None:
    finished = run_soak(serving_files.tiny_server_files, SECONDS, front_ends)
    assert finished.passed, soak_report(finished)


def test_the_soak_writes_what_it_samples_and_counts(tmp_path: Path) -> None:
    out = tmp_path / "soak.json"
    soak_command(
        ["--seconds", "5", "--only", "malformed", "scrape", "--rate", "31", "--out", str(out)]
    )
    *rows, counts, samples = json.loads(out.read_text())["rows"]
    assert {row["process"] for row in rows} == {"server", "relay 1", "relay 2"}
    assert counts["counted"] == {"OK": 0, **counts["ends"]["malformed"]}
    assert counts["faults"] == []
    assert len(samples["samples"]) >= 5


def test_the_measurement_of_the_server_writes_its_rows(tmp_path: Path) -> None:
    out = tmp_path / "serve.json"
    serve_bench.main(["--out", str(out), "--seconds", "4"])
    rows = json.loads(out.read_text())["rows"]
    assert [row["measure"] for row in rows] == ["overhead", "saturation"]
    assert all(row.get("errors", 0) == 0 for row in rows)
    assert 0 < rows[1]["generate_busy"] <= 1
