"""The study's rows add up; no test checks the size of its rates."""

import json
from pathlib import Path
from typing import Any

import pytest

from grace.bench.eligibility_study import main
from grace.index.matchers.modes import MatcherMode


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("study") / "results" / "eligibility.json"
    main(["--sids", "7777", "--users", "11", "--out", str(out)])
    result = json.loads(Path(out).read_text())
    assert "python -m grace.bench.eligibility_study --sids 7777" in result["command"]
    found: list[dict[str, Any]] = result["rows"]
    return found


def of(rows: list[dict[str, Any]], table: str, mode: str = "") -> list[dict[str, Any]]:
    return [row for row in rows if row["table"] == table and mode in ("", row.get("mode"))]


def test_one_row_describes_the_catalogue_and_its_knobs(rows: list[dict[str, Any]]) -> None:
    (row,) = of(rows, "catalogue")
    assert row["sids"] == 7777
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
    assert (everyone["bucket"], everyone["users"]) == ("all", 11)
    assert sum(row["users"] for row in buckets) == 11
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
    assert targeted["beams"][0] <= cd["beams"][0]


def test_partitions_admit_no_more_first_tokens_than_their_union(rows: list[dict[str, Any]]) -> None:
    union, *partitioned = (of(rows, "pass", mode)[0] for mode in ("union", "static", "dynamic"))
    for row in partitioned:
        assert row["beams"][0] <= union["beams"][0]
