"""The measurements on a CPU run, and their rows add up; no test checks times or rates."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grace.bench import build_bench, match_bench, pace_bench


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


@pytest.mark.subprocess
def test_the_pace_of_processors_has_a_row(tmp_path: Path) -> None:
    (row,) = measured(pace_bench, tmp_path, "--seconds", "0.3")
    assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["most_ms"]
    assert row["slow_moments"] == len(row["slow_ms"])


def test_a_moment_is_slow_if_it_is_for_every_processor() -> None:
    def pieces(*slow: int) -> pace_bench.Pieces:
        took = np.where(np.isin(np.arange(100) // 10, slow), 0.002, 0.001)
        return np.column_stack([5.0 + np.arange(100) / 1000, took])

    found = pace_bench.slow_moments([pieces(1, 2, 6), pieces(2, 3, 6, 9)])
    assert found == [pytest.approx((0.02, 0.03)), pytest.approx((0.06, 0.07))]
