"""`grace init` on the tables of many trades (trades.yaml): each column gets its right role."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from grace.index.tables.data_folder import DataFolder, read_data_folder
from grace.index.targeting.schema import load_schema
from support.raw_tables import Row, build_data, initialize, write_codebook, write_table

TRADES: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_name("trades.yaml").read_text())
FORMS = [
    (trade, form)
    for trade, case in TRADES.items()
    for form in ([case["format"]] if isinstance(case["format"], str) else case["format"])
]

NAMED = ("attribute", "set", "range", "flight", "property")


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
    return f"{role} {name}" if role in NAMED else role


def stated(data: DataFolder, form: str, row: Row, columns: Sequence[str]) -> list[str]:
    """Return the values that the row's cells of a rule list, included and excluded ones."""
    values: list[str] = []
    for name in columns:
        cell = row.get(data.ads.theirs(name))
        cells = cell if isinstance(cell, list) else [cell]
        if isinstance(cell, str) and data.ads.list_separator is not None:
            cells = [each.strip() for each in cell.split(data.ads.list_separator)]
        elif form == "csv":
            cells = [each.strip() if isinstance(each, str) else each for each in cells]
        given = [each for each in cells if each not in (None, "")]
        values += [str(each).lower() if isinstance(each, bool) else str(each) for each in given]
    return values


@pytest.mark.parametrize(("trade", "form"), FORMS)
def test_each_column_of_a_trade_s_tables_gets_its_right_role(
    tmp_path: Path, trade: str, form: str
) -> None:
    """What is proposed builds as it is: each rule has the values that the cells state."""
    case, out = TRADES[trade], tmp_path / "shop"
    options: list[str | Path] = []
    for table in ("embeddings", "log"):
        if table in case:
            rows = rows_of(case[table], 3 * case["rows"], case["rows"])
            options += [f"--{table}", write_table(tmp_path / f"{table}.{form}", rows)]
    rows = rows_of(case["ads"], case["rows"], case["rows"])
    report = initialize(write_table(tmp_path / f"ads.{form}", rows), out, *options)
    data, schema = read_data_folder(out), load_schema(out / "targeting.yaml")
    mapped = set(data.entity_ids)
    found = {
        each["column"]: as_expected(each["role"], each["name"], mapped) for each in report["ads"]
    }
    assert found == expected(case["ads"])
    reasons = {each["column"]: each["reason"] for each in [*report["ads"], *report.get("log", [])]}
    for column, text in case.get("says", {}).items():
        assert text in reasons[column]
    assert (data.embeddings is not None) == ("embeddings" in case)
    assert report["next"][0].startswith("grace sids --data") == (data.embeddings is not None)
    if data.embeddings is not None:
        theirs = {data.embeddings.theirs(name): name for name in ("item_id", "vector")}
        given = expected(case["embeddings"])
        assert theirs == {column: name for column, name in given.items() if name != "ignored"}
    if "log" in case:
        assert report["log_lacks"] == case.get("log_lacks", [])
        assert (data.log is None) == ("log_lacks" in case)
        unit = "" if data.log is None or data.log.time_unit == "ms" else f" {data.log.time_unit}"
        names = {each["column"]: each["name"] or "ignored" for each in report["log"]}
        given = {c: f"{n}{unit}" if n == "timestamp_ms" else n for c, n in names.items()}
        assert given == expected(case["log"])
    assert set(schema.entities) >= mapped
    id_column = data.ads.theirs("ad_id")
    write_codebook(out / "codebook", [row[id_column] for row in rows])
    without = re.findall(r"(--without) (\w+)", "\n".join(report["next"]))
    assert len({*without}) == len(without)
    built = build_data(out, *(word for option in without for word in option))
    assert built["ads"] == len(rows), "the proposal is accepted"
    values = {
        rule: [stated(data, form, row, columns) for row in rows]
        for rule, columns in schema.columns.items()
    }
    shares = {rule: sum(map(bool, each)) / len(rows) for rule, each in values.items()}
    assert built["coverage"]["with_rule"] == pytest.approx(shares)
    for each in schema.attributes:
        listed = set().union(*values[each.name])
        assert listed <= set(each.values) if each.clock else listed == set(each.values)
        assert (each.missing == "unknown") == ("unknown" in each.values)
