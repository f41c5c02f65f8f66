"""Each role reads the same cells from every format, or refuses their row by name."""

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grace.configs.errors import InputError
from grace.index.tables import roles
from grace.index.tables.addresses import Format
from grace.index.tables.item_numbers import IdMap
from grace.index.tables.roles import Role, require_column, type_fault
from grace.index.tables.rows import NO_ID, UNKNOWN, Rows, read_rows
from grace.index.tables.table_file import TableFile, open_table

NAMES = IdMap({"a": 5, "7": 9})
SIZES = np.array([4, 300])
MOST = 2**63 - 1
LONG = "x" * 1025


@dataclass(frozen=True)
class Refused:
    value: str | None  # as the message shows it
    reason: str  # the beginning


NULL = Refused(None, "is null")
NOT_INTEGER = "is not an integer; number it"
OUTSIDE = "token at position {} is outside the vocabulary of {}"
NO_LIST = "is not a list of integers; list_separator of tables.yaml says"
BREAK = "holds a line break; close its quotation mark"


def refused(cell: object, reason: str) -> tuple[object, Refused]:
    return cell, Refused(str(cell), reason)


def length(cell: list[Any]) -> tuple[object, Refused]:
    count = f"{len(cell)} token{'' if len(cell) == 1 else 's'}"
    return cell, Refused(count, "the SID length is 2")


READ: Mapping[str, Callable[[Rows], Any]] = {
    "id": lambda rows: rows.ids("x", remedy="; number it"),
    "entity": lambda rows: rows.ids("x", null=None, remedy="; number it"),
    "item of an ad": lambda rows: rows.ids("x", strict=False),
    "name": lambda rows: rows.ids("x", NAMES),
    "entity's name": lambda rows: rows.ids("x", NAMES, null=None),
    "item": lambda rows: rows.names("x"),
    "sid": lambda rows: rows.sids("x", 2, SIZES),
    "sid of an event": lambda rows: rows.sids("x", 2, null=None),
    "weight": lambda rows: rows.weights("x"),
    "rule": lambda rows: rows.rules("x").array(),
    "time": lambda rows: rows.times("x", "s"),
    "time in ms": lambda rows: rows.times("x", "ms"),
    "time in ns": lambda rows: rows.times("x", "ns"),
    "vector": lambda rows: rows.vectors("x", 2),
}

CSV = "csv"
"""The type of the cells of a CSV; the cells of an Arrow type are in Parquet, and in JSON lines."""

_INTEGERS = pa.list_(pa.int64())
_NUMBERS = pa.list_(pa.float64())
_IDS = [(7, 7), (0, 0), (MOST, MOST), refused(-5, "must not be negative")]
_ID_TEXTS = [
    ("7", 7),
    (" 8\t", 8),
    (str(MOST), MOST),
    *(refused(text, NOT_INTEGER) for text in ("007", "x", "1.0", "+1", "1 2", str(MOST + 1))),
    refused("-1", "must not be negative"),
]
_NAMES = [("a", 5), ("7", 9), ("b", UNKNOWN), (LONG, Refused(LONG[:200] + "...", "is longer than"))]
_SIDS = [
    ([0, 299], [0, 299]),
    ([3, 0], [3, 0]),
    ([4, 0], Refused("4", OUTSIDE.format(0, 4))),
    ([0, 300], Refused("300", OUTSIDE.format(1, 300))),
    *map(length, ([], [1], [1, 1, 1])),
]
_MOMENT = datetime(2024, 1, 31, 12, 30, 0, 250_000, UTC)
_MILLISECONDS = 1_706_704_200_250

