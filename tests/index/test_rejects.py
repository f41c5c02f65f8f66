"""A rule that cannot be enforced is refused by name, counted and listed; its ad is never built."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.configs.errors import InputError, RejectedAdsError
from grace.index.builder import BuildSpec, build
from grace.index.storage import load_snapshot, versions
from grace.index.tables.data_folder import read_data_folder
from grace.index.targeting.schema import Attribute, TargetingSchema, TargetSet
from support.builds import silent, write_schema

SCHEMA = TargetingSchema(
    attributes=(
        Attribute("country", ("US", "NO")),
        Attribute("device", ("phone", "tv"), missing_passes_exclude=True),
    ),
    sets=(TargetSet("location", 256, 4, 64),),
    hash_seed=7,
    entities=("campaign",),
)
GOOD: dict[str, Any] = {"sid": [1, 2, 3], "ad_weight": 1.0}


def spec_of(folder: Path, rows: list[dict[str, Any]]) -> BuildSpec:
    """Rows name only what matters; the rest is good. The build goes without what no row names."""
    full = [{"ad_id": 100 + i} | GOOD | row for i, row in enumerate(rows)]
    names = dict.fromkeys(name for row in full for name in row)
    columns = {name: [row.get(name) for row in full] for name in names}
    pq.write_table(pa.table(columns), folder / "ads.parquet")
    write_schema(folder / "targeting.yaml", SCHEMA)
    return BuildSpec(
        read_data_folder(folder),
        root=folder / "snapshots",
        sid_space="s",
        vocab_sizes=(4, 4, 4),
        without=tuple(
            name
            for name in (*SCHEMA.names, *SCHEMA.entities)
            if not {name, f"{name}_exclude"} & names.keys()
        ),
    )


FAULTS: dict[str, tuple[dict[str, Any], str, str | None, str]] = {
    "negative entity": ({"campaign": -7}, "campaign", "-7", "negative"),
    "unknown value": ({"country": ["US", "ZZ"]}, "country", "ZZ", "schema lists"),
    "unknown exclude": ({"device_exclude": ["radio"]}, "device_exclude", "radio", "schema lists"),
    "null value": ({"country": ["US", None]}, "country", None, "null"),
    "reserved value": ({"location": ["us", "*"]}, "location", "*", "reserved"),
    "empty include": ({"country": []}, "country", None, "empty"),
    "empty difference": (
        {"country": ["US"], "country_exclude": ["US", "NO"]},
        "country_exclude",
        None,
        "nothing",
    ),
    "empty difference of one value": (
        {"location": ["a"], "location_exclude": ["a"]},
        "location_exclude",
        None,
        "nothing",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_ad_is_listed_with_its_place_and_reason_or_ends_the_build(
    tmp_path: Path, name: str
) -> None:
    row, column, value, reason = FAULTS[name]
    spec = spec_of(tmp_path, [{}, {}, row, {"location": ["a"]}])
    report = build(replace(spec, max_rejects=1), silent)
    assert report.reject_file is not None
    (listed,) = map(json.loads, report.reject_file.read_text().splitlines())
    assert (listed["row"], listed["column"], listed["value"]) == (3, column, value)
    assert listed["ad_id"] == row.get("ad_id", 102)
    assert reason in listed["reason"]
    snapshot = load_snapshot(spec.root)
    assert sorted(snapshot.ads.ad_ids.tolist()) == [100, 101, 103]
    assert (report.rejects, snapshot.facts.rejects) == (1, 1)
    with pytest.raises(RejectedAdsError) as caught:
        build(spec, silent)
    assert column in str(caught.value)
    assert reason in str(caught.value)
    assert versions(spec.root) == (1,)


def test_the_list_of_an_ended_build_claims_no_version_and_goes_with_the_next(
    tmp_path: Path,
) -> None:
    ended = spec_of(tmp_path, [{}, {"country": ["ZZ"]}])
    with pytest.raises(RejectedAdsError, match=r"ended\.rejects\.jsonl"):
        build(ended, silent)
    fixed = spec_of(tmp_path, [{}, {"country": ["US"]}])
    report = build(fixed, silent)
    assert (report.version, report.reject_file) == (1, None)
    assert not list(fixed.root.glob("*.jsonl"))


def test_where_no_reject_is_allowed_the_message_says_how_to_see_all(tmp_path: Path) -> None:
    faulty = {"country": ["ZZ"]}
    spec = replace(spec_of(tmp_path, [{}, *[faulty] * 5]), batch_rows=2)
    for limit, remedy in ((0, "`--max-rejects 1000000 --no-publish` lists all"), (2, "allow more")):
        with pytest.raises(RejectedAdsError) as caught:
            build(replace(spec, max_rejects=limit), silent)
        assert str(caught.value).endswith(remedy)
    report = build(replace(spec, max_rejects=1_000_000, publish=False), silent)
    assert (report.rejects, report.published) == (5, False)


def test_a_list_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, [{}, {"country": ["ZZ"]}])
    (spec.root / "ended.rejects.jsonl").mkdir(parents=True)
    with pytest.raises(InputError, match=r"rejects\.jsonl: cannot write the list of refused ads"):
        build(spec, silent)


def test_list_elements_under_a_null_are_not_read(tmp_path: Path) -> None:
    """Arrow allows a null list to cover elements; they belong to no row."""
    spec = spec_of(tmp_path, [{"country": ["US"]}, {}, {}])
    table = pq.read_table(spec.data.ads.files[0])
    offsets = pa.array([0, 1, 3, 4], pa.int32())
    values = pa.array(["US", "ZZ", "ZZ", "NO"])
    mask = pa.array([False, True, False])
    column = pa.ListArray.from_arrays(offsets, values, mask=mask)
    at = table.column_names.index("country")
    pq.write_table(table.set_column(at, "country", column), tmp_path / "ads.parquet")
    assert build(spec, silent).rejects == 0
