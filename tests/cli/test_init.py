"""`grace init`: what it prints and writes, what it refuses, and the tables of every Arrow type."""

import re
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.index.tables.data_folder import read_data_folder
from support.in_process import complaint, invoke_grace
from support.raw_tables import (
    FORMATS,
    Row,
    build_data,
    initialize,
    roles,
    write_codebook,
    write_table,
)


def shop_rows() -> list[dict[str, Any]]:
    return [{"SKU": f"B{at:05}", "Country Code": ["US", "CA", None][at % 3]} for at in range(63)]


def log_rows() -> list[Row]:
    return [
        {"visitor": f"u{at % 11}", "thing": f"B{at % 63:05}", "when": 1_700_000_000_000 + at}
        for at in range(200)
    ]


def test_it_prints_its_files_and_the_next_commands(tmp_path: Path) -> None:
    ads, out = write_table(tmp_path / "ads.csv", shop_rows()), tmp_path / "shop"
    log = write_table(tmp_path / "log.csv", log_rows())
    done = invoke_grace("init", "--ads", ads, "--log", log, "--out", out)
    assert done.exit_code == 0, done.stderr
    assert f"wrote {out}/tables.yaml: read it" in done.stdout
    commands = done.stdout.partition("next:\n")[2].splitlines()
    assert [command.split()[1] for command in commands] == ["sids", "build", "train", "serve"]
    assert f"--data {out}" in commands[1]
    assert "    ad_id: SKU  # 63 different values" in (out / "tables.yaml").read_text()


@pytest.mark.parametrize(
    ("column", "rule"),
    [
        *(("rule", "country = CA"), ("Rules", "country in [US, CA]")),
        *(("clauses", [{"country": ["CA"]}]), ("Rule", [{"country_exclude": ["CA"]}])),
        ("country_all", [["US"], ["CA", "NO"]]),
    ],
)
def test_clauses_and_groups_are_rules_as_they_are(tmp_path: Path, column: str, rule: Any) -> None:
    rows = [{"ad_id": at, "country": ["US"], column: None} for at in range(20)]
    rows += [{"ad_id": at, "country": None, column: rule} for at in range(20, 25)]
    ads, out = write_table(tmp_path / "ads.jsonl", rows), tmp_path / "shop"
    done = invoke_grace("init", "--ads", ads, "--out", out)
    assert (done.exit_code, "LEFT OUT" in done.stdout) == (0, False), done
    found = (out / "tables.yaml").read_text()
    assert ("a build reads it as rules" in found) == (column != "country_all")
    assert "ignore" not in found
    text = (out / "targeting.yaml").read_text().replace("[US]", "[CA, US]")
    (out / "targeting.yaml").write_text(text)
    write_codebook(out / "codebook", [row["ad_id"] for row in rows])
    assert build_data(out)["coverage"]["with_rule"] == {"country": 1.0}


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
    ads, shop = write_table(tmp_path / "ads.csv", shop_rows()), tmp_path / "shop"
    rows = [{**row, "xyz": row[column]} for row in log_rows()]
    for at, row in enumerate(rows):
        del row[column]
        if column == "thing":
            row["xyz"] = f"old {at}"
        if column == "when":  # another column of times leaves it open which one it is
            row["since"] = 1_600_000_000_000
    log = write_table(tmp_path / "log.csv", rows)
    done = invoke_grace("init", "--ads", ads, "--log", log, "--out", shop)
    assert done.exit_code == 0, done.stderr
    said = f"`log:` in {shop}/tables.yaml is a comment: to train, fill in {name} and remove `# `\n"
    assert said in done.stdout
    assert "grace train" not in done.stdout
    assert read_data_folder(shop).log is None
    head, _, section = (shop / "tables.yaml").read_text().partition("# log:\n")
    stub, ignored, rest = section.partition("# Ignored columns")
    assert f"#     {name}:  # {why}" in stub
    filled = "\n".join(line.removeprefix("# ") for line in stub.splitlines())
    filled = filled.replace(f"{name}:", f"{name}: xyz")
    (shop / "tables.yaml").write_text(f"{head}log:\n{filled}\n{ignored}{rest}")
    found = read_data_folder(shop).log
    assert found is not None
    assert found.columns.keys() == {"user_id", "ad_id", "timestamp_ms"}
    assert found.columns[name] == "xyz"


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda rows: rows[61].update(SKU="B00003"),
            "column 'SKU' repeats 'B00003', in rows 4 and 62; each ad needs its own id",
        ),
        (lambda rows: rows[49].update(SKU=None), "column 'SKU' has no value in row 50"),
        (
            lambda rows: [row.update(Artikel=row.pop("SKU")) for row in rows],
            "no column is named like an id (ad_id, id, sku, item_id ...): name it with",
        ),
    ],
)
def test_ids_that_repeat_or_are_missing_are_refused_with_the_columns_there_are(
    tmp_path: Path, form: str, change: Any, message: str
) -> None:
    rows, ads = shop_rows(), tmp_path / "ads"
    change(rows)
    write_table(ads / f"1.{form}", rows[:40])
    write_table(ads / f"2.{form}", rows[40:])
    error = complaint("init", "--ads", ads, "--out", tmp_path / "shop")
    assert message in error
    assert "the table has: " in error
    assert "Country Code" in error


