"""Imported SIDs join a team's ads table, by number or by the item's own name."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.configs.errors import InputError, RejectedAdsError
from grace.index.importers import ImportSpec
from support.imports import rejects_of, run_import

ITEMS = '{"7": ["<a_1>", "<b_2>"], "5": ["<a_3>", "<b_4>"], "6": ["<a_0>", "<b_0>"]}'
NAMED = """{"item_id": "B07", "token_ids": [1, 2]}
{"item_id": "é", "token_ids": [3, 4]}"""
TEXTS = pa.list_(pa.string())


def spec_of(folder: Path, ads: pa.Table, **changes: Any) -> ImportSpec:
    (folder / "x.json").write_text(ITEMS)
    (folder / "x.jsonl").write_text(NAMED)
    pq.write_table(ads, folder / "team.parquet", row_group_size=2)
    spec = ImportSpec(folder / "x.json", folder / "ads.parquet", "s", ads=folder / "team.parquet")
    return replace(spec, **changes)


def test_ads_get_their_sids_by_number_and_keep_their_columns(tmp_path: Path) -> None:
    countries = [["US"], None, [], ["NO", "US"]]
    ads = pa.table(
        {
            "country": pa.array(countries, TEXTS),
            "product": pa.array([5, 7, 5, 5], pa.int32()),
            "ad_id": pa.array([1, 2, 3, 4]),
        },
        metadata={"owner": "team"},
    )
    spec = spec_of(tmp_path, ads, key="product")
    report = run_import(spec)
    table = pq.read_table(spec.out)
    assert table.column_names == ["country", "product", "ad_id", "sid"]
    assert table["sid"].to_pylist() == [[3, 4], [1, 2], [3, 4], [3, 4]]
    assert table["country"].to_pylist() == countries
    assert table.schema.metadata[b"owner"] == b"team"
    assert table.schema.metadata[b"grace.vocab_sizes"] == b"4,5"
    assert (report.ads, report.items, report.sids, report.unused_items) == (4, 3, 2, 1)


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary("int32", pa.string())],
    ids=str,
)
def test_ads_get_their_sids_by_the_items_own_names(tmp_path: Path, kind: pa.DataType) -> None:
    names = pa.array(["é", None, "B07", "é", "b07"], pa.string()).cast(kind)
    ads = pa.table({"ad_id": pa.array([1, 2, 3, 4, 5]), "asin": names})
    spec = spec_of(tmp_path, ads, key="asin", max_rejects=2, source=tmp_path / "x.jsonl")
    report = run_import(spec)
    table = pq.read_table(spec.out)
    assert table["ad_id"].to_pylist() == [1, 3, 4]
    assert table["sid"].to_pylist() == [[3, 4], [1, 2], [3, 4]]
    listed = rejects_of(spec)
    assert [(line["row"], line["item_id"]) for line in listed] == [(2, None), (5, "b07")]
    assert report.rejects == {
        "asin: is null": 1,
        "asin: has no SID among the imported items": 1,
    }


VIEWS = {
    "text": pa.array(["a", None, "b"], pa.string_view()),
    "bytes": pa.array([b"a", None, b"b"], pa.binary_view()),
    "texts": pa.array([["a", "b"], None, []], pa.list_(pa.string_view())),
    "lists": pa.array([[["a"]], None, []], pa.large_list(pa.list_(pa.string_view()))),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_text_are_kept_as_plain_text(tmp_path: Path, name: str) -> None:
    ads = pa.table({"ad_id": pa.array([5, 8, 7]), "column": VIEWS[name]})
    spec = spec_of(tmp_path, ads, max_rejects=1)
    run_import(spec)
    table = pq.read_table(spec.out)
    assert table["column"].to_pylist() == [VIEWS[name][0].as_py(), VIEWS[name][2].as_py()]
    assert "view" not in str(table.schema.field("column").type)


def test_an_ad_without_a_sid_ends_the_import_unless_allowed(tmp_path: Path) -> None:
    ads = pa.table({"ad_id": pa.array([5, 8])})
    with pytest.raises(RejectedAdsError, match=r"team\.parquet row 2.*has no SID"):
        run_import(spec_of(tmp_path, ads))
    assert not (tmp_path / "ads.parquet").exists()
    assert run_import(spec_of(tmp_path, ads, max_rejects=1)).ads == 1


def test_the_error_for_items_with_names_and_ads_with_numbers_names_the_key_first(
    tmp_path: Path,
) -> None:
    spec = spec_of(tmp_path, pa.table({"ad_id": pa.array([5])}), source=tmp_path / "x.jsonl")
    with pytest.raises(RejectedAdsError, match=r"--key names the ads' column.* --id-map"):
        run_import(spec)


BAD_ADS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no key": ({"ad_id": pa.array([5])}, {"key": "asin"}, "column 'asin' is missing"),
    "no ad id": ({"asin": pa.array([5])}, {"key": "asin"}, "column 'ad_id' is missing"),
    "sid": ({"ad_id": pa.array([5]), "sid": pa.array([[1]])}, {}, "has a column 'sid' already"),
    "floats": ({"ad_id": pa.array([5.0])}, {}, "must be integers or text, got double"),
    "views in a struct": (
        {
            "ad_id": pa.array([5]),
            "made": pa.array([{"by": "x"}], pa.struct([("by", pa.string_view())])),
        },
        {},
        "column 'made' is of type struct<by: string_view>",
    ),
    "others": ({"ad_id": pa.array([1, 2])}, {"max_rejects": 9}, "none of its 2 ads has a SID"),
    "no ads": ({"ad_id": pa.array([], pa.int64())}, {}, "none of its 0 ads"),
}


@pytest.mark.parametrize("name", BAD_ADS)
def test_a_table_that_cannot_be_joined_is_refused_by_name(tmp_path: Path, name: str) -> None:
    columns, changes, message = BAD_ADS[name]
    with pytest.raises(InputError) as caught:
        run_import(spec_of(tmp_path, pa.table(columns), **changes))
    assert message in str(caught.value)
    assert "team.parquet" in str(caught.value)
    assert not (tmp_path / "ads.parquet").exists()


def test_a_damaged_ads_table_is_refused(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, pa.table({"ad_id": pa.array(range(5000))}))
    assert spec.ads is not None
    spec.ads.write_text("no")
    with pytest.raises(InputError, match="not a readable Parquet file"):
        run_import(spec)


def test_an_id_map_is_not_for_ads_that_name_items_themselves(tmp_path: Path) -> None:
    ads = pa.table({"ad_id": pa.array([1]), "asin": pa.array(["é"])})
    spec = spec_of(tmp_path, ads, key="asin", id_map=tmp_path / "map.parquet")
    with pytest.raises(InputError, match="drop --id-map"):
        run_import(spec)
