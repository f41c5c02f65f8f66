"""What `grace init` makes of single columns: values, names, types, lists; each result builds."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.index.tables.data_folder import read_data_folder
from grace.index.targeting.schema import TargetingSchema, load_schema
from support.in_process import invoke_grace
from support.raw_tables import (
    FORMATS,
    Row,
    build_data,
    initialize,
    roles,
    write_codebook,
    write_table,
)


def schema_of(folder: Path) -> TargetingSchema:
    return load_schema(folder / "targeting.yaml")


def one_column(values: Sequence[object], name: str = "x") -> list[Row]:
    return [{"id": at, name: value} for at, value in enumerate(values)]


def test_a_value_of_the_last_row_of_many_is_in_the_schema(tmp_path: Path) -> None:
    values = [("a", "b", None)[at % 3] for at in range(70_001)]
    ads = write_table(tmp_path / "ads.csv", one_column([*values, "last"], "segment_x"))
    initialize(ads, tmp_path / "shop")
    names = schema_of(tmp_path / "shop")
    assert [each.name for each in names.sets] == ["segment_x"]
    ads = write_table(tmp_path / "ads.csv", one_column([*values, "last"], "country"))
    initialize(ads, tmp_path / "shop2")
    assert schema_of(tmp_path / "shop2").attributes[0].values == ("a", "b", "last")


@pytest.mark.parametrize(("count", "role"), [(1, "attribute"), (64, "attribute"), (65, "set")])
def test_more_than_64_values_make_a_set(tmp_path: Path, count: int, role: str) -> None:
    values = [f"v{at % count}" for at in range(5 * count)]
    ads = write_table(tmp_path / "ads.csv", one_column(values, "country"))
    assert roles(initialize(ads, tmp_path / "shop"))["country"] == (role, "country")
    write_codebook(tmp_path / "shop" / "codebook", list(range(5 * count)))
    assert build_data(tmp_path / "shop")["coverage"]["with_rule"] == {"country": 1.0}


def test_5000_values_are_a_set_and_own_texts_of_each_row_are_none(tmp_path: Path) -> None:
    rows = [
        {"id": at, "place": f"p{at % 5000}", "note": f"n{at}", "city": f"c{at}"}
        for at in range(10_000)
    ]
    ads = write_table(tmp_path / "ads.parquet", rows)
    found = roles(initialize(ads, tmp_path / "shop"))
    assert found["place"] == ("set", "place")
    assert found["note"] == ("ignored", None)
    assert found["city"] == ("set", "city"), "what users are is a rule"


def test_names_become_valid_and_stay_different(tmp_path: Path) -> None:
    names = ["Country Code", "country_code", "CountryCode", "Größe", "国", "2nd", "ad", "x" * 99]
    rows = [{"sku": at, **dict.fromkeys(names, "ab"[at % 2])} for at in range(30)]
    ads = write_table(tmp_path / "ads.csv", rows)
    found = roles(initialize(ads, tmp_path / "shop", "--id", "sku"))
    assert [found[name][1] for name in names] == [
        *("country_code_2", "country_code", "country_code_3", "grosse", "column_1", "c_2nd"),
        *("ad_2", "x" * 50),
    ]
    write_codebook(tmp_path / "shop" / "codebook", list(range(30)))
    assert set(build_data(tmp_path / "shop")["coverage"]["with_rule"].values()) == {1.0}


def test_a_rule_gets_no_name_of_an_ignored_column(tmp_path: Path) -> None:
    """A build would read that column for the rule, or refuse it."""
    rows = [
        {
            "id": at,
            "country": f"2024-01-{at % 28 + 1:02}",
            "country_exclude": ["", "NO", "SE"][at % 3],
            "region": None,
            "Region": ["", "north"][at % 2],
        }
        for at in range(63)
    ]
    ads, shop = write_table(tmp_path / "ads.csv", rows), tmp_path / "shop"
    found = roles(initialize(ads, shop))
    assert found["country"] == ("left out", None)
    assert found["region"] == ("set", "region")
    assert found["country_exclude"] == ("exclude list", "country_2_exclude")
    assert found["Region"] == ("attribute", "region_2")
    write_codebook(shop / "codebook", list(range(63)))
    built = build_data(shop, "--without", "region")
    assert built["coverage"]["with_rule"] == {
        "country_2": 42 / 63,
        "region": 0.0,
        "region_2": 31 / 63,
    }
    assert built["ignored_columns"] == ["country"]


def test_columns_of_no_rule_that_hold_several_values_are_named_to_ignore(tmp_path: Path) -> None:
    rows = [
        {"id": at, "vector": [0.5, 0.1], "maker": {"name": "x"}, "country": ["US"]}
        for at in range(9)
    ]
    ads = write_table(tmp_path / "ads.parquet", rows)
    out = tmp_path / "shop"
    initialize(ads, out)
    assert read_data_folder(out).ads.ignore == ("vector", "maker")
    write_codebook(out / "codebook", list(range(9)))
    assert build_data(out)["ignored_columns"] == ["maker", "vector"]


def test_a_column_that_is_left_out_becomes_a_rule_as_the_files_say(tmp_path: Path) -> None:
    rows = [
        {"id": at, "Colour": "red", "tags": ["a", "b"], "on_request": "yes" if at % 2 else "no"}
        for at in range(9)
    ]
    ads, out = write_table(tmp_path / "ads.jsonl", rows), tmp_path / "shop"
    found = roles(initialize(ads, out))
    assert found["Colour"] == ("left out", "colour")
    assert found["tags"] == ("left out", "tags")
    printed = invoke_grace("init", "--ads", ads, "--out", tmp_path / "again").stdout
    assert "LEFT OUT, so these columns limit nobody: 2" in printed
    assert "remove the `# ` before its lines and their heading in targeting.yaml" in printed
    write_codebook(out / "codebook", list(range(9)))
    assert build_data(out)["coverage"]["for_everybody"] == 1.0
    for name in ("tables.yaml", "targeting.yaml"):
        text = (out / name).read_text().replace("  ignore: [tags]", "")
        text = re.sub(r"(?m)^# (?=  +(colour|tags|values)|attributes:)", "", text)
        (out / name).write_text(text)
    assert build_data(out)["coverage"]["with_rule"] == {"colour": 1.0, "tags": 1.0}


@pytest.mark.parametrize(
    ("form", "note"),
    [
        ("csv", "; ' US' has blanks around it: a build reads 'US'"),
        ("parquet", "; ' US' has blanks around it: remove the blanks from the table, since it is"),
    ],
)
def test_blanks_around_values_and_names_are_reported(tmp_path: Path, form: str, note: str) -> None:
    rows = [{"id": at, "os ": "ios", "country": [" US", "US", "CA"][at % 3]} for at in range(9)]
    ads = write_table(tmp_path / f"ads.{form}", rows)
    report = initialize(ads, tmp_path / "shop")
    reasons = {each["column"]: each["reason"] for each in report["ads"]}
    assert note in reasons["country"]
    assert reasons["os "].endswith("; its name has blanks around it: 'os '")
    write_codebook(tmp_path / "shop" / "codebook", list(range(9)))
    assert build_data(tmp_path / "shop")["coverage"]["with_rule"] == {"os": 1.0, "country": 1.0}


@pytest.mark.parametrize(
    ("ids", "numbered"),
    [
        (pa.array([7, 5, 9], pa.uint8()), False),
        (pa.array([7, -5, 9]), True),
        (pa.array(["7", "5", "9"]), True),
        (pa.array(["7", "05", "9"]).dictionary_encode(), True),
    ],
    ids=["uint8", "negative", "digits", "dictionary"],
)
def test_columns_of_every_arrow_type_are_proposed_and_built(
    tmp_path: Path, ids: pa.Array, numbered: bool
) -> None:
    texts = pa.array([["a", "b"], None, ["b"]], pa.large_list(pa.large_string()))
    columns = {
        "id": ids,
        "country": pa.array(["US", None, "CA"]).dictionary_encode(),
        "device": texts,
        "language": pa.array([["en"], ["de"], None], pa.list_(pa.string(), 1)),
        "zip": pa.array([1234, 99, None], pa.int16()),
        "segments": pa.array([[1, 2], None, [3]], pa.list_(pa.int32())),
        "os_exclude": pa.array(["ios", None, None]),
        "is_exclude": pa.array([True, None, False]),
        "day": pa.array([1, 2, 3], pa.date32()),
        "price": pa.array([1, 2, None], pa.decimal128(9, 2)),
        "weight": pa.array([0.5, float("nan"), 1.0]),
        "raw": pa.array([b"x", b"y", None]),
        "nothing": pa.nulls(3),
        "parts": pa.array([[{"x": 1}], None, []]),
    }
    pq.write_table(pa.table(columns), tmp_path / "ads.parquet")
    out = tmp_path / "shop"
    found = roles(initialize(tmp_path / "ads.parquet", out))
    assert {name: role for name, (role, _) in found.items() if role != "ignored"} == {
        "id": "ad_id",
        "country": "attribute",
        "device": "attribute",
        "language": "attribute",
        "zip": "attribute",
        "segments": "set",
        "os_exclude": "exclude list",
        "is_exclude": "exclude list",
    }
    assert (read_data_folder(out).id_map is not None) == numbered
    assert read_data_folder(out).ads.ignore == ("parts",)
    plain = ids.dictionary_decode() if pa.types.is_dictionary(ids.type) else ids
    write_codebook(out / "codebook", [str(each) for each in plain.to_pylist()])
    shares = build_data(out)["coverage"]["with_rule"]
    assert {name: round(3 * share) for name, share in shares.items()} == {
        "country": 2,
        "device": 2,
        "language": 2,
        "zip": 2,
        "os": 1,
        "is": 2,
        "segments": 2,
    }


@pytest.mark.parametrize(
    ("ignored", "message"),
    [
        ("vektor", "column 'vektor', named by ads.ignore, is missing; it has: id, vector, "),
        ("country", "column 'country' is in ads.ignore, but a build reads it"),
    ],
)
def test_only_a_column_that_is_there_and_no_rule_can_be_ignored(
    tmp_path: Path, ignored: str, message: str
) -> None:
    rows = [{"id": at, "vector": [0.5], "country": "US"} for at in range(9)]
    out = tmp_path / "shop"
    initialize(write_table(tmp_path / "ads.parquet", rows), out)
    write_codebook(out / "codebook", list(range(9)))
    text = (out / "tables.yaml").read_text()
    (out / "tables.yaml").write_text(text.replace("ignore: [vector]", f"ignore: [{ignored}]"))
    done = invoke_grace("build", "--data", out, "--root", out / "snapshots")
    assert (done.exit_code, message in done.stderr) == (2, True)


def test_a_list_without_values_is_built_without_until_it_has_some(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": [1, 2, 3],
            "country": [["US"], None, []],
            "audience": pa.nulls(3, pa.list_(pa.string())),
        }
    )
    pq.write_table(table, tmp_path / "ads.parquet")
    out = tmp_path / "shop"
    report = initialize(tmp_path / "ads.parquet", out)
    assert report["next"][1].endswith("/snapshots --without audience")
    write_codebook(out / "codebook", [1, 2, 3])
    assert build_data(out, "--without", "audience", "--max-rejects", "1")["ads"] == 2


def test_unknown_is_what_a_user_without_a_value_has(tmp_path: Path) -> None:
    ads = write_table(tmp_path / "ads.csv", one_column(["male", "unknown"] * 9, "gender"))
    initialize(ads, tmp_path / "shop")
    assert schema_of(tmp_path / "shop").attributes[0].missing == "unknown"


def test_cells_with_semicolons_are_lists_and_prose_with_commas_is_none(tmp_path: Path) -> None:
    rows = [
        {"id": at, "country": "US;CA" if at % 2 else "CA", "slogan": f"cheap, {at}, red"}
        for at in range(30)
    ]
    ads = write_table(tmp_path / "ads.csv", rows)
    initialize(ads, tmp_path / "shop")
    assert read_data_folder(tmp_path / "shop").ads.list_separator == ";"
    assert schema_of(tmp_path / "shop").attributes[0].values == ("CA", "US")


@pytest.mark.parametrize("form", FORMATS)
def test_a_column_of_sids_needs_no_codebook(tmp_path: Path, form: str) -> None:
    rows = [
        {"item_id": at, "semantic_ids": [at % 5, at % 3], "country": ["US", "CA"]}
        for at in range(20)
    ]
    ads = write_table(tmp_path / f"ads.{form}", rows)
    out = tmp_path / "shop"
    report = initialize(ads, out)
    assert roles(report)["semantic_ids"] == ("sid", "sid")
    (command,) = report["next"]
    assert command.endswith("--sid-space shop --vocab-sizes 5,3")
    assert build_data(out, *shlex.split(command)[6:])["sids"] == 15


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("sid", ["s1", "s2"], "column 'sid': a build reads Semantic IDs from it, lists of"),
        ("ad_weight", ["low", "high"], "column 'ad_weight': a build reads finite numbers from it"),
        (
            "ad_weight",
            [1.5, float("nan")],
            "but it holds numbers and NaN; correct it, or rename it",
        ),
    ],
)
def test_a_column_of_our_name_that_a_build_would_refuse_is_refused_by_name(
    tmp_path: Path, column: str, values: list[object], message: str
) -> None:
    ads = write_table(tmp_path / "ads.parquet", one_column(values, column))
    done = invoke_grace("init", "--ads", ads, "--out", tmp_path / "shop")
    assert (done.exit_code, message in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("form", FORMATS)
def test_texts_that_look_like_numbers_or_times_are_the_same_in_every_format(
    tmp_path: Path, form: str
) -> None:
    """Only a weight and an entity need a column of numbers; the columns of a CSV have no types."""
    rows = [
        {
            "sku": f"S{at}",
            "launched": f"2024-01-{at % 9 + 1:02}",
            "height": f"{at % 5}.5",
            "stars": str(at % 5),
            "fresh": ["true", "false"][at % 2],
            "nothing": "",
            "zip": f"0{at % 7}",
            "CPC Bid": f"{at % 3}.25",
            "position_id": str(at % 4),
            "Ad Headline": f"Lamp {at}",
        }
        for at in range(63)
    ]
    out = tmp_path / "shop"
    report = initialize(write_table(tmp_path / f"ads.{form}", rows), out)
    found = roles(report)
    numbers = {
        "CPC Bid": ("ad_weight", "ad_weight") if form == "csv" else ("ignored", None),
        "position_id": ("entity", "position_id") if form == "csv" else ("ignored", None),
    }
    assert found == {
        "sku": ("ad_id", "ad_id"),
        **dict.fromkeys(("launched", "height", "stars", "fresh", "nothing"), ("ignored", None)),
        "zip": ("attribute", "zip"),
        **numbers,
        "Ad Headline": ("title", "title"),
    }
    reasons = {each["column"]: each["reason"] for each in report["ads"]}
    if form == "csv":
        assert reasons["CPC Bid"].startswith("numbers, 0.25 to 2.25: among ads of equal score")
    else:
        assert reasons["CPC Bid"] == "numbers as text: cast the column to numbers to use it"
    write_codebook(out / "codebook", [row["sku"] for row in rows])
    built = build_data(out)
    assert built["coverage"]["with_rule"] == {"zip": 1.0}
    assert {"sku", "zip", "Ad Headline", *built["ignored_columns"]} >= set(rows[0]) - {*numbers}
    assert "Ad Headline" not in built["ignored_columns"]


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_ids_as_texts_of_digits_are_numbered(tmp_path: Path, form: str) -> None:
    rows = [{"id": f"{at}.5" if at % 2 else f"{at}", "country": "US"} for at in range(9)]
    initialize(write_table(tmp_path / f"ads.{form}", rows), tmp_path / "shop")
    assert read_data_folder(tmp_path / "shop").id_map is not None


def test_the_reason_names_values_that_people_may_mean_in_another_way(tmp_path: Path) -> None:
    rows = [
        {
            "id": at,
            "country": ["US", "NO", None][at % 3],
            "country_exclude": ["us", None][at % 2],
            "device": ["phone", "tv"][at % 2],
            "os": ["ios", "All"][at % 2],
            "interests": ["Golf", "golf", "TEA", "tea"][at % 4],
        }
        for at in range(63)
    ]
    report = initialize(write_table(tmp_path / "ads.csv", rows), tmp_path / "shop")
    reasons = {each["column"]: each["reason"] for each in report["ads"]}
    assert reasons["country"].endswith(
        "; 'US' and 'us' differ only in case: they are different values"
    )
    assert "; 'Golf' and 'golf' (and 1 more such) differ only in case" in reasons["interests"]
    assert "differ" not in reasons["device"]
    assert reasons["os"].endswith("; 'All' is a value like others: an empty cell means everybody")
    targeting = (tmp_path / "shop" / "targeting.yaml").read_text()
    assert "'US' and 'us' differ only in case" in targeting