Cells = Sequence[tuple[Any, Any]]
CASES: Sequence[tuple[str, pa.DataType | str, Cells]] = [
    ("id", pa.int64(), [*_IDS, (None, NULL)]),
    ("id", pa.int8(), [(127, 127), refused(-128, "must not be negative"), (None, NULL)]),
    ("id", pa.uint64(), [(7, 7), refused(2**63, "must be less than 2^63"), (None, NULL)]),
    ("id", pa.string(), [*_ID_TEXTS, (None, NULL)]),
    ("id", pa.dictionary("int8", pa.string()), [*_ID_TEXTS, (None, NULL)]),
    ("id", CSV, [*_ID_TEXTS, ("", NULL)]),
    ("entity", pa.int64(), [*_IDS, (None, NO_ID)]),
    ("entity", pa.uint64(), [(MOST, MOST), refused(2**64 - 1, "must be less"), (None, NO_ID)]),
    ("entity", CSV, [*_ID_TEXTS, ("", NO_ID)]),
    ("item of an ad", pa.int64(), [(7, 7), (-5, UNKNOWN), (None, NULL)]),
    ("item of an ad", pa.string(), [("7", 7), ("007", UNKNOWN), ("-1", UNKNOWN), (None, NULL)]),
    ("name", pa.string(), [*_NAMES, ("", Refused("", "is empty")), (None, NULL)]),
    ("name", pa.int64(), [(7, 9), (8, UNKNOWN), (None, NULL)]),
    ("name", pa.dictionary("int8", pa.string()), [*_NAMES, (None, NULL)]),
    ("name", CSV, [*_NAMES, ("", NULL), refused("a\nb", BREAK)]),
    ("name", CSV, [refused(text, "has blanks around it; remove") for text in (" a", "a\t")]),
    ("entity's name", pa.string(), [*_NAMES, ("", NO_ID), (None, NO_ID)]),
    ("entity's name", CSV, [*_NAMES, ("", NO_ID)]),
    ("item", pa.int64(), [*_IDS, (None, NULL)]),
    ("item", pa.string(), [("a", "a"), ("é", "é"), (None, NULL)]),
    ("item", pa.string(), [("", Refused("", "is empty")), _NAMES[-1]]),
    ("item", CSV, [("a", "a"), (" a", " a"), ("007", "007"), ("", NULL)]),
    ("sid", _INTEGERS, [*_SIDS, ([0, None], Refused(None, "holds a null token")), (None, NULL)]),
    ("sid", _INTEGERS, [([0, -1], Refused("-1", OUTSIDE.format(1, 300)))]),
    ("sid", pa.list_(pa.uint16()), _SIDS),
    ("sid", pa.large_list(pa.int16()), [*_SIDS, (None, NULL)]),
    ("sid", pa.list_(pa.uint8(), 2), [([0, 200], [0, 200]), (None, NULL)]),
    ("sid", pa.list_(pa.uint64()), [([0, 2**63], Refused(str(2**63), OUTSIDE.format(1, 300)))]),
    ("sid", pa.string(), [("0|299", [0, 299]), refused("0|x", NO_LIST), (None, NULL)]),
    ("sid", CSV, [("0|299", [0, 299]), (" 1 |\t2", [1, 2]), ("", NULL)]),
    ("sid", CSV, [("1", Refused("1 token", "the SID length is 2"))]),
    ("sid", CSV, [refused(text, NO_LIST) for text in ("0|x", "0||1", "0|", "007|1", "1.0|1")]),
    ("sid of an event", _INTEGERS, [([0, 9**9], [0, 9**9]), ([0, -1], [0, -1]), (None, [-1, -1])]),
    ("weight", pa.float64(), [(1.5, 1.5), (None, 0.0), refused(-1e39, "must be a finite")]),
    ("weight", pa.float64(), [refused(math.inf, "must be a finite")]),
    ("weight", pa.float32(), [(0.25, 0.25), refused(math.nan, "must be a finite float32")]),
    ("weight", pa.int64(), [(3, 3.0), (-(2**40), -float(2**40)), (None, 0.0)]),
    ("weight", CSV, [("1.5", 1.5), ("-1e2", -100.0), (".5", 0.5), (" 2 ", 2.0), ("", 0.0)]),
    ("weight", CSV, [refused(x, "is not a number") for x in ("x", "1.5 EUR", "nan", "1,5", "0x1")]),
    ("weight", CSV, [("1e39", Refused("1e39", "must be a finite float32"))]),
    ("rule", pa.string(), [("a|b", ["a", "b"]), (" x ", ["x"]), ("", None), (None, None)]),
    ("rule", pa.int64(), [(7, ["7"]), (-3, ["-3"]), (None, None)]),
    ("rule", pa.bool_(), [(True, ["true"]), (False, ["false"]), (None, None)]),
    ("rule", pa.list_(pa.string()), [(["a|b", " x"], ["a|b", " x"]), ([], []), (None, None)]),
    ("rule", pa.list_(pa.string()), [([None, "a"], [None, "a"])]),
    ("rule", pa.list_(pa.int16()), [([7, 8], ["7", "8"]), ([], []), (None, None)]),
    ("rule", CSV, [("a| b ", ["a", "b"]), ("NA", ["NA"]), ("\u00a0US\u3000", ["US"]), ("", None)]),
    ("rule", CSV, [("a||b", ["a", None, "b"]), ("|", [None, None]), ("a,b", ["a,b"])]),
    ("rule", CSV, [refused("a\nb", BREAK)]),
    ("time", pa.int64(), [(1_700_000_000, 1_700_000_000_000), (None, NULL)]),
    ("time", pa.int64(), [refused(631_151_999, "is not between 1990 and 2100, in s since 1970")]),
    ("time", pa.int64(), [refused(-1, "is not between 1990")]),
    ("time", pa.int64(), [(631_152_000, 631_152_000_000), refused(4_102_444_800, "is not")]),
    ("time in ms", pa.int64(), [(1_700_000_000_001, 1_700_000_000_001), refused(10**10, "is not")]),
    ("time in ns", pa.int64(), [(1_700_000_000_001_999_999, 1_700_000_000_001), (None, NULL)]),
    ("time", pa.uint64(), [refused(2**64 - 1, "is not between 1990 and 2100")]),
    ("time", pa.timestamp("us", "UTC"), [(_MOMENT, _MILLISECONDS), (None, NULL)]),
    ("time", CSV, [("1700000000", 1_700_000_000_000), (" 1700000001", 1_700_000_001_000)]),
    ("time", CSV, [("2024-01-31T12:30:00.250Z", _MILLISECONDS), ("", NULL)]),
    ("time", CSV, [("2024-01-31", 1_706_659_200_000), ("2024-01-31 12:30", 1_706_704_200_000)]),
    ("time", CSV, [refused("noon", "is neither an integer nor a time")]),
    ("vector", _NUMBERS, [([0.5, -2], [0.5, -2]), (None, NULL)]),
    ("vector", _NUMBERS, [([1], Refused("1 numbers", "others have 2"))]),
    ("vector", _NUMBERS, [([1, 2, 3], Refused("3 numbers", "others have 2"))]),
    ("vector", _NUMBERS, [([1, None], Refused("None at position 1", "not a number"))]),
    ("vector", _NUMBERS, [([-1e30, 0], Refused("-1e+30 at position 0", "beyond 1e+15; scale"))]),
    ("vector", pa.list_(pa.float32(), 2), [([1, 2], [1, 2]), (None, NULL)]),
    ("vector", pa.list_(pa.float16()), [([1, 2], [1, 2])]),
    ("vector", pa.list_(pa.float16()), [([math.nan, 0], Refused("nan at position 0", "not a"))]),
    ("vector", _INTEGERS, [([3, 4], [3, 4]), (None, NULL)]),
]
_IN_JSON = (pa.int64(), pa.float64(), pa.bool_(), pa.string())


