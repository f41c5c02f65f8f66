"""Items with their vectors, from a table or from .npy files, checked row by row.

A reader may read a table twice, and never holds all of it in memory.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from grace.configs.errors import InputError
from grace.index.codebook.codebook import Vectors
from grace.index.importers.items import BATCH_ITEMS
from grace.index.importers.npy import id_batches, open_array
from grace.index.rejects import brief
from grace.index.tables.addresses import Format
from grace.index.tables.cells import is_list, is_text
from grace.index.tables.data_folder import TableSource
from grace.index.tables.item_numbers import no_name
from grace.index.tables.table_file import TableFile, table_files

Ids: TypeAlias = pa.Array
"""int64 or large_string [items], without nulls"""

Rows = npt.NDArray[np.int64]
"""The row of each item in its file, from 0"""

MOST_DIMS = 1 << 14
LARGEST = 1e15  # the square of a larger number has no exact place in float32
_NUMBERS_AT_A_TIME = 1 << 23
_FLOATS = re.compile(r"[<>=|]?f[248]")
_ID_NAMES = ("item_id", "ad_id", "id")


@dataclass(frozen=True, slots=True)
class ItemBatch:
    """
    ids      [items]
    vectors  float32 [items, dims], all finite
    """

    ids: Ids
    vectors: Vectors


class Items(Protocol):
    """Items that can be read several times, in the same order."""

    @property
    def name(self) -> str: ...

    @property
    def rows(self) -> int | None: ...

    @property
    def dims(self) -> int: ...

    def batches(self) -> Iterator[ItemBatch]: ...


def open_items(
    embeddings: str, ids: Path | None, id_column: str | None, vector_column: str | None
) -> Items:
    if embeddings.lower().endswith(".npy"):
        for option, value in (("--id-column", id_column), ("--vector-column", vector_column)):
            if value is not None:
                raise InputError(f"{option} {value}: a .npy has no columns; leave the option out")
        return NpyItems.open(Path(embeddings), ids)
    if ids is not None:
        raise InputError(f"--ids {ids}: {embeddings} names its items itself; leave --ids out")
    return TableItems.open([embeddings], id_column, vector_column)


@dataclass(frozen=True, slots=True)
class NpyItems:
    """An array [items, dims]; without ids, a row's number names its item."""

    path: Path
    ids: Path | None
    array: npt.NDArray[np.floating]

    @classmethod
    def open(cls, path: Path, ids: Path | None) -> "NpyItems":
        for file in (path, ids):
            if file is not None and not file.is_file():
                raise InputError(f"{file}: no such file")
        array = open_array(path, _FLOATS, "float16, float32 or float64")
        if array.ndim != 2 or not 1 <= array.shape[1] <= MOST_DIMS:
            raise InputError(
                f"{path}: expected [items, dims, 1 to {MOST_DIMS}], got {list(array.shape)}"
            )
        return cls(path, ids, array)

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def rows(self) -> int:
        return len(self.array)

    @property
    def dims(self) -> int:
        return int(self.array.shape[1])

    def batches(self) -> Iterator[ItemBatch]:
        rows = max(1, _NUMBERS_AT_A_TIME // self.dims)
        first = 0
        for part in id_batches(self.ids, len(self.array)):
            if first >= len(self.array):
                raise InputError(f"{self.ids}: more ids than the {first} items of {self.path}")
            named = pa.array(part, pa.large_string() if isinstance(part, list) else pa.int64())
            places = np.arange(first, first + len(named))
            _require_ids(str(self.ids or self.path), places, named, "the id")
            for begin in range(0, len(named), rows):
                ids, at = named.slice(begin, rows), places[begin : begin + rows]
                vectors = np.asarray(self.array[at[0] : at[0] + len(ids)])
                yield ItemBatch(ids, _finite(self.name, at, ids, vectors, "the vector"))
            first += len(named)


@dataclass(frozen=True, slots=True)
class TableItems:
    """The files of a table with the columns of ids and of vectors.

    wanted  ids as texts: only items with these ids and a usable vector are read; None: all items
    """

    files: tuple[TableFile, ...]
    id_column: str
    vector_column: str
    dims: int
    wanted: Ids | None = None

    @classmethod
    def open(
        cls,
        addresses: Sequence[str],
        id_column: str | None,
        vector_column: str | None,
        dims: int | None = None,
    ) -> "TableItems":
        """`dims` are those of a vector; None: of the first one."""
        files = tuple(table_files(addresses))
        columns = None
        for file in files:
            if file.format is Format.CSV:
                raise InputError(
                    f"{file.address}: a CSV has no column of vectors; write Parquet, JSON lines "
                    "or a .npy"
                )
            ids = _id_column(file, id_column)
            found = ids, _vector_column(file, vector_column), is_text(file.schema.field(ids).type)
            if columns not in (None, found):
                raise InputError(
                    f"{file.address}: its columns of ids and vectors are not those of "
                    f"{files[0].address}; give all files the same names and types"
                )
            columns = found
        assert columns is not None
        return cls(files, columns[0], columns[1], dims or _dims(files, columns[1]))

    @classmethod
    def of(cls, source: TableSource, dims: int | None = None) -> "TableItems":
        return cls.open(source.files, source.theirs("item_id"), source.theirs("vector"), dims)

    @property
    def name(self) -> str:
        return self.files[0].address

    @property
    def rows(self) -> int | None:
        counts = [file.rows for file in self.files]
        return None if None in counts else sum(count or 0 for count in counts)

    def batches(self) -> Iterator[ItemBatch]:
        most = max(1, min(BATCH_ITEMS, _NUMBERS_AT_A_TIME // self.dims))
        shown = f"column {self.vector_column!r}"
        for file in self.files:
            first = 0
            for batch in file.batches([self.id_column, self.vector_column], most):
                rows = np.arange(first, first + batch.num_rows)
                first += batch.num_rows
                if self.wanted is not None:
                    kept = pc.is_in(batch.column(0).cast(pa.large_string()), self.wanted)
                    rows, batch = rows[kept.to_numpy(zero_copy_only=False)], batch.filter(kept)
                    usable = _usable(batch.column(1), self.dims)
                    rows, batch = rows[usable], batch.filter(pa.array(usable))
                if len(rows):
                    ids = _ids(file.address, rows, batch.column(0), f"column {self.id_column!r}")
                    numbers = _rectangle(file.address, rows, ids, batch.column(1), self.dims, shown)
                    yield ItemBatch(ids, _finite(file.address, rows, ids, numbers, shown))


def _id_column(file: TableFile, wanted: str | None) -> str:
    kinds = {
        field.name: field.type
        for field in file.schema
        if is_text(field.type) or (pa.types.is_integer(field.type) and field.type != pa.uint64())
    }
    if wanted is not None:
        _require_column(file, wanted)
        if wanted not in kinds:
            found = file.schema.field(wanted).type
            raise InputError(
                f"{file.address}: column {wanted!r} must be integers or text, got {found}; "
                "cast it to int64 or string"
            )
        return wanted
    usual = [name for name in _ID_NAMES if name in kinds]
    return _only(file, usual[:1] or list(kinds), "ids", "--id-column", "integers or text")


def _vector_column(file: TableFile, wanted: str | None) -> str:
    kinds = {field.name: field.type.value_type for field in file.schema if is_list(field.type)}
    if wanted is not None:
        _require_column(file, wanted)
        held = kinds.get(wanted)
        if held is None or not (pa.types.is_floating(held) or pa.types.is_integer(held)):
            found = file.schema.field(wanted).type
            raise InputError(
                f"{file.address}: column {wanted!r} must be lists of float32, got {found}"
            )
        return wanted
    floats = [name for name, held in kinds.items() if pa.types.is_floating(held)]
    return _only(file, floats, "vectors", "--vector-column", "lists of floats")


def _require_column(file: TableFile, name: str) -> None:
    if name not in file.schema.names:
        raise InputError(
            f"{file.address}: column {name!r} is missing; it has {', '.join(file.schema.names)}"
        )


def _only(file: TableFile, names: list[str], what: str, option: str, kinds: str) -> str:
    if len(names) != 1:
        found = f"{len(names)} columns may: {', '.join(names)}" if names else "no column does"
        raise InputError(
            f"{file.address}: the {what} are in a column of {kinds}, and {found}; "
            f"name it with {option}"
        )
    return names[0]


def _dims(files: tuple[TableFile, ...], column: str) -> int:
    """Return the length of the first vector."""
    for file in files:
        kind = file.schema.field(column).type
        if pa.types.is_fixed_size_list(kind):
            return _checked_dims(file, column, int(kind.list_size))
        for batch in file.batches([column], BATCH_ITEMS):
            lengths = pc.list_value_length(batch.column(0)).drop_null()
            if len(lengths):
                return _checked_dims(file, column, int(lengths[0].as_py()))
    raise InputError(f"{files[0].address}: no row has a vector; there are no items to give SIDs to")


def _checked_dims(file: TableFile, column: str, dims: int) -> int:
    if not 1 <= dims <= MOST_DIMS:
        raise InputError(
            f"{file.address}: column {column!r}: vectors of {dims} numbers; use 1 to {MOST_DIMS}"
        )
    return dims


def _ids(file: str, rows: Rows, column: pa.Array, shown: str) -> Ids:
    if column.null_count:
        at = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise InputError(f"{file}: row {rows[at] + 1}: {shown} is null; every item needs an id")
    ids = column.cast(pa.large_string() if is_text(column.type) else pa.int64())
    _require_ids(file, rows, ids, shown)
    return ids


def _require_ids(file: str, rows: Rows, ids: Ids, shown: str) -> None:
    if pa.types.is_integer(ids.type):
        for at in np.flatnonzero(ids.to_numpy() < 0)[:1].tolist():
            raise InputError(
                f"{file}: row {rows[at] + 1}: {shown} is {ids[at]}; give ids from 0 on"
            )
        return
    lengths = pc.utf8_length(ids).to_numpy(zero_copy_only=False)
    for at in {int(lengths.argmin()), int(lengths.argmax())} if len(ids) else ():
        if fault := no_name(ids[at].as_py()):
            raise InputError(f"{file}: row {rows[at] + 1}: {shown} {fault}")


def _rectangle(
    file: str, rows: Rows, ids: Ids, column: pa.Array, dims: int, shown: str
) -> npt.NDArray[np.floating]:
    """Return the vectors of a list column.   -> [items, dims]"""
    lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)
    for at in np.flatnonzero(lengths != dims)[:1].tolist():
        fault = "is null" if lengths[at] < 0 else f"has {lengths[at]} numbers, others have {dims}"
        raise InputError(f"{_place(file, rows, ids, at)}: {shown} {fault}")
    numbers = column.flatten()
    if numbers.null_count:
        at = int(np.flatnonzero(numbers.is_null().to_numpy(zero_copy_only=False))[0]) // dims
        raise InputError(f"{_place(file, rows, ids, at)}: {shown} holds a null")
    rectangle: npt.NDArray[np.floating] = numbers.to_numpy(zero_copy_only=False)
    return rectangle.reshape(-1, dims)


def _usable(column: pa.Array, dims: int) -> npt.NDArray[np.bool_]:
    """Return which vectors pass `_rectangle` and `_finite`."""
    lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)
    usable: npt.NDArray[np.bool_] = lengths == dims
    numbers = column.filter(pa.array(usable)).flatten().cast(pa.float64(), safe=False)
    rectangle = numbers.to_numpy(zero_copy_only=False).reshape(-1, dims)  # a null becomes NaN
    usable[usable] = (np.abs(rectangle) <= LARGEST).all(axis=1)
    return usable


def _finite(
    file: str, rows: Rows, ids: Ids, numbers: npt.NDArray[np.floating], shown: str
) -> Vectors:
    """Return the numbers as float32."""
    # Use Python's floats: NumPy would cast LARGEST to float16, which cannot hold it.
    low, high = (float(numbers.min()), float(numbers.max())) if numbers.size else (0.0, 0.0)
    if not (low >= -LARGEST and high <= LARGEST):  # NaN is neither
        bad = ~(np.abs(numbers) <= LARGEST)
        at, place = (int(each[0]) for each in np.nonzero(bad))
        value = numbers[at, place]
        fault = f"beyond {LARGEST:g}; scale the vectors" if np.isfinite(value) else "not a number"
        raise InputError(
            f"{_place(file, rows, ids, at)}: {shown} holds {value} at position {place}, {fault}"
        )
    return numbers.astype(np.float32, order="C")  # a copy: what was read is read-only


def _place(file: str, rows: Rows, ids: Ids, at: int) -> str:
    return f"{file}: row {rows[at] + 1}, item {brief(str(ids[at].as_py()))}"


def require_distinct(name: str, ids: Ids) -> None:
    """Refuse an id that two items have."""
    codes = ids.dictionary_encode().indices.to_numpy()
    if len(codes) and int(codes.max()) + 1 == len(codes):
        return
    order = np.argsort(codes, kind="stable")
    for at in np.flatnonzero(np.diff(codes[order]) == 0)[:1].tolist():
        one, other = order[at : at + 2].tolist()
        raise InputError(
            f"{name}: item {brief(str(ids[one].as_py()))} is in rows {one + 1} and {other + 1}; "
            "give each item once"
        )
