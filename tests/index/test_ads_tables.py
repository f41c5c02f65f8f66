"""A table as people have it builds the rules that its rows state, or its ads are refused by name.

The oracle reads raw cells in plain Python: texts of a CSV, or scalars and lists of the others.
Files and batches are drawn apart from the rows, and must not matter. test_columns.py has all types,
and the cells of ids, SIDs and weights.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from grace.configs.errors import InputError
from grace.index.builder import BuildSpec, Sharding, build
from grace.index.storage import load_snapshot
from grace.index.tables.data_folder import DataFolder, TableSource
from grace.index.targeting.schema import RESERVED_VALUE, Attribute, TargetingSchema, TargetSet
from support.arrays import assert_same_arrays
from support.builds import silent, write_schema
from support.oracle import RawAd, Rule
from support.plain_builder import PLAIN_SID_SPACE, plain_snapshot
from support.raw_tables import write_table
from support.strategies import examples

Cell = Any
"""A text of a CSV or None; a scalar, a list or None of the others."""

SCHEMA = TargetingSchema(
    (
        Attribute("country", ("US", "NO", "é", "7", "true")),
        Attribute("device", ("phone", "tv"), missing_passes_exclude=True),
    ),
    (TargetSet("location", 64, 3, 64),),
    hash_seed=7,
)
VOCAB_SIZES = (3, 2)
RULES = tuple(column for column in SCHEMA.rule_columns if not column.endswith("_all"))
THEIRS = {"country": "Country Code", "location_exclude": "not, in"}
SEPARATOR = "|"
BLANKS = " \t"
LONG = "x" * 3000

GOOD = {
    "country": ["US", "NO", "é", "7", "true"],
    "device": ["phone", "tv"],
    "location": ["us/ca", "a,b", 'the "bay"', "x|y", "é", "NA", "null", "😀", LONG],
}
ODD = {"country": ["ZZ", "us", ""], "device": ["radio"], "location": ["", " ", "*"]}


@dataclass(frozen=True)
class Table:
    """Rows of RULES, in files of one format. An ad has its row's place as its id."""

    format: str
    rows: Sequence[Mapping[str, Cell]]
    cut: int  # rows of the first file; the second has the others


def mostly(
    faulty: bool, good: st.SearchStrategy[Cell], odd: st.SearchStrategy[Cell]
) -> st.SearchStrategy[Cell]:
    chosen = st.integers(0, 7).flatmap(lambda drawn: odd if drawn == 7 else good)
    return chosen if faulty else good


def rule_cells(form: str, column: str, kind: str, faulty: bool) -> st.SearchStrategy[Cell]:
    name = column.removesuffix("_exclude")
    least = 0 if faulty or column != name else 1
    good = st.sampled_from(GOOD[name])
    texts = mostly(faulty, good, st.sampled_from(ODD[name]))
    if form == "csv":
        joined = st.lists(good.filter(lambda text: SEPARATOR not in text), min_size=1, max_size=3)
        blank = st.sampled_from(["", " ", "\t"])
        padded = st.tuples(blank, joined.map(SEPARATOR.join)).map("".join)
        odd = st.sampled_from(["US\n", '"', "|", "US|", " | ", "x|y", *ODD[name]])
        return mostly(faulty, st.one_of(st.none(), padded, padded), odd)
    nothing = st.sampled_from([[], [None]])
    values: dict[str, st.SearchStrategy[Cell]] = {
        "text": texts,
        "integer": mostly(faulty, st.just(7), st.sampled_from([-3, 2**40])),
        "boolean": mostly(faulty, st.just(True), st.just(False)),
        "list": mostly(faulty, st.lists(texts, min_size=least, max_size=3), nothing),
        "integers": mostly(faulty, st.lists(st.just(7), min_size=least, max_size=2), st.just([8])),
    }
    return st.one_of(st.none(), values[kind], values[kind])


@st.composite
def tables(draw: st.DrawFn) -> Table:
    form = draw(st.sampled_from(["parquet", "parquet", "jsonl", "csv"]))
    faulty = draw(st.booleans())
    names = {name: ["list", "text", "list", "integer", "boolean", "integers"] for name in GOOD}
    names["device"] = names["device"] if faulty else ["text", "list"]
    kinds = {
        column: draw(st.sampled_from(names[column.removesuffix("_exclude")])) for column in RULES
    }
    row = st.fixed_dictionaries(
        {column: rule_cells(form, column, kind, faulty) for column, kind in kinds.items()}
    )
    rows = draw(st.lists(row, min_size=1, max_size=8))
    return Table(form, rows, draw(st.integers(0, len(rows) - 1)))


# The oracle.


