"""What `grace init` proposes: any text survives its YAML; separators, names and ids are found."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.errors import InputError
from grace.configs.yaml_loader import parse_yaml
from grace.index.proposal.propose import Proposal, propose
from grace.index.proposal.roles import Role
from grace.index.proposal.yaml_text import quoted, tables_yaml, targeting_yaml
from grace.index.tables.data_folder import read_data_folder
from grace.index.targeting.schema import load_schema
from support.builds import silent
from support.raw_tables import write_table
from support.strategies import examples

TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
LEFT_OUT = re.compile(r"(?m)^# (?=  |attributes:|sets:|ranges:|flights:|properties:)")
"""What is before the lines that become rules without it."""


def write_files(proposal: Proposal, folder: Path, *, turned_on: bool = False) -> None:
    """Write what is proposed; with the columns that are left out if they are turned on."""
    columns, sids, rest = tables_yaml(proposal, folder).partition("\nsids:")
    targeting = targeting_yaml(proposal)
    if turned_on:
        columns, targeting = (LEFT_OUT.sub("", text) for text in (columns, targeting))
    (folder / "tables.yaml").write_text(columns + sids + rest, "utf-8")
    (folder / "targeting.yaml").write_text(targeting, "utf-8")


@examples(100)
@given(
    st.one_of(TEXTS, st.sampled_from([".5", "1e3", "0x1f", "~", "null", "TRUE", "a: b", "x #y"]))
)
def test_a_quoted_text_is_read_as_that_text(text: str) -> None:
    assert parse_yaml(f"x: {quoted(text)}  # why", "x") == {"x": text}
    assert parse_yaml(f"x: [{quoted(text)}, {quoted(text)}]", "x") == {"x": [text, text]}


@examples(40)
@given(st.lists(TEXTS, min_size=1, max_size=6, unique=True), st.lists(TEXTS, min_size=1))
def test_any_names_and_values_make_a_folder_that_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], values: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("shop")
    columns = {name: pa.array([[value] for value in values]) for name in names if name != "id"}
    ids = pa.array(range(len(values)))
    pq.write_table(pa.table({**columns, "id": ids}), folder / "ads.parquet")
    proposal = propose([str(folder / "ads.parquet")], (), "id", silent)
    write_files(proposal, folder, turned_on=True)
    data, schema = read_data_folder(folder), load_schema(folder / "targeting.yaml")
    ours = {each.name: each.column for each in proposal.decisions if each.name}
    assert {name: data.ads.theirs(name) for name in ours} == ours
    stated = set(values) - {"*"}
    for attribute in schema.attributes:
        assert set(attribute.values) == stated
    assert all(not ours.keys().isdisjoint(columns) for columns in schema.columns.values())
    assert {*ours.values()} <= {*names, "id"}


@pytest.mark.parametrize(
    ("cells", "separator"),
    [
        (["US|CA", "US", "CA"], "|"),
        (["US|CA"], "|"),
        (["US;CA", "CA"], ";"),
        (['"US,CA"', "CA", "US"], ","),
        (["US", "CA"], None),
        (['"1,5"', '"2,5"', "5"], None),
        (['"red, warm"', '"blue, cold"'], None),
        (["a||b", "a"], None),
    ],
)
def test_a_separator_is_found_by_the_values_that_it_makes(
    tmp_path: Path, cells: list[str], separator: str | None
) -> None:
    lines = ["id,x,rule", *(f'{at},{cell},"x = ""a|b"""' for at, cell in enumerate(cells))]
    (tmp_path / "ads.csv").write_text("\n".join(lines))
    assert propose([str(tmp_path / "ads.csv")], (), None, silent).list_separator == separator


def test_ids_of_any_number_of_batches_are_compared(tmp_path: Path) -> None:
    """Integers turn into texts late, the repeated id is far away, and so is the other country."""
    ids = [*map(str, range(70_000)), "x1", "x2"]
    for name, last in (("good", "x3,NO"), ("bad", "17,NO")):
        file = tmp_path / f"{name}.csv"
        file.write_text("\n".join(["id,country", *(f"{each},US" for each in ids), last]))
    good = propose([str(tmp_path / "good.csv")], (), None, silent)
    assert (good.rows, "id_map: " in tables_yaml(good, tmp_path)) == (70_003, True)
    assert "[NO, US]" in targeting_yaml(good)
    with pytest.raises(InputError, match="repeats '17', in rows 18 and 70003"):
        propose([str(tmp_path / "bad.csv")], (), None, silent)


CELLS = {"number": pa.array([18, None, 21]), "time": pa.array([0, None, 86_400], pa.timestamp("s"))}
BASES = {"": "", "age": "number", "income": "number", "country": "", "price": "", "hidden": ""}
BASES |= {"flight": "time", "valid": "time", "event": ""}
"""The kind of values of which an end is surely a rule, by the word before or after the end."""
ENDS = {
    "number": ("min", "max", "minimum", "upper", "from", "to"),
    "time": ("start", "end", "starts_at", "until", "expires", "from", "to"),
}


