"""The measurements on a CPU run, and their rows add up; no test checks times or rates."""

import json
from pathlib import Path
from typing import Any

import pytest

from grace.bench import build_bench, eligibility_study, match_bench
from grace.index.matchers.modes import MatcherMode


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
    modes = ("--matchers", "exact", "static")
    exact, static = measured(build_bench, tmp_path, "--sids", "1111", *modes)
    assert (exact["matchers"], exact["options"]) == ("exact", "")
    assert (static["matchers"], static["options"]) == ("static", "--k 64,64,32,8")
    assert exact["snapshot_gb"] < static["snapshot_gb"]
    for row in (exact, static):
        assert (row["sids"], row["sid_space"]) == (1111, "paper-1-1111")
        assert row["sids"] < row["ads"]
        assert sum(row["step_s"].values()) < row["build_s"]
        per_million = row["build_s"] / row["ads"] * 1e6
        assert row["build_s_per_million_ads"] == pytest.approx(per_million, rel=0.02)
        assert 0 < row["load_verify_s"] <= row["load_verify_most_s"]
        assert row["peak_gb"] > row["snapshot_gb"] > 0


def test_matching_has_rows_for_every_kind_of_leaves(tmp_path: Path) -> None:
    small = ("--sids", "2111", "--repetitions", "2")
    rows = measured(match_bench, tmp_path, *small)
    assert [row["leaves"] for row in rows[::2]] == ["random", "eligible", "scattered"]
    for row in rows:
        assert 0 < row["returned"] <= row["matched"] <= row["generated"]
        assert row["returned"] <= row["max_ads"]
        assert row["median_ms"] <= row["p90_ms"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("study")
    return measured(eligibility_study, folder, "--sids", "2222", "--users", "7")


def of(rows: list[dict[str, Any]], table: str, mode: str = "") -> list[dict[str, Any]]:
    return [row for row in rows if row["table"] == table and mode in ("", row.get("mode"))]


def test_one_row_describes_the_catalogue_and_its_knobs(rows: list[dict[str, Any]]) -> None:
    (row,) = of(rows, "catalogue")
    assert row["sids"] == 2222
    assert row["ads_per_sid"]["p50"] == 1
    assert row["knobs"]["located"] > 0
    assert row["generator"]["liking"] > 0


@pytest.mark.parametrize("mode", ["union", "static", "dynamic"])
def test_matcher_rows_have_storage_and_fill_of_both_kinds_at_four_positions(
    rows: list[dict[str, Any]], mode: str
) -> None:
    found = of(rows, "matchers", mode)
    assert [(row["kind"], row["position"]) for row in found] == [
        (kind, position) for kind in ("bitmask", "location") for position in range(4)
    ]
    for row in found:
        assert 0 < row["fill"] <= 1
        assert row["bytes_after"] <= row["bytes_before"]


@pytest.mark.parametrize("mode", list(MatcherMode))
def test_the_buckets_split_all_users(rows: list[dict[str, Any]], mode: str) -> None:
    everyone, *buckets = of(rows, "pass", mode)
    assert (everyone["bucket"], everyone["users"]) == ("all", 7)
    assert sum(row["users"] for row in buckets) == 7
    for row in (everyone, *buckets):
        if row["users"] == 0:
            assert row["final_pass"] is None
            continue
        product = row["bitmask_pass"] * row["bloom_pass"]
        assert row["final_pass"] == pytest.approx(product, abs=2e-4)
        assert row["matched"] <= row["generated"]
        assert len(row["beams"]) == 4


@pytest.mark.parametrize("mode", ["union", "static", "dynamic"])
def test_targeting_generates_fewer_sids_without_a_match(
    rows: list[dict[str, Any]], mode: str
) -> None:
    cd, targeted = (of(rows, "pass", each)[0] for each in ("cd", mode))
    assert targeted["sids_without_match"] < cd["sids_without_match"]
    assert targeted["final_pass"] > cd["final_pass"]
    union = of(rows, "pass", "union")[0]
    assert targeted["beams"][0] <= union["beams"][0] <= cd["beams"][0]
