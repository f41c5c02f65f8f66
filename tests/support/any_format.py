"""Plain Python cells as a table of any format, in types and encodings that are drawn."""

import csv
import json
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from grace.index.tables.cells import is_list

Draw = Callable[[st.SearchStrategy[Any]], Any]
Cell = Any
"""A text of a CSV or None; a scalar, a list or None of the others."""

_TEXTS = [
    pa.string(),
    pa.large_string(),
    pa.dictionary("int8", pa.string()),
    pa.dictionary("int32", pa.large_string()),
]
_TYPES = {
    "number": [pa.float16(), pa.float32(), pa.float64()],
    "boolean": [pa.bool_()],
    "integer": [pa.int64()],
    "integers": [pa.int64()],
    "text": _TEXTS,
    "list": _TEXTS,
}


def write_table(
    draw: Draw,
    path: Path,
    columns: Mapping[str, list[Cell]],
    kinds: Mapping[str, str],
    typed: Set[str],
    separator: str,
) -> None:
    """`kinds` has the kind of each column's cells. The columns of `typed` never have type null."""
    if path.suffix == ".parquet":
        _write_parquet(draw, path, columns, kinds, typed)
        return
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    with path.open("w", newline="") as out:
        if path.suffix == ".jsonl":
            out.writelines(json.dumps(row) + "\n" for row in rows)
            return
        writer = csv.writer(out)
        writer.writerow(columns)
        writer.writerows([_text(cell, separator) for cell in row.values()] for row in rows)


def _text(cell: Cell, separator: str) -> Cell:
    if not isinstance(cell, list):
        return cell
    return separator.join("" if each is None else str(each) for each in cell)


def _write_parquet(
    draw: Draw,
    path: Path,
    columns: Mapping[str, list[Cell]],
    kinds: Mapping[str, str],
    typed: Set[str],
) -> None:
    arrays = {}
    for name in draw(st.permutations(list(columns))):
        cells = columns[name]
        untyped = name not in typed and all(cell is None for cell in cells)
        # pandas writes a column of None with type null.
        kind = pa.null() if untyped and draw(st.booleans()) else _type(draw, kinds[name], cells)
        arrays[name] = _array(cells, kind)
    group, schema = draw(st.sampled_from([1, 2, 1000])), draw(st.booleans())
    pq.write_table(pa.table(arrays), path, row_group_size=group, store_schema=schema)


def _type(draw: Draw, kind: str, cells: Sequence[Cell]) -> pa.DataType:
    value = draw(st.sampled_from(_TYPES[kind]))
    if kind not in ("list", "integers"):
        return value
    lists = [pa.list_(value), pa.large_list(value)]
    lengths = {len(cell) for cell in cells if cell is not None}
    if len(lengths) == 1 and lengths != {0}:
        lists.append(pa.list_(value, lengths.pop()))
    return draw(st.sampled_from(lists))


def _array(cells: list[Cell], kind: pa.DataType) -> pa.Array:
    if pa.types.is_float16(kind):
        return pa.array([None if cell is None else np.float16(cell) for cell in cells], kind)
    value = kind.value_type if is_list(kind) else None
    if value is not None and pa.types.is_dictionary(value):
        # Arrow makes no lists of dictionaries from Python, but casts to them.
        lists = pa.array(cells, pa.list_(value.value_type))
        encoded = lists.values.dictionary_encode().cast(value)
        made = pa.ListArray.from_arrays(lists.offsets, encoded, mask=lists.is_null())
        return made if pa.types.is_list(kind) else made.cast(kind)
    return pa.array(cells, kind)
