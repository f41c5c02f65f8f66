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
_INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64()]


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
    pq.write_table(
        pa.table(arrays),
        path,
        row_group_size=draw(st.sampled_from([1, 2, 1000])),
        compression=draw(st.sampled_from(["none", "snappy", "zstd", "gzip", "lz4"])),
        use_dictionary=draw(st.booleans()),
        data_page_version=draw(st.sampled_from(["1.0", "2.0"])),
        store_schema=draw(st.booleans()),
    )


def _type(draw: Draw, kind: str, cells: Sequence[Cell]) -> pa.DataType:
    if kind == "number":
        return draw(st.sampled_from([pa.float16(), pa.float32(), pa.float64()]))
    if kind == "boolean":
        return pa.bool_()
    values = [value for cell in cells for value in (cell if isinstance(cell, list) else [cell])]
    integers = _fitting(values) if kind in ("integer", "integers") else []
    value = draw(st.sampled_from(integers or _TEXTS))
    if kind in ("text", "integer"):
        return value
    lists = [pa.list_(value), pa.large_list(value)]
    lengths = {len(cell) for cell in cells if cell is not None}
    if len(lengths) == 1 and lengths != {0}:
        lists.append(pa.list_(value, lengths.pop()))
    return draw(st.sampled_from(lists))


def _fitting(values: Sequence[int | None]) -> list[pa.DataType]:
    def fits(kind: pa.DataType) -> bool:
        limits = np.iinfo(kind.to_pandas_dtype())
        return all(value is None or limits.min <= value <= limits.max for value in values)

    return [kind for kind in _INTEGERS if fits(kind)]


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
