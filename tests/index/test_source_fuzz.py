"""A build refuses any table by name, or builds its rows right."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.errors import InputError
from grace.index.builder import BuildReport, BuildSpec, build
from grace.index.storage import load_snapshot
from grace.index.targeting.schema import RESERVED_VALUE, Attribute, TargetingSchema, TargetSet
from support.arrays import assert_same_arrays
from support.builds import silent, write_schema
from support.oracle import RawAd, Rule
from support.plain_builder import plain_snapshot
from support.strategies import examples

SCHEMA = TargetingSchema(
    (
        Attribute("country", ("US", "NO", "é")),
        Attribute("device", ("phone", "tv"), missing_passes_exclude=True),
    ),
    (TargetSet("location", 64, 3, 64),),
    hash_seed=7,
)
VOCAB_SIZES = (3, 2)
RULES = ("country", "country_exclude", "device", "device_exclude", "location", "location_exclude")

Row = Mapping[str, Any]
"""ad_id, sid, ad_weight and RULES: None, a number, or a list that may hold None."""

_IDS = st.sampled_from([0, 1, 2, 3, 5, 100, 127, 2**31 - 1, 2**33, 2**63 - 1])
_BAD_IDS = st.sampled_from([None, -1, -128, -(2**63)])
_SIDS = st.tuples(st.integers(0, 2), st.integers(0, 1)).map(list)
_BAD_SIDS = st.one_of(
    st.none(),
    st.lists(st.one_of(st.none(), st.sampled_from([0, 1, 2, 3, -1, 200, 70_000])), max_size=4),
)
_WEIGHTS = st.sampled_from([None, 0.0, -0.0, 1.5, -2.25, 1024.0])
_BAD_WEIGHTS = st.sampled_from([math.nan, math.inf, -math.inf])
_TEXTS: dict[str, list[str]] = {
    "country": ["US", "NO", "é"],
    "device": ["phone", "tv"],
    "location": ["us/ca", "no/oslo", "", "\0", "x" * 3000, "日本", "😀", "us/ca "],
}
_BAD_TEXTS = st.sampled_from([None, "ZZ", RESERVED_VALUE, "us", "y" * 3000])


def rows(faulty: bool) -> st.SearchStrategy[list[Row]]:
    return st.lists(_row(faulty), min_size=0, max_size=9)


def _row(faulty: bool) -> st.SearchStrategy[Row]:
    def mostly(good: st.SearchStrategy[Any], bad: st.SearchStrategy[Any]) -> Any:
        chosen = st.integers(0, 11).flatmap(lambda n: bad if n == 11 else good)
        return chosen if faulty else good

    columns: dict[str, st.SearchStrategy[Any]] = {
        "ad_id": mostly(_IDS if faulty else st.integers(0, 2**31 - 1), _BAD_IDS),
        "sid": mostly(_SIDS, _BAD_SIDS),
        "ad_weight": mostly(_WEIGHTS, _BAD_WEIGHTS),
    }
    for column in RULES:
        texts = st.sampled_from(_TEXTS[column.removesuffix("_exclude")])
        least = 0 if column.endswith("_exclude") else 1
        good = st.one_of(st.none(), st.lists(texts, min_size=least, max_size=3))
        columns[column] = mostly(good, st.lists(st.one_of(texts, _BAD_TEXTS), max_size=3))
    return st.fixed_dictionaries(columns)


# Rows are plain Python data. The columns' Arrow types, the files' order of columns, their groups
# of rows and encodings are drawn apart from them, and must not matter.
@dataclass(frozen=True)
class TableFile:
    rows: list[Row]
    types: dict[str, pa.DataType]  # in the file's order of columns; an absent one is all null
    options: dict[str, Any]  # of the Parquet writer

    def table(self) -> pa.Table:
        arrays = {}
        for name, kind in self.types.items():
            arrays[name] = _array([row[name] for row in self.rows], kind)
        return pa.table(arrays)


@st.composite
def table_files(draw: st.DrawFn, faulty: bool) -> list[TableFile]:
    return [_file(draw, part) for part in draw(st.lists(rows(faulty), min_size=1, max_size=3))]


def _file(draw: st.DrawFn, part: list[Row]) -> TableFile:
    types: dict[str, pa.DataType] = {
        "ad_id": draw(st.sampled_from(_id_types([row["ad_id"] for row in part]))),
        "sid": _list_type(
            draw, [row["sid"] for row in part], _token_types([row["sid"] for row in part])
        ),
    }
    for name in ("ad_weight", *RULES):
        values = [row[name] for row in part]
        if all(value is None for value in values) and draw(st.booleans()):
            if draw(st.booleans()):
                types[name] = pa.null()  # as pandas writes a column of None
        elif name == "ad_weight":
            types[name] = draw(st.sampled_from([pa.float16(), pa.float32(), pa.float64()]))
        else:
            nothing = all(text is None for value in values for text in value or ())
            texts = [*_TEXT_TYPES, pa.null()] if nothing else _TEXT_TYPES
            types[name] = _list_type(draw, values, texts)
    order = draw(st.permutations(list(types)))
    return TableFile(part, {name: types[name] for name in order}, _options(draw))


_TEXT_TYPES = [
    pa.string(),
    pa.large_string(),
    pa.dictionary("int8", pa.string()),
    pa.dictionary("int32", pa.large_string()),
]


def _id_types(values: Sequence[int | None]) -> list[pa.DataType]:
    kinds = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()]
    return [kind for kind in kinds if _fits(values, kind)]


def _token_types(sids: Sequence[list[int | None] | None]) -> list[pa.DataType]:
    tokens = [token for sid in sids for token in sid or ()]
    return [kind for kind in (*_id_types([]), pa.uint64()) if _fits(tokens, kind)]


def _fits(values: Sequence[int | None], kind: pa.DataType) -> bool:
    limits = np.iinfo(kind.to_pandas_dtype())
    return all(value is None or limits.min <= value <= limits.max for value in values)


def _list_type(
    draw: st.DrawFn, lists: Sequence[list[Any] | None], values: list[pa.DataType]
) -> pa.DataType:
    value = draw(st.sampled_from(values))
    lengths = {len(listed) for listed in lists if listed is not None}
    kinds = [pa.list_(value), pa.large_list(value)]
    if len(lengths) == 1 and lengths != {0} and not pa.types.is_null(value):
        kinds.append(pa.list_(value, lengths.pop()))
    return draw(st.sampled_from(kinds))


def _options(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "row_group_size": draw(st.sampled_from([1, 2, 5, 1000])),
        "compression": draw(st.sampled_from(["none", "snappy", "zstd", "gzip", "lz4"])),
        "use_dictionary": draw(st.booleans()),
        "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
        "write_batch_size": draw(st.sampled_from([1, 3, 1024])),
        "store_schema": draw(st.booleans()),
    }


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_float16(kind):
        halves = [None if value is None else np.float16(value) for value in values]
        return pa.array(halves, kind)
    text = kind.value_type if hasattr(kind, "value_type") else kind
    if pa.types.is_dictionary(text):
        # Arrow makes no lists of dictionaries from Python, but casts to them.
        plain = pa.list_(text.value_type)
        lists = pa.array(values, plain)
        encoded = lists.values.dictionary_encode().cast(text)
        made = pa.ListArray.from_arrays(lists.offsets, encoded, mask=lists.is_null())
        return made if pa.types.is_list(kind) else made.cast(kind)
    return pa.array(values, kind)


def write_files(folder: Path, files: Sequence[TableFile]) -> list[Path]:
    paths = []
    for number, file in enumerate(files):
        paths.append(folder / f"part-{number}.parquet")
        pq.write_table(file.table(), paths[-1], **file.options)
    return paths


def expectation(files: Sequence[TableFile]) -> tuple[list[RawAd], dict[tuple[int, int], set[str]]]:
    """The ads that are built, and by (file, row) the columns at fault of those that are not."""
    faults: dict[tuple[int, int], set[str]] = {}
    ids = Counter(row["ad_id"] for file in files for row in file.rows)
    ads = []
    for number, file in enumerate(files):
        for at, row in enumerate(file.rows):
            found = set(_faulty_columns(row))
            if ids[row["ad_id"]] > 1:
                found.add("ad_id")
            if found:
                faults[number, at] = found
            else:
                ads.append(_ad(row))
    return ads, faults


def _faulty_columns(row: Row) -> list[str]:
    faulty = []
    if row["ad_id"] is None or row["ad_id"] < 0:
        faulty.append("ad_id")
    sid = row["sid"]
    if (
        sid is None
        or len(sid) != len(VOCAB_SIZES)
        or not all(t is not None and 0 <= t < v for t, v in zip(sid, VOCAB_SIZES, strict=True))
    ):
        faulty.append("sid")
    weight = row["ad_weight"]
    if weight is not None and not math.isfinite(weight):
        faulty.append("ad_weight")
    for name in SCHEMA.names:
        faulty += _faulty_lists(name, row)
    return faulty


def _faulty_lists(name: str, row: Row) -> list[str]:
    listed = next((set(a.values) for a in SCHEMA.attributes if a.name == name), None)
    faulty = []
    for column in (name, f"{name}_exclude"):
        for value in row[column] or ():
            known = value != RESERVED_VALUE if listed is None else value in listed
            if value is None or not known:
                faulty.append(column)
    include, exclude = row[name], row[f"{name}_exclude"]
    if include is not None and not include:
        faulty.append(name)
    allowed = listed if include is None else set(include)
    other = include is None and (
        listed is None or name == "device"
    )  # a user whose value is not listed may still pass
    if exclude and not other and allowed is not None and allowed <= set(exclude):
        faulty.append(f"{name}_exclude")
    return faulty


def _ad(row: Row) -> RawAd:
    rules: dict[str, Rule] = {}
    for name in SCHEMA.names:
        include, exclude = row[name], row[f"{name}_exclude"]
        rules[name] = (
            None if include is None else frozenset(include),
            None if exclude is None else frozenset(exclude),
        )
    weight = 0.0 if row["ad_weight"] is None else row["ad_weight"]
    return RawAd(row["ad_id"], tuple(row["sid"]), weight, rules)


def unstated(files: Sequence[TableFile]) -> tuple[str, ...]:
    """The names on which no row has a rule."""
    table = [row for file in files for row in file.rows]
    return tuple(
        name
        for name in SCHEMA.names
        if not any(row[name] is not None or row[f"{name}_exclude"] for row in table)
    )


def missing(files: Sequence[TableFile]) -> set[str]:
    """The names for which some file has no column."""
    names = SCHEMA.names
    return {n for file in files for n in names if not {n, f"{n}_exclude"} & file.types.keys()}


def built(
    folder: Path, paths: list[Path], batch_rows: int = 4, without: tuple[str, ...] = ()
) -> BuildReport:
    spec = BuildSpec(
        ads=tuple(paths),
        targeting=write_schema(folder / "targeting.yaml", SCHEMA),
        root=folder / "snapshots",
        sid_space="plain-1",
        vocab_sizes=VOCAB_SIZES,
        max_rejects=1000,
        threads=2,
        batch_rows=batch_rows,
        without=without,
    )
    return build(spec, silent)


def check_in(folder: Path, files: list[TableFile], batch_rows: int) -> None:
    paths = write_files(folder, files)
    ads, faults = expectation(files)
    without = unstated(files)
    if lost := missing(files) - set(without):
        with pytest.raises(InputError, match=f"columns '({'|'.join(lost)})' .* are missing"):
            built(folder, paths, batch_rows, without)
        return
    if not ads:
        with pytest.raises(InputError, match="nothing to build"):
            built(folder, paths, batch_rows, without)
        return
    if without:
        with pytest.raises(InputError, match=f"--without {without[0]}"):
            built(folder, paths, batch_rows, without[1:])
    report = built(folder, paths, batch_rows, without)
    snapshot = load_snapshot(folder / "snapshots")
    assert_same_arrays(snapshot, plain_snapshot(SCHEMA, VOCAB_SIZES, ads))
    refused = {}
    if report.reject_file is not None:
        for line in report.reject_file.read_text().splitlines():
            reject = json.loads(line)
            refused[paths.index(Path(reject["file"])), reject["row"] - 1] = reject["column"]
    assert sorted(refused) == sorted(faults)
    for place, column in refused.items():
        assert column in faults[place], f"{place}: {column}, expected one of {faults[place]}"


@examples(14)
@given(
    files=st.booleans().flatmap(table_files),
    batch_rows=st.sampled_from([1, 2, 1000]),
)
def test_types_and_encodings_do_not_matter_and_faulty_rows_are_listed(
    files: list[TableFile], batch_rows: int
) -> None:
    with TemporaryDirectory() as folder:
        check_in(Path(folder), files, batch_rows)
