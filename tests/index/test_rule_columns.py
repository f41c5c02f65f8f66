"""Columns of ranges, flights, properties, groups, clauses and expressions, in every format.

The property tests of builds (test_builder.py, test_sharded.py) have them in Parquet.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from grace.configs.errors import InputError
from grace.index.builder import BuildReport, BuildSpec, build
from grace.index.storage import load_snapshot
from grace.index.tables.data_folder import DataFolder, TableSource
from grace.index.targeting.schema import (
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

SCHEMA = TargetingSchema(
    (Attribute("country", ("US", "NO", "SE")),),
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
    write_schema(folder / "targeting.yaml", SCHEMA)
    separator = "|" if form == "csv" else None
    source = TableSource((str(path),), list_separator=separator, time_unit=unit)
    stated = {SCHEMA.name_of.get(name) for name in names}
    everywhere = {"clauses", "rule"} & set(names)
    return build(
        BuildSpec(
            DataFolder(folder, source),
            root=folder / "snapshots",
            sid_space=PLAIN_SID_SPACE,
            vocab_sizes=(1, 9),
            without=() if everywhere else tuple(n for n in SCHEMA.names if n not in stated),
        ),
        silent,
    )


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


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 1000), ("ns", 10**9)])
def test_integers_are_times_in_the_unit_of_the_table(
    tmp_path: Path, unit: str, factor: int
) -> None:
    start, end = (milliseconds // 1000 * factor for milliseconds in (NOVEMBER, DECEMBER))
    report = built(tmp_path, "parquet", [{"flight_start": start, "flight_end": end}], unit)
    (flight,) = load_snapshot(report.path).rules.parts[4].table.tolist()
    assert flight == [NOVEMBER, DECEMBER - 1]


NO_CLAUSE = {"clauses": [{"country": ["US"], "age_min": 1}]}


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"age_min": 3, "age_max": 2}, "age_max: the range is empty"),
        ({"age_min": "old"}, "age_min 'old': is not a number"),
        ({"age_min": float("nan")}, "age_min 'nan': must be a finite number"),
        ({"flight_start": "2026-12-01", "flight_end": "2026-12-01"}, "flight_end: the range is"),
        ({"flight_end": "soon"}, "flight_end 'soon': is neither an integer nor a time"),
        ({"flight_end": 7}, "flight_end '7': is not between 1990 and 2100, .* ads.time_unit"),
        ({"place_all": [["a"], []]}, "place_all: the list is empty"),
        ({"place_all": [["a", "*"]]}, "place_all '[*]': is reserved"),
        ({"place_all": [["a"]], "place_exclude": ["a"]}, "place_exclude: the exclude list leaves"),
        ({"category": ["*"]}, "category '[*]': is reserved"),
        ({"rule": "country in [XX]"}, "rule 'country in .*at 12: expected a value that the schema"),
        ({"rule": "   "}, "rule '   ': at 3: expected 'not'"),
        ({"rule": "age > 3 and age < 2"}, "no user can pass"),
        ({"rule": "flight in [1..2]"}, "a flight in columns of the ad"),
        ({"rule": "country = US", "country": ["NO"]}, "country: stands in the ad's own columns"),
        ({"clauses": []}, r"clauses '\[\]': has no clause"),
        ({"clauses": [{}, *NO_CLAUSE["clauses"]]}, "clauses: says nothing"),
        ({"clauses": [{"country": ["XX"]}]}, "clauses.country 'XX': is not among the values"),
        ({"clauses": [{"age_min": 3, "age_max": 2}]}, "clauses.age_max: the range is empty"),
        (NO_CLAUSE | {"country": ["NO"]}, "country: stands in the ad's own columns and in a"),
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
