"""`grace init` on tables as people have them: what it proposes is right, and builds as it is."""

import json
import random
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.index.storage import load_snapshot
from grace.index.tables.data_folder import read_data_folder
from grace.index.targeting.schema import TargetingSchema, load_schema
from support.in_process import invoke_grace
from support.raw_tables import FORMATS, Row, build_data, write_codebook, write_table

Roles = Mapping[str, tuple[str, str | None]]


def shop_rows(count: int) -> list[Row]:
    draw = random.Random(7)
    countries = ["US", "CA", "NO", "true", "null"]
    return [
        {
            "SKU": f"B{at:05}",
            "Name": f"Lamp {at}, red",
            "Country Code": draw.choice([None, draw.sample(countries, 2)]),
            "excludedCountries": draw.choice([None, ["SE", "US"]]),
            "Interests": draw.choice([None, ["golf", "tea"], ["chess"]]),
            "city": None if at % 3 else f"Ålesund {at}",
            "age group": draw.choice([None, "18-24", "25-34"]),
            "price": round(draw.uniform(1, 99), 2),
            "bid": round(draw.uniform(0, 9), 2),
            "campaignId": draw.choice([None, draw.randint(1, 20)]),
            "is_new": draw.random() < 0.5,
            "age_min": draw.choice([None, 18, 21]),
            "brand": draw.choice(["Acme", "Hokari"]),
            "made": None,
        }
        for at in range(count)
    ]


def initialize(ads: Path, out: Path, *options: str | Path) -> dict[str, Any]:
    done = invoke_grace("init", "--ads", ads, "--out", out, "--json", *options)
    assert done.exit_code == 0, done.stderr
    return dict(json.loads(done.stdout))


def roles(report: Mapping[str, Any]) -> Roles:
    return {each["column"]: (each["role"], each["name"]) for each in report["ads"]}


def refused(*arguments: str | Path) -> str:
    done = invoke_grace("init", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def schema_of(folder: Path) -> TargetingSchema:
    return load_schema(folder / "targeting.yaml")


@pytest.mark.parametrize("form", FORMATS)
def test_a_shop_s_table_becomes_a_data_folder_that_builds_as_it_is(
    tmp_path: Path, form: str
) -> None:
    rows, out = shop_rows(300), tmp_path / "shop"
    ads = write_table(tmp_path / "raw" / f"ads.{form}", rows)
    report = initialize(ads, out)
    found = roles(report)
    assert found == {
        "SKU": ("ad_id", "ad_id"),
        "Name": ("title", "title"),
        "Country Code": ("attribute", "country_code"),
        "excludedCountries": ("exclude list", "country_code_exclude"),
        "Interests": ("set", "interests"),
        "city": ("set", "city"),
        "age group": ("attribute", "age_group"),
        "price": ("ignored", None),
        "bid": ("ad_weight", "ad_weight"),
        "campaignId": ("entity", "campaign_id"),
        "is_new": ("ignored", None),
        "age_min": ("ignored", None),
        "brand": ("ignored", None),
        "made": ("ignored", None),
    }
    schema = schema_of(out)
    values = {each.name: each.values for each in schema.attributes}
    assert values["country_code"] == ("CA", "NO", "SE", "US", "null", "true")
    data = read_data_folder(out)
    assert Path(data.ads.files[0]).resolve() == ads.resolve()
    write_codebook(out / "codebook", [row["SKU"] for row in rows])
    built = build_data(out)
    snapshot = load_snapshot(built["path"])
    assert (snapshot.ads.num_ads, snapshot.entities[0].name) == (300, "campaign_id")
    stated = {
        name: sum(bool(row[column]) for row in rows)
        for column, name in (
            ("Interests", "interests"),
            ("city", "city"),
            ("age group", "age_group"),
        )
    }
    stated["country_code"] = sum(
        bool(row["Country Code"] or row["excludedCountries"]) for row in rows
    )
    assert built["coverage"]["with_rule"] == {name: stated[name] / 300 for name in schema.names}
    assert "made" in built["ignored_columns"]


def test_each_line_says_why_and_ignored_columns_are_listed(tmp_path: Path) -> None:
    ads = write_table(tmp_path / "ads.csv", shop_rows(63))
    initialize(ads, tmp_path / "shop")
    tables = (tmp_path / "shop" / "tables.yaml").read_text()
    assert "    ad_id: SKU  # 63 different values, one per row\n" in tables
    assert "#   age_min: integers, 2 values: no rule compares numbers" in tables
    assert 'list_separator: "|"' in tables
    assert "id_map: ids.parquet" in tables
    targeting = (tmp_path / "shop" / "targeting.yaml").read_text()
    assert "  age_group:  # 2 values in 63 rows: an attribute\n" in targeting
    assert "  interests:  # 3 values in 63 rows, of which a user may have several" in targeting


def test_it_prints_its_decisions_and_the_next_commands(tmp_path: Path) -> None:
    ads = write_table(tmp_path / "ads.csv", shop_rows(63))
    log = write_table(tmp_path / "log.csv", log_rows(63))
    out = tmp_path / "shop"
    done = invoke_grace("init", "--ads", ads, "--log", log, "--out", out)
    assert done.exit_code == 0, done.stderr
    for text in ("Country Code", "country_code_exclude", "The log", "users", "timestamp_ms"):
        assert text in done.stdout
    commands = done.stdout.partition("next:\n")[2].splitlines()
    assert [command.split()[:2] for command in commands] == [
        ["grace", "sids"],
        ["grace", "build"],
        ["grace", "train"],
    ]
    assert f"--data {out}" in commands[1]


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
    ads = write_table(tmp_path / "ads.csv", one_column(values))
    assert roles(initialize(ads, tmp_path / "shop"))["x"] == (role, "x")
    write_codebook(tmp_path / "shop" / "codebook", list(range(5 * count)))
    assert build_data(tmp_path / "shop")["coverage"]["with_rule"] == {"x": 1.0}


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
        *("country_code", "country_code_2", "country_code_3", "grosse", "column_1", "c_2nd"),
        *("ad_2", "x" * 50),
    ]
    write_codebook(tmp_path / "shop" / "codebook", list(range(30)))
    assert set(build_data(tmp_path / "shop")["coverage"]["with_rule"].values()) == {1.0}


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