def test_another_column_of_ids_may_be_named(tmp_path: Path) -> None:
    rows = [{"id": at % 2, "number": f"0{at}", "country": "US"} for at in range(30)]
    ads = write_table(tmp_path / "ads.csv", rows)
    found = roles(initialize(ads, tmp_path / "shop", "--id", "number"))
    assert found["number"] == ("ad_id", "ad_id")
    assert read_data_folder(tmp_path / "shop").id_map == tmp_path / "shop" / "ids.parquet"
    error = complaint("init", "--ads", ads, "--out", tmp_path / "more", "--id", "nummer")
    assert "--id nummer: no such column; the table has: id, number, country" in error


@pytest.mark.parametrize("name", ["tables.yaml", "targeting.yaml"])
def test_an_existing_file_is_refused_by_name_and_kept(tmp_path: Path, name: str) -> None:
    ads = write_table(tmp_path / "ads.csv", shop_rows())
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / name).write_text("mine")
    error = complaint("init", "--ads", ads, "--out", tmp_path / "shop")
    assert f"shop/{name}: is already there" in error
    assert [path.name for path in (tmp_path / "shop").iterdir()] == [name]
    assert (tmp_path / "shop" / name).read_text() == "mine"


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ads.parquet"
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), path)
    message = "the ads table has no rows"
    assert message in complaint("init", "--ads", path, "--out", tmp_path / "shop")


@pytest.mark.parametrize(
    ("row", "lacks"),
    [
        ({"sku": "a", "vector": 0.5}, "no column holds lists of floats; it has: sku, vector"),
        ({"sku": "z", "vector": [0.5]}, "no column holds the ids of 'sku'; it has: sku, vector"),
    ],
)
def test_embeddings_of_other_things_are_refused(tmp_path: Path, row: Row, lacks: str) -> None:
    ads = write_table(tmp_path / "ads.csv", [{"sku": "a"}, {"sku": "b"}])
    vectors = write_table(tmp_path / "items.parquet", [row])
    error = complaint("init", "--ads", ads, "--embeddings", vectors, "--out", tmp_path / "shop")
    assert lacks in error
    assert not (tmp_path / "shop").exists()