@examples(200)
@given(
    st.dictionaries(
        st.tuples(
            st.sampled_from([*BASES]),
            st.sampled_from([*ENDS["number"], *ENDS["time"]]),
            st.booleans(),
        ),
        st.sampled_from([*CELLS]),
        min_size=1,
        max_size=8,
    ),
    st.booleans(),
)
def test_an_end_that_limits_users_is_a_rule_or_left_out_and_the_folder_can_be_read(
    tmp_path_factory: pytest.TempPathFactory,
    named: dict[tuple[str, str, bool], str],
    turned_on: bool,
) -> None:
    folder = tmp_path_factory.mktemp("shop")
    ends = {
        "_".join(filter(None, (end, base) if first else (base, end))): (base, end, kind)
        for (base, end, first), kind in named.items()
    }
    columns = {name: CELLS[kind] for name, (*_, kind) in ends.items()}
    pq.write_table(pa.table({"id": [1, 2, 3], **columns}), folder / "ads.parquet")
    proposal = propose([str(folder / "ads.parquet")], (), "id", silent)
    write_files(proposal, folder, turned_on=turned_on)
    data, schema = read_data_folder(folder), load_schema(folder / "targeting.yaml")
    for each in proposal.decisions:
        base, end, kind = ends.get(each.column, ("", "", ""))
        if kind and BASES[base] == kind and end in ENDS[kind]:
            assert each.role in (Role.RANGE, Role.FLIGHT, Role.LEFT_OUT)
        if each.role in (Role.RANGE, Role.FLIGHT):
            assert kind == {Role.RANGE: "number", Role.FLIGHT: "time"}[each.role]
            assert each.name in schema.rule_columns
            assert data.ads.theirs(each.name) == each.column
    unread = {each.column for each in proposal.decisions if not each.name}
    assert unread.isdisjoint(data.ads.theirs(name) for name in schema.rule_columns)


JUNE = datetime(2026, 6, 1, tzinfo=UTC)


def proposed(folder: Path, form: str, columns: dict[str, list[Any]]) -> tuple[dict[str, Any], Any]:
    """Return the schema that is proposed for three ads, by section, and the data folder."""
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    ads = write_table(folder / f"ads.{form}", [{"ad_id": at, **row} for at, row in enumerate(rows)])
    proposal = propose([str(ads)], (), None, silent)
    write_files(proposal, folder)
    load_schema(folder / "targeting.yaml")
    document = parse_yaml((folder / "targeting.yaml").read_text(), "targeting")
    return document, read_data_folder(folder)


@pytest.mark.parametrize(
    ("columns", "sections", "unit"),
    [
        ({"min_age": [18, 21, None]}, {"ranges": {"age": {}}}, "ms"),
        ({"age_to": [18.5, 21, None]}, {"ranges": {"age": {}}}, "ms"),
        ({"age": ["a", "b", "c"], "age_min": [1, 2, 3]}, {"ranges": {"age_2": {}}}, "ms"),
        ({"salary_min": [1, 2, 3]}, {}, "ms"),
        ({"min_age": ["18", "21", None]}, {}, "ms"),
        ({"min_age": ["18", "25+", None], "age_max": [25, 64, 99]}, {"ranges": {"age": {}}}, "ms"),
        ({"min_age": [18.5, float("nan"), 3]}, {}, "ms"),
        ({"valid_to": [10**9, None, 10**9]}, {"flights": {"valid": {}}}, "s"),
        ({"valid_to": [10**12, None, 10**12]}, {"flights": {"valid": {}}}, "ms"),
        ({"valid_to": [10**15, None, 0]}, {}, "ms"),
        ({"flight_end": [10**9] * 3, "valid_to": [10**12] * 3}, {"flights": {"flight": {}}}, "s"),
        ({"ends_at": [10**9] * 3}, {"flights": {"flight": {}}}, "s"),
        ({"starts_at": [10**9] * 3}, {}, "s"),
        ({"ends_at": [JUNE, None, JUNE]}, {"flights": {"flight": {}}}, "ms"),
        ({"ends_at": [JUNE.isoformat(), None]}, {"flights": {"flight": {}}}, "ms"),
        ({"ends_at": ["soon", *["2026-12-01"] * 10]}, {"flights": {"flight": {}}}, "ms"),
        ({"starts": [10**9] * 3, "stops": [10**9] * 3}, {"flights": {"flight": {}}}, "s"),
        (
            {"campaign": ["x", "x", "y"], "campaign_start": ["2026-05-01"] * 3},
            {"entities": ["campaign"], "flights": {"flight": {}}},
            "ms",
        ),
        (
            {"hour_of_week": [[0, 167], [9], None], "hour_of_week_exclude": [None, None, [3]]},
            {"attributes": {"hour_of_week": {"clock": "hour_of_week"}}},
            "ms",
        ),
        ({"day_of_week": [1, 7, 3]}, {}, "ms"),
        ({"category": [f"c{at}" for at in range(30)]}, {}, "ms"),
        ({"tags": [["a", "b"], ["c"], None]}, {"properties": {"tags": {}}}, "ms"),
        ({"category": ["x" * 101, "y", "z"]}, {}, "ms"),
    ],
)
def test_numbers_times_clocks_and_descriptions_get_the_sections_that_fit(
    tmp_path: Path, columns: dict[str, list[Any]], sections: dict[str, Any], unit: str
) -> None:
    schema, data = proposed(tmp_path, "parquet", columns)
    found = {key: value for key, value in schema.items() if key != "hash_seed"}
    found.get("attributes", {}).pop("age", None)
    assert {key: value for key, value in found.items() if value} == sections
    assert data.ads.time_unit == unit
