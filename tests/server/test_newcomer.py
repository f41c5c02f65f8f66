"""What `grace init` makes of a newcomer's table of ages and dates: who gets which ads."""

from pathlib import Path
from typing import Any

import pytest

from support.raw_tables import FORMATS, build_data, initialize, roles, write_table
from support.serving_files import ServingFiles, model_spec
from support.stage_cases import answer, load_cpu_pair, replies_of, request_batch

ADS: dict[str, dict[str, Any]] = {
    "adults": {"min_age": 18},
    "teens": {"min_age": 13, "max_age": 17},
    "up to 30": {"max_age": 30},
    "ended": {"start_date": "2024-01-01T00:00:00Z", "end_date": "2024-02-01T00:00:00Z"},
    "from 2024 on": {"start_date": "2024-01-15T12:00:00Z"},
    "everybody": {},
}
COLUMNS = ("min_age", "max_age", "start_date", "end_date")
IN_2024 = 1_705_320_000_000  # 2024-01-15, 12:00 UTC
WITHOUT_RANGES = {"from 2024 on", "everybody"}


@pytest.mark.parametrize("form", FORMATS)
def test_ads_outside_their_ages_and_dates_are_not_returned(
    form: str, serving_files: ServingFiles, tmp_path: Path
) -> None:
    titles, shop, model = [*ADS], tmp_path / "shop", model_spec()
    rows = [
        {
            "ad_id": number,
            "name": title,
            "semantic_ids": [1, 2, 3, 4],
            **{column: ADS[title].get(column) for column in COLUMNS},
        }
        for number, title in enumerate(titles)
    ]
    found = roles(initialize(write_table(tmp_path / f"ads.{form}", rows), shop))
    assert [found[column] for column in COLUMNS] == [
        ("range", "age_min"),
        ("range", "age_max"),
        ("flight", "flight_start"),
        ("flight", "flight_end"),
    ]
    sizes = ",".join(map(str, model.vocab_sizes))
    build_data(shop, "--sid-space", model.sid_space, "--vocab-sizes", sizes)
    pair = load_cpu_pair(shop / "snapshots", serving_files.checkpoint)

    def returned(request: dict[str, Any]) -> set[str]:
        (reply,) = replies_of(answer(request_batch(pair, [request], bucket=1))).values()
        return {titles[ad] for ad in reply.ad_ids}

    assert returned({"user": {"age": {"number": 17}}}) == WITHOUT_RANGES | {"teens", "up to 30"}
    assert returned({"user": {"age": {"number": 18}}}) == WITHOUT_RANGES | {"adults", "up to 30"}
    assert returned({"user": {}}) == WITHOUT_RANGES
    assert returned({"at": IN_2024}) == WITHOUT_RANGES | {"ended"}
    assert returned({"at": IN_2024 - 1}) == {"ended", "everybody"}
