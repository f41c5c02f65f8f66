"""Columns of ranges, flights, properties, groups, clauses and expressions, in every format.

The property tests of builds (test_builder.py, test_sharded.py) have them in Parquet.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.configs.errors import InputError
from grace.index.builder import BuildReport, BuildSpec, build
from grace.index.builder.rule_columns import codes_of
from grace.index.forms.lists import ValueCodes
from grace.index.storage import load_snapshot
from grace.index.tables.cells import texts, without_dictionary
from grace.index.tables.data_folder import DataFolder, TableSource
from grace.index.targeting.schema import (
    RESERVED_VALUE,
    Attribute,
    Flight,
    Property,
    Range,
    TargetingSchema,
    TargetSet,
)
from support.arrays import assert_same_arrays
from support.builds import silent, write_schema
from support.oracle import RawAd
from support.plain_builder import PLAIN_SID_SPACE, plain_snapshot
from support.raw_tables import write_table

HOUR = Attribute("hour", tuple(map(str, range(24))), clock="hour_of_day")
SCHEMA = TargetingSchema(
    (Attribute("country", ("US", "NO", "SE")), HOUR),
    (TargetSet("place", 64, 1, 9),),
    7,
    ranges=(Range("age"), Range("income", missing_passes=True)),
    flights=(Flight("flight"),),
    properties=(Property("category"),),
)
NOVEMBER, DECEMBER = 1_793_491_200_000, 1_796_083_200_000  # 2026, in UTC
US, SE = frozenset({"US"}), frozenset({"SE"})
EXPRESSION = 'country in [US, NO] and age >= 21 or not (country in [US, NO] or place = "no/oslo")'
CLAUSES = (
    {"country": (frozenset({"US", "NO"}), None), "age": (21.0, None)},
    {"country": (None, frozenset({"US", "NO"})), "place": (None, frozenset({"no/oslo"}))},
)


def built(folder: Path, form: str, rows: list[Mapping[str, Any]], unit: str = "ms") -> BuildReport:
    names = dict.fromkeys(name for row in rows for name in row)
    whole = [
        {"ad_id": at, "sid": [0, at], **{name: row.get(name) for name in names}}
        for at, row in enumerate(rows)
    ]
    path = write_table(folder / f"ads.{form}", whole)
    stated = {SCHEMA.name_of.get(name) for name in names}
    stated |= {SCHEMA.name_of.get(n) for row in rows for c in row.get("clauses") or () for n in c}
    in_rules = {"country", "place", "age"} if "rule" in names else set[str]()
    without = tuple(name for name in SCHEMA.names if name not in stated | in_rules)
    return build_table(folder, path, unit, "|" if form == "csv" else None, without=without)


def build_table(
    folder: Path,
    path: Path,
    unit: str = "ms",
    separator: str | None = None,
    schema: TargetingSchema = SCHEMA,
    without: tuple[str, ...] = ("hour", "age", "income", "flight", "category"),
) -> BuildReport:
    write_schema(folder / "targeting.yaml", schema)
    source = TableSource((str(path),), list_separator=separator, time_unit=unit)
    spec = BuildSpec(
        DataFolder(folder, source),
        root=folder / "snapshots",
        sid_space=PLAIN_SID_SPACE,
        vocab_sizes=(1, 9),
        without=without,
    )
    return build(spec, silent)


def test_every_array_of_texts_has_the_codes_of_its_values() -> None:
    codes, expected = ValueCodes(), ValueCodes()
    some = pa.array(["se", None, "", "no/oslo", "no", "\u00e9" * 9, "no/oslo", RESERVED_VALUE])
    later = pa.array([None, "dk/new", "", "no", "dk/new", None])
    wrong = pa.array([b"\xff", b"se", b"\xff"]).view(pa.string())
    large = some.cast(pa.large_string())
    for each in (some[1:], later.dictionary_encode(), some, some[:0], wrong, large[3:]):
        for values in (each, large, some.dictionary_encode()):
            assert codes_of(values, codes).tolist() == [
                expected[text] for text in texts(without_dictionary(values))
            ]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_every_format_states_the_same_rules(tmp_path: Path, form: str) -> None:
    plain = {"age_min": 18, "income_max": 1.5, "category": "news", "country": "SE"}
    times = {"flight_start": "2026-11-01", "flight_end": "2026-12-01T01:00:00+01:00"}
    values = {"place_exclude": ["no", "se"], "category": ["news", "ü"]}
    expression = {"rule": EXPRESSION, "category": "sports"}
    several: list[dict[str, Any]] = [
        {"country": ["US", "NO"], "age_min": 21},
        {"country_exclude": ["US", "NO"], "place_exclude": ["no/oslo"]},
    ]
    ads: list[dict[str, Any]] = [
        {"age": (18.0, None), "income": (None, 1.5), "country": (SE, None)},
        {"flight": (NOVEMBER, DECEMBER)},
        {"place": (None, frozenset({"no", "se"}))},
        {},
    ]
    of_ads = [
        frozenset({"news"}),
        frozenset[str](),
        frozenset({"news", "ü"}),
        frozenset({"sports"}),
    ]
    expected = [
        RawAd(at, (0, at), 0.0, {**ad, "category": frozenset(own)})
        for at, (ad, own) in enumerate(zip(ads, of_ads, strict=True))
    ]
    expected[3] = RawAd(3, (0, 3), 0.0, expected[3].rules, {}, CLAUSES)
    rows: list[Mapping[str, Any]] = [plain, times, values, expression]
    if form != "csv":  # its cells have neither lists of lists nor clauses
        given = {"clauses": several, "category": ["sports"], "place_all": [["no", "se"], ["no"]]}
        rows = [
            {**{n: [v] if n == "category" and isinstance(v, str) else v for n, v in row.items()}}
            for row in (plain | {"country": ["SE"]}, times, values, given)
        ]
        del several[1]["place_exclude"]
        rules = {**expected[3].rules, "place_all": (frozenset({"no", "se"}), frozenset({"no"}))}
        clauses = (CLAUSES[0], {"country": CLAUSES[1]["country"]})
        expected[3] = RawAd(3, (0, 3), 0.0, rules, {}, clauses)
    report = built(tmp_path, form, rows)
    assert report.rejects == 0
    assert_same_arrays(load_snapshot(report.path), plain_snapshot(SCHEMA, (1, 9), expected))


@pytest.mark.parametrize(
    ("others", "kept"),
    [
        ({"rule": "age in [20..30]"}, "rule"),
        ({"clauses": [{"age_min": 20, "age_max": 30}]}, "clauses.age_max"),
    ],
)
def test_a_lost_column_is_noticed_although_clauses_or_expressions_have_rules_on_its_name(
    tmp_path: Path, others: Mapping[str, Any], kept: str
) -> None:
    rows: list[Mapping[str, Any]] = [
        {"country": ["US"], "place": ["no/oslo"], "age_min": 18, "age_max": 34},
        {"country": ["US"], **others},
    ]
    before = built(tmp_path, "jsonl", rows).coverage.after
    assert {"age_min", "age_max", kept} <= {*before.columns}
    report = built(tmp_path, "jsonl", [{**rows[0], "age_max": None}, rows[1]])
    assert (report.published, report.coverage.lost_columns) == (False, ("age_max",))


def test_clauses_of_texts_are_split_and_null_ones_are_none(tmp_path: Path) -> None:
    struct = pa.struct([("place_exclude", pa.string()), ("country", pa.string())])
    clauses = [[{"place_exclude": "a|b", "country": "US"}, {"country": "SE"}], None]
    table = {
        "ad_id": [0, 1],
        "sid": pa.array([[0, 0], [0, 1]], pa.list_(pa.uint16())),
        "clauses": pa.array(clauses, pa.list_(struct, 2)),
    }
    expected = [
        RawAd(
            0,
            (0, 0),
            clauses=(
                {"place": (None, frozenset("ab")), "country": (US, None)},
                {"country": (SE, None)},
            ),
        ),
        RawAd(1, (0, 1)),
    ]
    pq.write_table(pa.table(table), tmp_path / "ads.parquet")
    report = build_table(tmp_path, tmp_path / "ads.parquet", separator="|")
    assert_same_arrays(load_snapshot(report.path), plain_snapshot(SCHEMA, (1, 9), expected))


def test_parts_of_a_millisecond_are_whole_ones(tmp_path: Path) -> None:
    """A flight begins and ends at the first millisecond that is not before."""
    flight = {"flight_start": "2026-11-01T00:00:00.0000001Z", "flight_end": "9999-12-31"}
    report = built(tmp_path, "csv", [flight])
    ((start, end),) = load_snapshot(report.path).rules.parts[4].table.tolist()
    assert (start, end) == (NOVEMBER + 1, 253_402_214_400_000 - 1)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_times_of_one_column_may_have_several_forms(tmp_path: Path, form: str) -> None:
    """So a text that is no time refuses its own ad alone."""
    forms = ["2026-11-01", "2026-11-01T00:00:00Z", "2026-11-01T02:00:00+02:00", str(NOVEMBER)]
    starts = [*forms, "9999-12-31", None, "2026-13-01"]
    fault = r"1 ad refused.*row 7, ad '?6'?: flight_start '2026-13-01'"
    with pytest.raises(InputError, match=fault):
        built(tmp_path, form, [{"flight_start": start} for start in starts])
    report = built(tmp_path, form, [{"flight_start": start} for start in starts[:-1]])
    table = load_snapshot(report.path).rules.parts[4].table
    assert {*table[:, 0].tolist()} == {NOVEMBER, 253_402_214_400_000, -np.inf}


@pytest.mark.parametrize("more", [{"rule": None}, {"rule": "country = US"}, {}], ids=str)
def test_what_one_file_states_in_a_column_no_other_may_lack(
    tmp_path: Path, more: Mapping[str, Any]
) -> None:
    """Not even one that has expressions: a renamed column would hide its rules."""
    schema = replace(SCHEMA, sets=(), entities=("campaign",))
    first: dict[str, Any] = {"ad_id": 0, "sid": [0, 0], "country": "US", "campaign": 7}
    first |= {"rule": None} if more else {}
    first["country_exclude"] = "SE"
    for lost in ("country", "country_exclude", "campaign"):
        folder = tmp_path / lost
        second = {n: v for n, v in first.items() if n != lost}
        second |= {"ad_id": 1, "land": "NO", **more}
        for number, row in enumerate((first, second)):
            (folder / "ads").mkdir(parents=True, exist_ok=True)
            columns = {name: [value] for name, value in row.items()}
            pq.write_table(pa.table(columns), folder / "ads" / f"{number}.parquet")
        with pytest.raises(InputError, match=f"1.parquet: column '{lost}'.* missing"):
            build_table(folder, folder / "ads", schema=schema)


NO_CLAUSE = {"clauses": [{"country": ["US"], "age_min": 1}]}


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"age_min": 3, "age_max": 2}, "age_max '3..2': the range is empty"),
        ({"hour": 24}, "hour '24': is not among 0 to 23 of its clock; correct it"),
        ({"rule": "hour = 24"}, r"lists for 'hour' \(0 to 23\), found '24'"),
        ({"age_min": "old"}, "age_min 'old': is not a number"),
        ({"age_min": float("nan")}, "age_min 'nan': must be a finite number"),
        ({"flight_start": "2026-12-01", "flight_end": "2026-12-01"}, "flight_end '2026-12-01.."),
        ({"flight_end": "soon"}, "flight_end 'soon': is neither an integer nor a time"),
        ({"flight_end": 7}, "flight_end '7': is not between 1990 and 2100, .* ads.time_unit"),
        ({"place_all": [["a"], []]}, "place_all: the list is empty"),
        ({"place_all": [["a", "*"]]}, "place_all '[*]': is reserved"),
        ({"place_all": [["a"]], "place_exclude": ["a"]}, "place_exclude: the exclude list leaves"),
        ({"category": ["*"]}, "category '[*]': is reserved"),
        ({"rule": "country in [XX]"}, "rule 'country in .*at 12: expected a value that the schema"),
        ({"rule": "   "}, "rule '   ': at 3: expected 'not'"),
        ({"rule": "age > 3 and age < 2"}, "no user can pass"),
        ({"rule": "flight in [1..2]"}, "flights go into columns of the ad"),
        ({"rule": "country = US", "country": ["NO"]}, "country: is in the ad's own columns"),
        ({"clauses": []}, r"clauses '\[\]': has no clause"),
        ({"clauses": [{}, *NO_CLAUSE["clauses"]]}, "clauses: has no rule"),
        ({"clauses": [{"country_exclude": [], "category": ["a"]}]}, "clauses: has no rule"),
        ({"age_min": 2**53 + 1}, r"age_min '9007199254740993': is beyond 2\^53"),
        ({"age_max": "9007199254740993.0"}, r"age_max '9007199254740993.0': is beyond 2\^53"),
        ({"age_min": "9" * 309}, r"age_min '9+\.\.\.: must be a finite number"),
        ({"income_min": 1, "income_max": 0}, "income_max '1..0': the range is empty"),
        ({"rule": "age > 9007199254740994"}, r"no integer beyond 2\^53"),
        ({"clauses": [{"country": ["XX"]}]}, "clauses.country 'XX': is not among the values"),
        ({"clauses": [{"age_min": 3, "age_max": 2}]}, "clauses.age_max '3..2': the range"),
        (NO_CLAUSE | {"country": ["NO"]}, "country: is in the ad's own columns and in a"),
    ],
    ids=str,
)
def test_an_ad_whose_columns_allow_nobody_or_everybody_by_mistake_is_refused(
    tmp_path: Path, row: Mapping[str, Any], fault: str
) -> None:
    """The other ads have types for columns that are empty in this one."""
    form = "csv" if any(isinstance(v, str) and n != "rule" for n, v in row.items()) else "jsonl"
    others: list[Mapping[str, Any]] = [dict.fromkeys(row)]
    if "clauses" in row:
        others = [NO_CLAUSE]
    with pytest.raises(InputError, match=fault):
        built(tmp_path, form, [*others, row])


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"clauses": [{"colour": ["red"]}]}, "field 'colour' is no rule of the targeting schema"),
        ({"clauses": [{"age_min": ["red"]}]}, "field 'age_min' must be float, got list"),
        ({"clauses": [{"age_min": 1}], "rule": "age > 1"}, "'clauses' and 'rule'; drop one"),
        ({"clauses": [{}], "age_min": 1}, "its clauses have no fields"),
        ({"Rule": "country = US", "age_min": 1}, "column 'Rule' would not be read"),
        ({"CLAUSES ": "none", "age_min": 1}, "column 'CLAUSES ' would not be read"),
        ({"bedrooms_min": 3, "age_min": 1}, "'bedrooms_min' looks like a targeting rule"),
        ({"flight_start": [1], "age_min": 1}, "'flight_start' must be timestamp, date, text"),
    ],
    ids=str,
)
def test_a_table_with_columns_that_no_build_would_enforce_is_refused(
    tmp_path: Path, row: Mapping[str, Any], fault: str
) -> None:
    with pytest.raises(InputError, match=fault):
        built(tmp_path, "jsonl", [row])


@pytest.mark.parametrize("name", ["clauses", "place_all"])
def test_a_csv_with_what_its_cells_cannot_hold_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=f"'{name}' must be list<.*a CSV cannot hold them"):
        built(tmp_path, "csv", [{name: "x", "place": "no"}])