def forms() -> Iterator[Any]:
    """Every case in each format that can have its type."""
    for number, (role, kind, cells) in enumerate(CASES):
        value = kind.value_type if isinstance(kind, pa.ListType) else kind
        in_json = value in _IN_JSON and math.inf not in [cell for cell, _ in cells]
        texts = [CSV] if kind == CSV else ["parquet", *(["jsonl"] if in_json else [])]
        for form in texts:
            yield pytest.param(form, role, kind, cells, id=f"{role}-{kind}-{form}-{number}")


def written(folder: Path, form: str, kind: Any, cells: Sequence[Any]) -> TableFile:
    path = folder / f"table.{form}"
    if form == "parquet":
        if kind == pa.list_(pa.float16()):
            cells = [None if cell is None else [*map(np.float16, cell)] for cell in cells]
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        column = pa.array(cells, plain)
        column = column.dictionary_encode().cast(kind) if plain is not kind else column
        pq.write_table(pa.table({"theirs": column, "n": range(len(cells))}), path)
    elif form == "jsonl":
        lines = (json.dumps({"theirs": cell, "n": at}) for at, cell in enumerate(cells))
        path.write_text("\n".join(lines))
    else:
        with path.open("w", newline="") as out:
            csv.writer(out).writerows([("theirs", "n"), *((x, at) for at, x in enumerate(cells))])
    return open_table(str(path), "|")


@pytest.mark.parametrize("most", [2, 1000])
@pytest.mark.parametrize(("form", "role", "kind", "cells"), [*forms()])
def test_a_cell_is_read_as_its_role_or_its_row_is_refused(
    tmp_path: Path, form: str, role: str, kind: Any, cells: Cells, most: int
) -> None:
    file = written(tmp_path, form, kind, [cell for cell, _ in cells])
    found: list[Any] = []
    for rows in read_rows(file, {"x": "theirs", "n": "n"}, "n", most):
        values = READ[role](rows)
        listed = values.to_pylist() if isinstance(values, pa.Array) else values.tolist()
        assert rows.refused().nonzero()[0].tolist() == sorted(rows.faults)
        for reject, row in zip(rows.rejects(), sorted(rows.faults), strict=True):
            assert (reject.row, reject.fault.column) == (len(found) + row, "x")
            listed[row] = Refused(reject.fault.value, reject.fault.reason)
        found += listed
    for at, (cell, expected) in enumerate(cells):
        if isinstance(expected, Refused) and isinstance(found[at], Refused):
            assert found[at].value == expected.value, cell
            assert found[at].reason.startswith(expected.reason), cell
        else:
            assert found[at] == expected, cell


