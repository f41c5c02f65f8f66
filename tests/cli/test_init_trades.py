"""`grace init` on the tables of many trades (trades.yaml): each column gets its right role."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from grace.index.tables.data_folder import read_data_folder
from grace.index.targeting.schema import load_schema
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

TRADES: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_name("trades.yaml").read_text())


def rows_of(columns: Mapping[str, list[Any]], rows: int, ads: int) -> list[Row]:
    def cell(cells: list[Any], row: int) -> Any:
        found = cells[row % len(cells)]
        return found.replace("{n}", str(row % ads)) if isinstance(found, str) else found

    return [{name: cell(cells[1:], at) for name, cells in columns.items()} for at in range(rows)]


def expected(columns: Mapping[str, list[Any]]) -> dict[str, str]:
    return {name: cells[0] for name, cells in columns.items()}


def as_expected(role: str, name: str | None, text_entities: set[str]) -> str:
    """Return the role in the words of trades.yaml."""
    if role == "entity":
        return "text entity" if name in text_entities else role
    if role == "exclude list":
        return f"{role} {str(name).removesuffix('_exclude')}"
    return f"{role} {name}" if role in ("attribute", "set") else role


@pytest.mark.parametrize("trade", TRADES)
def test_each_column_of_a_trade_s_tables_gets_its_right_role(tmp_path: Path, trade: str) -> None:
    case, out = TRADES[trade], tmp_path / "shop"
    options: list[str | Path] = []
    for table in ("embeddings", "log"):
        if table in case:
            rows = rows_of(case[table], 3 * case["rows"], case["rows"])
            file = write_table(tmp_path / f"{table}.{case['format']}", rows)
            options += [f"--{table}", file]
    rows = rows_of(case["ads"], case["rows"], case["rows"])
    report = initialize(write_table(tmp_path / f"ads.{case['format']}", rows), out, *options)
    data, schema = read_data_folder(out), load_schema(out / "targeting.yaml")
    mapped = set(data.entity_ids)
    found = {
        each["column"]: as_expected(each["role"], each["name"], mapped) for each in report["ads"]
    }
    assert found == expected(case["ads"])
    vectors = [column for column, role in found.items() if role == "embedding"]
    assert (data.embeddings is not None) == bool(vectors or "embeddings" in case)
    assert report["next"][0].startswith("grace sids --data") == (data.embeddings is not None)
    if data.embeddings is not None:
        theirs = {data.embeddings.theirs(name): name for name in ("item_id", "vector")}
        other = expected(case["embeddings"]) if "embeddings" in case else {}
        names = {data.ads.theirs("ad_id"): "item_id"} | dict.fromkeys(vectors, "vector")
        assert theirs == ({c: name for c, name in other.items() if name != "ignored"} or names)
    if "log" in case:
        assert report["log_lacks"] == []
        assert data.log is not None
        unit = "" if data.log.time_unit == "ms" else f" {data.log.time_unit}"
        names = {each["column"]: each["name"] or "ignored" for each in report["log"]}
        stated = {c: f"{n}{unit}" if n == "timestamp_ms" else n for c, n in names.items()}
        assert stated == expected(case["log"])
    assert set(schema.entities) >= mapped
    id_column = data.ads.theirs("ad_id")
    write_codebook(out / "codebook", [row[id_column] for row in rows])
    without = re.findall(r"(--without) (\w+)", "\n".join(report["next"]))
    assert len({*without}) == len(without)
    built = build_data(out, *(word for option in without for word in option))
    assert built["ads"] == len(rows), "the proposal is accepted"


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
    done = invoke_grace("init", "--ads", ads, "--embeddings", vectors, "--out", tmp_path / "shop")
    assert (done.exit_code, lacks in done.stderr) == (2, True), done.stderr
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
            "#x": ["p", "q", "r"][at % 3],
            "true": ["s", "t", "u"][at % 3],
            "region": f"2024-01-0{1 + at % 2}",
            "": ["v", "w"][at % 2],
        }
        for at in range(9)
    ]
    out = tmp_path / "shop"
    report = initialize(write_table(tmp_path / f"ads.{form}", rows), out)
    found = {column: role for column, (role, _) in roles(report).items()}
    assert found == {**dict.fromkeys(rows[0], "left out"), "id": "ad_id", "": "ignored"}
    reasons = {each["column"]: each["reason"] for each in report["ads"]}
    assert "; country has all these values, too: if ads exclude them" in reasons["language"]
    targeting = (out / "targeting.yaml").read_text()
    assert 'audience text, black_label, "#x", "true", region.' in targeting
    assert "# - region: times: a rule lists values" in targeting
    write_codebook(out / "codebook", [row["id"] for row in rows])
    for name in ("tables.yaml", "targeting.yaml"):
        text = (out / name).read_text().replace("#   :", "#")
        text = re.sub(r"(?m)^# (?=  |attributes:|sets:)", "", text)
        (out / name).write_text(text)
    rules = {"country", "language", "members", "audience_text", "black_label_2", "x", "true"}
    built = build_data(out)
    assert built["coverage"]["with_rule"] == dict.fromkeys(rules, 1.0)
    assert built["ignored_columns"] == ["", "region"]
    assert "    black_label_2_exclude: black_label  #" in (out / "tables.yaml").read_text()
