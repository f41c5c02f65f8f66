"""`grace init` on tables as people have them: what it proposes is right, and builds as it is."""

import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from grace.index.storage import load_snapshot
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
            "material": draw.choice(["oak", "steel"]),
            "made": None,
        }
        for at in range(count)
    ]


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
        "age_min": ("left out", "age_min"),
        "material": ("left out", "material"),
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
    assert 'list_separator: "|"' in tables
    assert "id_map: ids.parquet" in tables
    targeting = (tmp_path / "shop" / "targeting.yaml").read_text()
    assert "#   age_min:  # integers, 2 values: no rule compares numbers" in targeting
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
        ["grace", "serve"],
    ]
    assert f"--data {out}" in commands[1]


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
    assert report["next"][-2] == f"grace train --data {tmp_path}/shop --out {tmp_path}/shop/model"


@pytest.mark.parametrize(
    ("column", "name", "why"),
    [
        ("visitor", "user_id", "no column has a usual name for the user (user_id, "),
        ("when", "timestamp_ms", "no column has a usual name for the time (timestamp_ms, "),
        ("thing", "ad_id", "no column holds ids of the ads table"),
    ],
)
def test_a_log_without_a_known_column_is_a_comment_to_fill_in(
    tmp_path: Path, column: str, name: str, why: str
) -> None:
    ads, shop = write_table(tmp_path / "ads.csv", shop_rows(63)), tmp_path / "shop"
    rows = [
        {"xyz" if name == column else name: value for name, value in row.items()}
        for row in log_rows(63)
    ]
    rows = [{name: value for name, value in row.items() if name != "session"} for row in rows]
    if column == "thing":
        rows = [{**row, "xyz": f"old {at}"} for at, row in enumerate(rows)]
    if column == "when":  # another column of times leaves it open which one it is
        rows = [{**row, "since": 1_600_000_000_000} for row in rows]
    log = write_table(tmp_path / "log.csv", rows)
    done = invoke_grace("init", "--ads", ads, "--log", log, "--out", shop)
    assert done.exit_code == 0, done.stderr
    said = f"`log:` in {shop}/tables.yaml is a comment: to train, fill in {name} and remove `# `\n"
    assert said in done.stdout
    assert "grace train" not in done.stdout
    assert read_data_folder(shop).log is None
    text = (shop / "tables.yaml").read_text()
    head, _, section = text.partition("# log:\n")
    stub, ignored, rest = section.partition("# Ignored columns")
    assert f"#     {name}:  # {why}" in stub
    filled = "\n".join(line.removeprefix("# ") for line in stub.splitlines())
    filled = filled.replace(f"{name}:", f"{name}: xyz")
    (shop / "tables.yaml").write_text(f"{head}log:\n{filled}\n{ignored}{rest}")
    found = read_data_folder(shop).log
    assert found is not None
    assert found.columns[name] == "xyz"
    assert {"user_id", "ad_id", "timestamp_ms"} <= found.columns.keys()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("user", "ad", "time", "factor", "unit"),
    [
        ("user", "ad", "time", 1, "s"),
        ("Member", "item", "ms", 1000, "ms"),
        ("uid", "Item ID", "ts", 10**6, "us"),
        ("member_id", "sku", "Clicked At", 10**9, "ns"),
        ("uid", "sku", "Uhrzeit", 1, "s"),  # found by its values
    ],
)
def test_usual_names_and_units_of_a_log_are_found(
    tmp_path: Path, form: str, user: str, ad: str, time: str, factor: int, unit: str
) -> None:
    ads = write_table(tmp_path / "ads.parquet", shop_rows(63))
    rows = [
        {user: f"u{at % 7}", ad: f"B{at % 63:05}", time: (1_700_000_000 + at) * factor}
        for at in range(99)
    ]
    log = write_table(tmp_path / f"log.{form}", rows)
    report = initialize(ads, tmp_path / "shop", "--log", log)
    found = read_data_folder(tmp_path / "shop").log
    assert report["log_lacks"] == []
    assert found is not None
    assert dict(found.columns) == {"user_id": user, "ad_id": ad, "timestamp_ms": time}
    assert found.time_unit == unit


def test_two_columns_of_times_are_left_to_the_reader(tmp_path: Path) -> None:
    ads = write_table(tmp_path / "ads.parquet", shop_rows(63))
    rows = [{"user": "u1", "ad": "B00001", "begin": 1_700_000_000, "end": 1_700_000_009}]
    report = initialize(ads, tmp_path / "shop", "--log", write_table(tmp_path / "log.csv", rows))
    assert report["log_lacks"] == ["timestamp_ms"]


@pytest.mark.parametrize(
    ("form", "born"),
    [*((form, "1955-01-02") for form in FORMATS), ("parquet", datetime(1955, 1, 2, tzinfo=UTC))],
)
def test_times_before_1990_are_not_those_of_a_log(
    tmp_path: Path, form: str, born: str | datetime
) -> None:
    ads = write_table(tmp_path / "ads.parquet", shop_rows(63))
    rows: list[Row] = [{"user": "u1", "ad": f"B{at:05}", "born": born} for at in range(63)]
    log = write_table(tmp_path / f"log.{form}", rows)
    assert initialize(ads, tmp_path / "a", "--log", log)["log_lacks"] == ["timestamp_ms"]
    rows = [{**row, "when_s": 1_780_000_000} for row in rows]
    initialize(ads, tmp_path / "b", "--log", write_table(tmp_path / f"log.{form}", rows))
    found = read_data_folder(tmp_path / "b").log
    assert found is not None
    assert found.theirs("timestamp_ms") == "when_s"


def test_times_that_fit_no_single_unit_are_reported(tmp_path: Path) -> None:
    ads = write_table(tmp_path / "ads.parquet", shop_rows(63))
    rows = [{"user": "u1", "ad": "B00001", "ts": at} for at in (1_700_000_000, 1_700_000_000_000)]
    log = write_table(tmp_path / "log.parquet", rows)
    report = initialize(ads, tmp_path / "shop", "--log", log)
    assert "time_unit" not in (tmp_path / "shop" / "tables.yaml").read_text()
    assert "no unit puts them all between 1990 and 2100" in report["log"][2]["reason"]


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
        (repeat_id, "column 'SKU' repeats 'B00003', in rows 4 and 62; an ad's id is there once"),
        (remove_id, "column 'SKU' has no value in row 10"),
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
    assert "column 'id' repeats 20, in rows 21 and 22;" in error


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
