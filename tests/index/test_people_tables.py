"""A table as people have it builds the rules that its rows state, or its ads are refused by name.

The oracle reads raw cells in plain Python: texts of a CSV, or scalars and lists of the others.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.errors import InputError
from grace.index.builder import BuildReport, BuildSpec, Sharding, build, build_in_shards
from grace.index.storage import load_snapshot
from grace.index.targeting.schema import RESERVED_VALUE, Attribute, TargetingSchema, TargetSet
from support.arrays import assert_same_arrays
from support.builds import silent, write_schema
from support.oracle import RawAd, Rule
from support.plain_builder import PLAIN_SID_SPACE, plain_snapshot
from support.strategies import examples

SCHEMA = TargetingSchema(
    (Attribute("country", ("US", "NO", "é", "7", "true")),),
    (TargetSet("location", 64, 3, 64),),
    hash_seed=7,
)
VOCAB_SIZES = (3, 2)
RULES = ("country", "country_exclude", "location", "location_exclude")
THEIRS = {"ad_id": "SKU no.", "country": "Country Code", "location_exclude": "not, in"}
SEPARATOR = "|"
BLANKS = " \t"

_COUNTRIES = st.sampled_from(["US", "NO", "é", "7", "true", "ZZ", "us", ""])
_PLACES = st.sampled_from(
    ["us/ca", "a,b", 'the "bay"', "x|y", "é", "7", "", " ", "NA", "null", "*"]
)
_IDS = st.sampled_from(["7", "007", "sku-1", 'a"b', "a,b", "x|y", "é", " x", "NULL", "true", ""])

Cell = Any
"""A text of a CSV or None; a scalar, a list or None of the others."""


@dataclass(frozen=True)
class Table:
    format: str
    kinds: Mapping[str, str]  # of each rule column
    rows: Sequence[Mapping[str, Cell]]  # ad_id, item (its SID, or None), RULES
    joined: bool  # whether SIDs are in another table


def values_of(column: str) -> st.SearchStrategy[str]:
    return _COUNTRIES if column.startswith("country") else _PLACES


def cells(form: str, column: str, kind: str) -> st.SearchStrategy[Cell]:
    texts = values_of(column)
    if form == "csv":
        joined = st.lists(texts, min_size=1, max_size=3).map(SEPARATOR.join)
        padded = st.tuples(st.sampled_from(["", " ", "\t"]), joined).map("".join)
        odd = st.sampled_from(["US\n", '"', "|", "US|", " | "])
        return st.one_of(st.none(), joined, padded, odd)
    values: dict[str, st.SearchStrategy[Cell]] = {
        "text": texts,
        "integer": st.sampled_from([7, -3, 2**40]),
        "boolean": st.booleans(),
        "list": st.lists(st.one_of(texts, texts, st.none()), max_size=3),
        "integers": st.lists(st.sampled_from([7, 8]), max_size=2),
    }
    return st.one_of(st.none(), values[kind], values[kind])


@st.composite
def tables(draw: st.DrawFn) -> Table:
    form = draw(st.sampled_from(["parquet", "jsonl", "csv"]))
    names = ["text", "integer", "boolean", "list", "integers"]
    kinds = {column: draw(st.sampled_from(names)) for column in RULES}
    row = st.fixed_dictionaries(
        {"sid": st.one_of(st.none(), st.tuples(st.integers(0, 2), st.integers(0, 1)))}
        | {column: cells(form, column, kind) for column, kind in kinds.items()}
    )
    ids = draw(st.lists(_IDS, min_size=1, max_size=7, unique=True))
    rows = [{"ad_id": each, **draw(row)} for each in ids]
    return Table(form, kinds, rows, joined=draw(st.booleans()))


def stated(form: str, cell: Cell) -> list[str | None] | None:
    """The values that a cell states: None is no rule, and a None within faulty."""
    if cell is None or cell == "":
        return None
    if form == "csv":
        parts = [part.strip(BLANKS) for part in cell.split(SEPARATOR)]
        return [None if part == "" or "\n" in cell else part for part in parts]
    listed = cell if isinstance(cell, list) else [cell]
    return [str(each).lower() if isinstance(each, bool) else plain(each) for each in listed]


def plain(value: Cell) -> str | None:
    return None if value is None else str(value)


def ad_of(form: str, row: Mapping[str, Cell], number: int) -> RawAd | None:
    """The ad, or None if it must be refused."""
    if row["sid"] is None or row["ad_id"] == "":
        return None
    rules: dict[str, Rule] = {}
    for name in SCHEMA.names:
        lists = [stated(form, row[column]) for column in (name, f"{name}_exclude")]
        values = {value for each in lists for value in each or ()}
        listed = set(SCHEMA.attributes[0].values) if name == "country" else None
        if None in values or (listed is not None and not values <= listed):
            return None
        if listed is None and RESERVED_VALUE in values:
            return None
        include, exclude = (None if each is None else frozenset(map(str, each)) for each in lists)
        allowed = include if include is not None else listed
        if include == frozenset() or (exclude and allowed is not None and allowed <= exclude):
            return None
        rules[name] = (include, exclude)
    return RawAd(number, row["sid"], 0.0, rules)


ARROW = {
    "text": pa.string(),
    "integer": pa.int64(),
    "boolean": pa.bool_(),
    "list": pa.list_(pa.string()),
    "integers": pa.list_(pa.int16()),
}


def written(folder: Path, table: Table) -> Path:
    """Write the table as its format has it, with their names."""
    columns = {name: [row[name] for row in table.rows] for name in ("ad_id", *RULES)}
    if not table.joined:
        columns["sid"] = [row["sid"] for row in table.rows]
    path = folder / f"ads.{table.format}"
    if table.format == "parquet":
        kinds = {name: ARROW[kind] for name, kind in table.kinds.items()}
        kinds |= {"ad_id": pa.string(), "sid": pa.list_(pa.int32())}
        arrays = {name: pa.array(each, kinds[name]) for name, each in columns.items()}
        pq.write_table(pa.table({THEIRS.get(n, n): each for n, each in arrays.items()}), path)
        return path
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if table.format == "jsonl":
        path.write_text(
            "".join(
                json.dumps({THEIRS.get(name, name): cell for name, cell in row.items()}) + "\n"
                for row in rows
            )
        )
        return path
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([THEIRS.get(name, name) for name in columns])
    for row in rows:
        sid = row.get("sid")
        tokens = {"sid": SEPARATOR.join(map(str, sid)) if sid is not None else None}
        writer.writerow((row | (tokens if "sid" in row else {})).values())
    path.write_text(out.getvalue(), newline="")
    return path


def spec_of(folder: Path, table: Table, **changes: Any) -> BuildSpec:
    if table.joined:
        items = [(row["ad_id"], row["sid"]) for row in table.rows if row["sid"] is not None]
        ids, sids = ([pair[at] for pair in [*items, ("of no ad", (0, 0))]] for at in (0, 1))
        columns = {
            "item_id": pa.array(ids, pa.string()),
            "sid": pa.array(sids, pa.list_(pa.int16())),
        }
        pq.write_table(pa.table(columns), folder / "sids.parquet")
    forms = {
        name
        for name in SCHEMA.names
        if any(
            stated(table.format, row[name]) is not None
            or stated(table.format, row[f"{name}_exclude"])
            for row in table.rows
        )
    }
    spec = BuildSpec(
        ads=(written(folder, table),),
        targeting=write_schema(folder / "targeting.yaml", SCHEMA),
        root=folder / "snapshots",
        columns=THEIRS,
        list_separator=SEPARATOR if table.format == "csv" else None,
        sids=str(folder) if table.joined else None,
        id_map=folder / "ids.parquet",
        sid_space=PLAIN_SID_SPACE,
        vocab_sizes=VOCAB_SIZES,
        max_rejects=100,
        without=tuple(name for name in SCHEMA.names if name not in forms),
        batch_rows=2,
        threads=1,
    )
    return replace(spec, **changes)


def build_either(spec: BuildSpec, in_shards: bool) -> BuildReport:
    return build_in_shards(spec, Sharding(2), silent) if in_shards else build(spec, silent)


@examples(60)
@given(table=tables(), in_shards=st.booleans())
def test_every_ad_has_the_rules_of_its_row_or_is_refused(table: Table, in_shards: bool) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        spec = spec_of(folder, table)
        numbered = [row["ad_id"] for row in table.rows if row["ad_id"] != ""]
        ads = [
            ad_of(table.format, row, numbered.index(row["ad_id"]) if row["ad_id"] else -1)
            for row in table.rows
        ]
        kept = [ad for ad in ads if ad is not None]
        if not kept:
            with pytest.raises(InputError, match=r"nothing to build|column 'sid' must be list"):
                build_either(spec, in_shards)
            return
        report = build_either(spec, in_shards)
        snapshot = load_snapshot(report.path)
        assert_same_arrays(snapshot, plain_snapshot(SCHEMA, VOCAB_SIZES, kept))
        assert report.rejects == len(ads) - len(kept)
        refused = [row for row, ad in zip(table.rows, ads, strict=True) if ad is None]
        if report.reject_file is not None:
            listed = map(json.loads, report.reject_file.read_text().splitlines())
            given_ids = {each["ad_id"] for each in listed}
            assert given_ids <= {row["ad_id"] or None for row in refused} | {""}
