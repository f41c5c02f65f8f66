"""The measurements on a CPU run, and their rows add up; no test checks times or rates."""

import json
from pathlib import Path
from typing import Any

import pytest

from grace.bench import build_bench, fresh_bench, match_bench
from grace.bench.gpu.subjects.catalogue import Catalogue
from grace.bench.result_tables import fresh_tables
from grace.catalogues.paper.changes import PaperChanges
from grace.configs.eligibility import CD
from grace.configs.errors import DeviceError


def measured(module: Any, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """Return the rows of the result file that the command wrote."""
    out = folder / "result.json"
    module.main([*arguments, "--out", str(out)])
    result = json.loads(out.read_text())
    assert sorted(result) == ["command", "commit", "machine", "rows"]
    assert f"python -m {module.__name__} {' '.join(arguments)}" in result["command"]
    rows: list[dict[str, Any]] = result["rows"]
    return rows


@pytest.mark.subprocess
def test_a_build_has_its_times_and_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_bench, "LOADS", 1)  # each is a process
    modes = ("--eligibility", "exact", "static")
    exact, static = measured(build_bench, tmp_path, "--sids", "1111", *modes)
    assert (exact["matchers"], exact["options"]) == ("exact", "")
    assert (static["matchers"], static["options"]) == ("static", "")
    assert exact["snapshot_gb"] == static["snapshot_gb"]
    for row in (exact, static):
        assert (row["sids"], row["sid_space"]) == (1111, "paper-1-1111")
        assert row["sids"] < row["ads"]
        assert sum(row["step_s"].values()) < row["build_s"]
        per_million = row["build_s"] / row["ads"] * 1e6
        assert row["build_s_per_million_ads"] == pytest.approx(per_million, rel=0.02)
        assert 0 < row["load_verify_s"] <= row["load_verify_most_s"]
        assert row["peak_gb"] > row["snapshot_gb"] > 0


def test_matching_has_a_row_for_each_number_of_returned_ads(tmp_path: Path) -> None:
    small = ("--sids", "2111", "--repetitions", "2")
    rows = measured(match_bench, tmp_path, *small)
    assert [row["max_ads"] for row in rows] == [500, 10_000]
    for row in rows:
        assert 0 < row["returned"] <= row["matched"] <= row["generated"]
        assert row["returned"] <= row["max_ads"]
        assert row["median_ms"] <= row["p90_ms"]


def test_changes_of_ads_have_a_row_for_each_size(tmp_path: Path) -> None:
    small = ("--sids", "1111", "--ads", "1", "333", "--repetitions", "3")
    rows = measured(fresh_bench, tmp_path, *small)
    assert [(row["sids"], row["ads_changed"]) for row in rows] == [(1111, 1), (1111, 333)]
    for row in rows:
        assert 0 < row["read_p50_s"] <= row["read_p99_s"]
        assert 0 < row["apply_p50_s"] <= row["apply_p99_s"]
    text = fresh_tables({"commit": "", "machine": "", "command": "", "rows": rows})["changes"]
    assert "| 1,111 | 1,784 | 333 | " in text


def test_a_snapshot_without_the_changes_has_no_row() -> None:
    catalogue = Catalogue(1_111)
    snapshot, change = catalogue.snapshot(CD.mode), PaperChanges(catalogue.paper).change(1, 3)
    with pytest.raises(DeviceError, match="it is wrong, and was not measured"):
        fresh_bench.require_changed(snapshot, change)