@pytest.mark.parametrize(
    ("ignored", "message"),
    [
        ("vektor", "column 'vektor', named by ads.ignore, is missing; it has: id, vector, "),
        ("country", "column 'country' is to be ignored, and is one that a build reads"),
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


def log_rows(ads: int) -> list[Row]:
    return [
        {
            "session": f"s{at % 7}",
            "visitor": f"u{at % 11}",
            "other": f"B{at:07}",
            "thing": f"B{at % ads:05}",
            "when": 1_700_000_000_000 + at,
            "type": at % 3,
            "Country Code": "US",
        }
        for at in range(200)
    ]


@pytest.mark.parametrize("form", FORMATS)
def test_the_log_s_ads_are_found_by_their_values(tmp_path: Path, form: str) -> None:
    ads = write_table(tmp_path / "ads.parquet", shop_rows(63))
    log = write_table(tmp_path / f"log.{form}", log_rows(63))
    report = initialize(ads, tmp_path / "shop", "--log", log)
    found = read_data_folder(tmp_path / "shop").log
    assert found is not None
    assert dict(found.columns) == {
        "user_id": "visitor",
        "ad_id": "thing",
        "timestamp_ms": "when",
        "action": "type",
        "country_code": "Country Code",
    }
    assert report["next"][-1] == f"grace train --data {tmp_path}/shop --out {tmp_path}/shop/model"


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("visitor", "no column of the log is named like the user (user_id, "),
        ("when", "no column of the log is named like the time (timestamp_ms, "),
        ("thing", "no column of the log holds ids of the ads table; it has: visitor, other, "),
    ],
)
def test_a_log_without_a_column_is_refused_by_name(
    tmp_path: Path, column: str, message: str
) -> None:
    ads = write_table(tmp_path / "ads.csv", shop_rows(63))
    rows = [
        {name: value for name, value in row.items() if name not in (column, "session")}
        for row in log_rows(63)
    ]
    log = write_table(tmp_path / "log.csv", rows)
    assert message in refused("--ads", ads, "--log", log, "--out", tmp_path / "shop")
    assert not (tmp_path / "shop").exists()


Change = Callable[[list[dict[str, Any]]], None]


def repeat_id(rows: list[dict[str, Any]]) -> None:
    rows[61]["SKU"] = rows[3]["SKU"]


def remove_id(rows: list[dict[str, Any]]) -> None:
    rows[9]["SKU"] = None


def rename_id(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        row["Artikel"] = row.pop("SKU")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (repeat_id, "column 'SKU' repeats 'B00003', in rows 3 and 61; an ad's id is there once"),
        (remove_id, "column 'SKU' has no value in row 9"),
        (rename_id, "no column is named like an id (ad_id, id, sku, item_id ...): name it with"),
    ],
)
def test_ids_that_repeat_or_are_missing_are_refused_with_the_columns_there_are(
    tmp_path: Path, form: str, change: Change, message: str
) -> None:
    rows = [dict(row) for row in shop_rows(63)]
    change(rows)
    ads = write_table(tmp_path / f"ads.{form}", rows)
    error = refused("--ads", ads, "--out", tmp_path / "shop")
    assert message in error
    assert "the table has: " in error
    assert "Country Code, excludedCountries" in error


def test_ids_that_repeat_in_two_files_are_refused(tmp_path: Path) -> None:
    for name, first in (("one", 0), ("two", 20)):
        rows = [{"id": first + at, "country": "US"} for at in range(21)]
        write_table(tmp_path / "ads" / f"{name}.parquet", rows)
    error = refused("--ads", tmp_path / "ads", "--out", tmp_path / "shop")
    assert "column 'id' repeats 20, in rows 20 and 21;" in error


def test_another_column_of_ids_may_be_named(tmp_path: Path) -> None:
    rows = [{"id": at % 2, "number": f"0{at}", "country": "US"} for at in range(30)]
    ads = write_table(tmp_path / "ads.csv", rows)
    found = roles(initialize(ads, tmp_path / "shop", "--id", "number"))
    assert found["number"] == ("ad_id", "ad_id")
    assert read_data_folder(tmp_path / "shop").id_map == tmp_path / "shop" / "ids.parquet"
    error = refused("--ads", ads, "--out", tmp_path / "more", "--id", "nummer")
    assert "--id nummer: no such column; the table has: id, number, country" in error


@pytest.mark.parametrize("name", ["tables.yaml", "targeting.yaml"])
def test_an_existing_file_is_refused_by_name_and_kept(tmp_path: Path, name: str) -> None:
    ads = write_table(tmp_path / "ads.csv", shop_rows(63))
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / name).write_text("mine")
    error = refused("--ads", ads, "--out", tmp_path / "shop")
    assert f"shop/{name}: is already there" in error
    assert [path.name for path in (tmp_path / "shop").iterdir()] == [name]
    assert (tmp_path / "shop" / name).read_text() == "mine"


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ads.csv").write_text("id,country\n")
    error = refused("--ads", tmp_path / "ads.csv", "--out", tmp_path / "shop")
    assert "the ads table has no rows" in error