def test_bytes_that_are_not_utf8_name_nothing(tmp_path: Path) -> None:
    texts = pa.array([b"a", b"\xff\xfe"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"x": texts, "y": [["a"], ["b"]]}), tmp_path / "t.parquet")
    file = open_table(str(tmp_path / "t.parquet"))
    (rows,) = read_rows(file, {"x": "x", "y": "y"}, "x", 9)
    assert rows.ids("x", NAMES)[0] == 5
    assert rows.faults[1].reason == "is not UTF-8"
    with pytest.raises(InputError, match=r"t\.parquet row 2: x: is not UTF-8"):
        rows.require_good("ad")
    split = replace(rows, file=replace(rows.file, list_separator=";"))
    for read in split.rules, split.moments:
        with pytest.raises(InputError, match=r"t\.parquet: column 'x': .*; write .* in UTF-8"):
            read("x")


def test_a_row_has_its_first_fault_and_is_named_by_its_key(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [4, 5], "w": [1.0, math.nan]}), tmp_path / "t.parquet")
    file = open_table(str(tmp_path / "t.parquet"))
    (rows,) = read_rows(file, {"ad_id": "id", "ad_weight": "w"}, "ad_id", 9)
    rows.require_good("ad")
    rows.weights("ad_weight")
    rows.refuse(1, "ad_id", None, "later")
    with pytest.raises(InputError, match=r"row 2, ad 5: w 'nan': must be a finite float32"):
        rows.require_good("ad")
    assert rows.rejects()[0].fault.column == "ad_weight"
    chosen = rows.where(pa.array([False, True]))
    assert (chosen.places.tolist(), len(chosen), chosen.rejects()) == ([1], 1, ())


TYPES: Mapping[str, pa.DataType] = {
    **{str(kind): kind for kind in (pa.int8(), pa.uint64(), pa.float16(), pa.float64())},
    **{str(kind): kind for kind in (pa.string(), pa.large_string(), pa.bool_(), pa.null())},
    **{str(kind): kind for kind in (pa.binary(), pa.date32(), pa.timestamp("us"))},
    "decimal": pa.decimal128(9, 0),
    "dictionary": pa.dictionary("int8", pa.string()),
    "struct": pa.struct([("a", pa.int64())]),
    "integers": pa.list_(pa.uint16()),
    "fixed integers": pa.list_(pa.int64(), 2),
    "floats": pa.large_list(pa.float32()),
    "texts": pa.list_(pa.string()),
    "nulls": pa.list_(pa.null()),
    "booleans": pa.list_(pa.bool_()),
    "lists": pa.list_(pa.list_(pa.string())),
    "times": pa.list_(pa.timestamp("ns")),
}
_WHOLE = {"int8", "uint64"}
_TEXT = {"string", "large_string", "dictionary"}
ACCEPTED: Mapping[str, set[str]] = {
    "ID": _WHOLE,
    "NAME": _WHOLE | _TEXT,
    "ENTITY": _WHOLE | {"null"},
    "ENTITY_NAME": _WHOLE | _TEXT | {"null"},
    "SID": {"integers", "fixed integers"},
    "RULE": _WHOLE
    | _TEXT
    | {"bool", "null", "integers", "fixed integers", "texts", "nulls", "booleans"},
    "WEIGHT": _WHOLE | {"halffloat", "double", "null"},
    "TIME": _WHOLE | _TEXT | {"timestamp[us]"},
    "TEXT": _TEXT | {"null"},
    "VECTOR": {"integers", "fixed integers", "floats"},
}


def table_of(kind: pa.DataType, form: Format = Format.PARQUET) -> TableFile:
    return TableFile("t", form, pa.schema([("sku", kind)]), 1)


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_role_accepts_the_types_that_it_can_read(name: str) -> None:
    role: Role = getattr(roles, name)
    for shown, kind in TYPES.items():
        fault = type_fault(role, table_of(kind), "sku")
        assert (fault is None) == (shown in ACCEPTED[name]), shown
        if fault is not None:
            assert fault.startswith(f"must be {role.types}, got {kind}; cast the column to ")
    assert type_fault(role, table_of(pa.string(), Format.CSV), "sku") is None


def test_a_missing_or_odd_column_is_named_as_the_table_and_as_we_name_it() -> None:
    table = table_of(pa.float64())
    with pytest.raises(InputError, match=r"t: column 'id', named so, is missing; it has: sku$"):
        require_column(roles.ID, table, "ad_id", "id", ", named so,")
    with pytest.raises(InputError, match="t: column 'sku', our 'ad_id', must be int64, got double"):
        require_column(roles.ID, table, "ad_id", "sku")