def stated(form: str, cell: Cell) -> list[str | None] | None:
    """The values that a cell states: None is no rule, and a None within is faulty."""
    if cell is None or cell == "":
        return None
    if form == "csv":
        parts = [part.strip(BLANKS) for part in cell.split(SEPARATOR)]
        return [None if part == "" or "\n" in cell else part for part in parts]
    listed = cell if isinstance(cell, list) else [cell]
    return [
        None if each is None else str(each).lower() if isinstance(each, bool) else str(each)
        for each in listed
    ]


Fault = tuple[str, str | None]
"""A column, and the value that a refusal shows, or None for any."""


def rule_faults(form: str, name: str, row: Mapping[str, Cell]) -> set[Fault]:
    listed = next((set(a.values) for a in SCHEMA.attributes if a.name == name), None)
    columns = (name, f"{name}_exclude")
    lists = {column: stated(form, row[column]) for column in columns}
    faults: set[Fault] = {
        (column, value)
        for column, values in lists.items()
        for value in values or ()
        if value is None or (value == RESERVED_VALUE if listed is None else value not in listed)
    }
    include, exclude = (lists[column] for column in columns)
    allowed = listed if include is None else {*include}
    # Without an include list, a user whose value is not listed may still pass.
    others = include is None and (listed is None or name == "device")
    if include == []:
        faults.add((columns[0], None))
    if exclude and not others and allowed is not None and allowed <= {*exclude}:
        faults.add((columns[1], None))
    return faults


def ad_of(form: str, place: int, row: Mapping[str, Cell]) -> RawAd:
    rules: dict[str, Rule] = {}
    for name in SCHEMA.names:
        lists = [stated(form, row[column]) for column in (name, f"{name}_exclude")]
        include, exclude = (None if each is None else frozenset(map(str, each)) for each in lists)
        rules[name] = (include, exclude)
    return RawAd(place, sid_of(place), rules=rules)


def sid_of(place: int) -> tuple[int, int]:
    return place % 3, place % 2


def spec_of(folder: Path, table: Table, batch_rows: int, threads: int) -> BuildSpec:
    ads = [
        {"ad_id": place, "sid": [*sid_of(place)], **{THEIRS.get(n, n): row[n] for n in RULES}}
        for place, row in enumerate(table.rows)
    ]
    parts = [part for part in (ads[: table.cut], ads[table.cut :]) if part]
    paths = [
        str(write_table(folder / f"ads{number}.{table.format}", part))
        for number, part in enumerate(parts)
    ]
    write_schema(folder / "targeting.yaml", SCHEMA)
    separator = SEPARATOR if table.format == "csv" else None
    return BuildSpec(
        DataFolder(folder, TableSource(tuple(paths), THEIRS, separator)),
        root=folder / "snapshots",
        sid_space=PLAIN_SID_SPACE,
        vocab_sizes=VOCAB_SIZES,
        max_rejects=100,
        without=unstated(table),
        batch_rows=batch_rows,
        threads=threads,
    )


def unstated(table: Table) -> tuple[str, ...]:
    """The names on which no row has a rule."""
    return tuple(
        name
        for name in SCHEMA.names
        if not any(
            stated(table.format, row[name]) is not None
            or stated(table.format, row[f"{name}_exclude"])
            for row in table.rows
        )
    )


@examples(60)
@given(
    table=tables(),
    in_shards=st.booleans(),
    batch_rows=st.sampled_from([1, 2, 1000]),
    threads=st.sampled_from([1, 2]),
)
def test_every_ad_has_the_rules_of_its_row_or_is_refused(
    table: Table, in_shards: bool, batch_rows: int, threads: int
) -> None:
    with TemporaryDirectory() as name:
        check(spec_of(Path(name), table, batch_rows, threads), table, in_shards)


def check(spec: BuildSpec, table: Table, in_shards: bool) -> None:
    faults = [
        set[Fault]().union(*(rule_faults(table.format, name, row) for name in SCHEMA.names))
        for row in table.rows
    ]
    ads = [
        ad_of(table.format, place, row) for place, row in enumerate(table.rows) if not faults[place]
    ]
    try:
        report = build(spec, silent, sharding=Sharding(2)) if in_shards else build(spec, silent)
    except InputError as error:
        assert not ads, error
        assert "nothing to build" in str(error)
        return
    assert ads
    snapshot = load_snapshot(report.path)
    assert_same_arrays(snapshot, plain_snapshot(SCHEMA, VOCAB_SIZES, ads))
    refused = {}
    if report.reject_file is not None:
        for reject in map(json.loads, report.reject_file.read_text().splitlines()):
            first = 0 if reject["file"] == str(spec.data.ads.files[0]) else table.cut
            refused[first + reject["row"] - 1] = reject
    assert sorted(refused) == [place for place, faulty in enumerate(faults) if faulty]
    assert report.rejects == snapshot.facts.rejects == len(refused)
    for place, reject in refused.items():
        said = reject["column"], reject["value"]
        assert any((column, value or said[1]) == said for column, value in faults[place]), reject