@pytest.mark.parametrize("form", FORMATS)
def test_lines_of_a_column_that_is_left_out_make_it_a_rule_and_a_column_without_has_a_reason(
    tmp_path: Path, form: str
) -> None:
    rows = [
        {
            "id": f"A{at}",
            "country": 1 + at % 2,
            "language": 1 + at % 2,
            "members_only": ["yes", "no"][at % 2],
            "audience text": ["moms", "dads", "teens"][at % 3],
            "black_label": ["red", "blue"][at % 2],
            "chips": [["a", "b"], ["c"]][at % 2],
            "#x": ["p", "q", "r"][at % 3],
            "true": ["s", "t", "u"][at % 3],
            "region": f"2024-01-0{1 + at % 2}",
            "": ["v", "w"][at % 2],
        }
        for at in range(9)
    ]
    ads, out = write_table(tmp_path / f"ads.{form}", rows), tmp_path / "shop"
    report = initialize(ads, out)
    found = {column: role for column, (role, _) in roles(report).items()}
    assert found == {**dict.fromkeys(rows[0], "left out"), "id": "ad_id", "": "ignored"}
    printed = invoke_grace("init", "--ads", ads, "--out", tmp_path / "again").stdout
    left_out = ", ".join(name for name in rows[0] if name not in ("id", ""))
    assert f"LEFT OUT, so these columns limit nobody (9): {left_out}\n" in printed
    targeting = (out / "targeting.yaml").read_text()
    assert "remove the `# ` before its lines and their heading in targeting.yaml" in targeting
    assert 'audience text, black_label, chips, "#x", "true", region.' in targeting
    assert "# - region: times: a rule lists values" in targeting
    assert "# - black_label: 2 values: the name may say who may not see the ad" in targeting
    write_codebook(out / "codebook", [row["id"] for row in rows])
    assert build_data(out)["coverage"]["for_everybody"] == 1.0
    for name in ("tables.yaml", "targeting.yaml"):
        text = (out / name).read_text().replace("#   :", "#").replace("  ignore: [chips]", "")
        text = re.sub(r"(?m)^# (?=  |attributes:|sets:|ranges:|flights:|properties:)", "", text)
        (out / name).write_text(text)
    rules = ("country", "language", "members", "audience_text", "chips", "x", "true")
    built = build_data(out)
    assert built["coverage"]["with_rule"] == dict.fromkeys(rules, 1.0)
    assert built["ignored_columns"] == ["", "black_label", "region"]


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


@pytest.mark.parametrize(("count", "role"), [(64, "attribute"), (65, "set")])
def test_more_than_64_values_make_a_set(tmp_path: Path, count: int, role: str) -> None:
    rows = [{"id": at, "country": f"v{at % count}"} for at in range(5 * count)]
    ads = write_table(tmp_path / "ads.csv", rows)
    assert roles(initialize(ads, tmp_path / "shop"))["country"] == (role, "country")


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
        "audience": pa.nulls(3, pa.list_(pa.string())),
    }
    pq.write_table(pa.table(columns), tmp_path / "ads.parquet")
    out = tmp_path / "shop"
    report = initialize(tmp_path / "ads.parquet", out)
    assert report["next"][1].endswith("/snapshots --without audience")
    found = roles(report)
    expected = dict.fromkeys(("country", "device", "language", "zip"), "attribute")
    expected |= dict.fromkeys(("os_exclude", "is_exclude"), "exclude list")
    expected |= {"id": "ad_id", "segments": "set", "audience": "set"}
    assert {name: role for name, (role, _) in found.items() if role != "ignored"} == expected
    assert (read_data_folder(out).id_map is not None) == numbered
    assert read_data_folder(out).ads.ignore == ("parts",)
    plain = ids.dictionary_decode() if pa.types.is_dictionary(ids.type) else ids
    write_codebook(out / "codebook", [str(each) for each in plain.to_pylist()])
    shares = build_data(out, "--without", "audience")["coverage"]["with_rule"]
    of_three = dict.fromkeys(("country", "device", "language", "zip", "is", "segments"), 2)
    of_three |= {"os": 1, "audience": 0}
    assert {name: round(3 * share) for name, share in shares.items()} == of_three
