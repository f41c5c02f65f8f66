"""A table as people have it builds the rules that its rows state, or its ads are refused by name.

The oracle reads raw cells in plain Python: texts of a CSV, or scalars and lists of the others.
Files and batches are drawn apart from the rows, and must not matter. test_columns.py has all types.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.errors import InputError
from grace.index.builder import BuildSpec, Sharding, build
from grace.index.storage import load_snapshot
from grace.index.tables.data_folder import DataFolder, TableSource
from grace.index.targeting.schema import RESERVED_VALUE, Attribute, TargetingSchema, TargetSet
from grace.index.verify import verify_snapshot
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
THEIRS = {"ad_id": "SKU no.", "country": "Country Code", "location_exclude": "not, in"}
SEPARATOR = "|"
BLANKS = " \t"
LONG = "x" * 3000

GOOD = {
    "country": ["US", "NO", "é", "7", "true"],
    "device": ["phone", "tv"],
    "location": ["us/ca", "a,b", 'the "bay"', "x|y", "é", "NA", "null", "😀", LONG],
}
ODD = {"country": ["ZZ", "us", ""], "device": ["radio"], "location": ["", " ", "*"]}
NAMES = ["7", "007", "sku-1", 'a"b', "a,b", "x|y", "é", "NULL", "true"]
NUMBERS = [0, 1, 2, 5, 127, 2**31 - 1, 2**33, 2**63 - 1]


@dataclass(frozen=True)
class Table:
    """Rows of ad_id, sid, ad_weight and RULES, in files of one format."""

    format: str
    rows: Sequence[Mapping[str, Cell]]
    cut: int  # rows of the first file; the second has the others
    joined: bool  # whether SIDs are in another table
    mapped: bool  # whether an id map numbers the ads


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


def id_cells(form: str, mapped: bool, faulty: bool) -> st.SearchStrategy[Cell]:
    if mapped:
        return mostly(faulty, st.sampled_from(NAMES), st.sampled_from([" x", LONG, ""]))
    if form == "csv":
        odd = st.sampled_from(["007", "1.0", str(2**63), "-1", None])
        return mostly(faulty, st.sampled_from([*map(str, NUMBERS), " 9"]), odd)
    return mostly(faulty, st.sampled_from(NUMBERS), st.sampled_from([None, -1]))


def sid_cells(joined: bool, faulty: bool) -> st.SearchStrategy[Cell]:
    good = st.tuples(st.integers(0, 2), st.integers(0, 1)).map(list)
    odd = [[], [1], [0, 2], [3, 0], [-1, 0], [1, 1, 1], [0, 200], [None, 0]]
    return mostly(faulty, good, st.sampled_from([None, *([] if joined else odd)]))


@st.composite
def tables(draw: st.DrawFn) -> Table:
    form = draw(st.sampled_from(["parquet", "parquet", "jsonl", "csv"]))
    faulty = draw(st.booleans())
    names = {name: ["list", "text", "list", "integer", "boolean", "integers"] for name in GOOD}
    names["device"] = names["device"] if faulty else ["text", "list"]
    kinds = {
        column: draw(st.sampled_from(names[column.removesuffix("_exclude")])) for column in RULES
    }
    joined, mapped = draw(st.booleans()), draw(st.booleans())
    weights = st.sampled_from([None, 0.0, -0.0, 1.5, -2.25, 1024.0])
    odd = st.just(1.5 if form == "jsonl" else math.inf)
    row = st.fixed_dictionaries(
        {"sid": sid_cells(joined, faulty), "ad_weight": mostly(faulty, weights, odd)}
        | {column: rule_cells(form, column, kind, faulty) for column, kind in kinds.items()}
    )
    unique = joined or draw(st.booleans())
    ids = draw(st.lists(id_cells(form, mapped, faulty), min_size=1, max_size=8, unique=unique))
    rows = [{"ad_id": each, **draw(row)} for each in ids]
    return Table(form, rows, draw(st.integers(0, len(rows) - 1)), joined, mapped)


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


def number_of(table: Table, cell: Cell) -> int | None:
    """The number of an id, or None for one that a build refuses."""
    if table.mapped:
        padded = table.format == "csv" and cell != cell.strip(BLANKS)
        named = list(dict.fromkeys(row["ad_id"] for row in table.rows if is_name(row["ad_id"])))
        return None if padded or not is_name(cell) else named.index(cell)
    if table.format == "csv" and cell is not None:
        text = cell.strip(BLANKS)
        cell = int(text) if text.isdecimal() and text == str(int(text)) else -1
    return cell if cell is not None and 0 <= cell < 2**63 else None


def is_name(text: str) -> bool:
    return 0 < len(text) <= 1024


Fault = tuple[str, str | None, str]
"""A column, the value that a refusal shows or None for any, and words of its reason."""


def faults_of(table: Table, row: Mapping[str, Cell], copies: int) -> set[Fault]:
    faults: set[Fault] = set()
    if number_of(table, row["ad_id"]) is None or copies > 1:
        faults.add(("ad_id", None, ""))
    sid = row["sid"]
    fits = sid is not None and len(sid) == len(VOCAB_SIZES) and None not in sid
    if not fits or not all(0 <= t < v for t, v in zip(sid, VOCAB_SIZES, strict=True)):
        faults.add(("sid", None, ""))
    if row["ad_weight"] is not None and not math.isfinite(row["ad_weight"]):
        faults.add(("ad_weight", None, ""))
    return faults.union(*(rule_faults(table.format, name, row) for name in SCHEMA.names))


def rule_faults(form: str, name: str, row: Mapping[str, Cell]) -> set[Fault]:
    listed = next((set(a.values) for a in SCHEMA.attributes if a.name == name), None)
    columns = (name, f"{name}_exclude")
    lists = {column: stated(form, row[column]) for column in columns}
    word = "reserved" if listed is None else "schema lists"
    faults = {
        (column, value, "" if value is None else word)
        for column, values in lists.items()
        for value in values or ()
        if value is None or (value == RESERVED_VALUE if listed is None else value not in listed)
    }
    include, exclude = (lists[column] for column in columns)
    allowed = listed if include is None else {*include}
    # Without an include list, a user whose value is not listed may still pass.
    others = include is None and (listed is None or name == "device")
    if include == []:
        faults.add((columns[0], None, "is empty"))
    if exclude and not others and allowed is not None and allowed <= {*exclude}:
        faults.add((columns[1], None, "leaves nothing"))
    return faults


def ad_of(table: Table, row: Mapping[str, Cell]) -> RawAd:
    rules: dict[str, Rule] = {}
    for name in SCHEMA.names:
        lists = [stated(table.format, row[column]) for column in (name, f"{name}_exclude")]
        include, exclude = (None if each is None else frozenset(map(str, each)) for each in lists)
        rules[name] = (include, exclude)
    number = number_of(table, row["ad_id"])
    assert number is not None
    return RawAd(
        number, tuple(row["sid"]), 0.0 if row["ad_weight"] is None else row["ad_weight"], rules
    )


def spec_of(folder: Path, table: Table, batch_rows: int = 1000, threads: int = 1) -> BuildSpec:
    if table.joined:
        items = [(row["ad_id"], row["sid"]) for row in table.rows if row["sid"] is not None]
        items = [(str(item), sid) for item, sid in items if item is not None]
        ids, sids = zip(*items, ("of no ad", [0, 0]), strict=True)
        columns = {"item_id": pa.array(ids), "sid": pa.array(sids, pa.list_(pa.int16()))}
        pq.write_table(pa.table(columns), folder / "sids.parquet")
    names = ["ad_id", *([] if table.joined else ["sid"]), "ad_weight", *RULES]
    paths: list[str] = []
    for part in parts_of(table):
        theirs = [{THEIRS.get(name, name): row[name] for name in names} for row in part]
        paths.append(str(write_table(folder / f"ads{len(paths)}.{table.format}", theirs)))
    write_schema(folder / "targeting.yaml", SCHEMA)
    return BuildSpec(
        DataFolder(
            folder,
            TableSource(tuple(paths), THEIRS, SEPARATOR if table.format == "csv" else None),
            sids=str(folder) if table.joined else None,
            id_map=folder / "ids.parquet" if table.mapped else None,
        ),
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


def parts_of(table: Table) -> list[Sequence[Mapping[str, Cell]]]:
    """The rows of each file."""
    return [rows for rows in (table.rows[: table.cut], table.rows[table.cut :]) if rows]


def untyped(table: Table) -> bool:
    """Whether a file has no value by which a column of integers has its type."""
    ids = any(all(row["ad_id"] is None for row in rows) for rows in parts_of(table))
    sids = any({t for row in rows for t in row["sid"] or ()} <= {None} for rows in parts_of(table))
    return table.format != "csv" and (ids or (sids and not table.joined))


def check(spec: BuildSpec, table: Table, in_shards: bool) -> None:
    copies = Counter(number_of(table, row["ad_id"]) for row in table.rows)
    faults = [faults_of(table, row, copies[number_of(table, row["ad_id"])]) for row in table.rows]
    pairs = zip(table.rows, faults, strict=True)
    ads = [ad_of(table, row) for row, faulty in pairs if not faulty]

    refusals = ["nothing to build"] if not ads else []
    refusals += ["must be (list|int64)"] if untyped(table) else []
    try:
        report = build(spec, silent, sharding=Sharding(2)) if in_shards else build(spec, silent)
    except InputError as error:
        assert re.search("|".join(refusals) or "no refusal", str(error)), error
        return
    assert ads
    assert not untyped(table)
    snapshot = load_snapshot(report.path)
    assert_same_arrays(snapshot, plain_snapshot(SCHEMA, VOCAB_SIZES, ads))
    refused = {}
    if report.reject_file is not None:
        for reject in map(json.loads, report.reject_file.read_text().splitlines()):
            first = 0 if reject["file"] == str(spec.data.ads.files[0]) else table.cut
            refused[first + reject["row"] - 1] = reject
    assert sorted(refused) == [at for at, faulty in enumerate(faults) if faulty]
    assert report.rejects == snapshot.facts.rejects == len(refused)
    for at, reject in refused.items():
        said = reject["column"], reject["value"], reject["reason"]
        assert any(
            (column, value or said[1]) == said[:2] and words in said[2]
            for column, value, words in faults[at]
        ), said


DAMAGED = pa.table(
    {
        "ad_id": pa.array([4, 5, 6]),
        "sid": pa.array([[0, 1], [1, 0], [2, 1]], pa.list_(pa.uint16())),
        "ad_weight": pa.array([1.0, 2.0, 3.0]),
        "country": pa.array([["US"], None, []], pa.list_(pa.string())),
        "location_exclude": pa.array([["a"], None, []], pa.list_(pa.string())),
    }
)


@examples(20)
@given(
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
    kept=st.one_of(st.just(1.0), st.floats(0, 1)),
    compression=st.sampled_from(["none", "snappy"]),
)
def test_a_damaged_file_is_refused_by_name_or_what_it_says_is_built(
    changes: list[tuple[float, int]], kept: float, compression: str
) -> None:
    with TemporaryDirectory() as name:
        folder, path = Path(name), Path(name, "ads.parquet")
        pq.write_table(DAMAGED, path, compression=compression, row_group_size=2)
        content = bytearray(path.read_bytes())
        for place, byte in changes:
            content[int(place * len(content))] = byte
        path.write_bytes(bytes(content[: int(kept * len(content))]))
        write_schema(folder / "targeting.yaml", SCHEMA)
        spec = BuildSpec(
            DataFolder(folder, TableSource((str(path),))),
            root=folder / "snapshots",
            sid_space="plain-1",
            vocab_sizes=VOCAB_SIZES,
            without=("device",),
            max_rejects=1000,
            batch_rows=4,
        )
        try:
            build(spec, silent)
        except InputError as error:
            assert "ads.parquet" in str(error) or "nothing to build" in str(error)
            assert len(str(error).splitlines()) == 1
        else:
            verify_snapshot(folder / "snapshots", deep=True)
