"""Items with their vectors, from a table or from .npy files, checked row by row.

A reader may read a table twice, and never holds all of it in memory.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from grace.configs.errors import InputError
from grace.index.codebook.codebook import Vectors
from grace.index.importers.npy import BATCH_ITEMS, as_lists, open_array, read_ids
from grace.index.tables.addresses import Format
from grace.index.tables.cells import is_list, is_text
from grace.index.tables.data_folder import TableSource
from grace.index.tables.roles import NAME, VECTOR, require_column
from grace.index.tables.rows import Rows, other_rows, read_rows
from grace.index.tables.table_file import TableFile, table_files

Ids: TypeAlias = pa.Array
"""int64 or large_string [items], without nulls"""

MOST_DIMS = 1 << 14
_TEXT = pa.large_string()
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


@dataclass(frozen=True, slots=True)
class Items:
    """Items that can be read several times, in the same order.

    rows    None if they are known only after reading
    read    yields the rows of `item_id` and `vector`, checked by their types
    wanted  ids as texts: only items with these ids and a usable vector are read; None: all items
    """

    name: str
    rows: int | None
    dims: int
    read: Callable[[], Iterator[Rows]]
    wanted: Ids | None = None

    def batches(self) -> Iterator[ItemBatch]:
        for rows in self.read():
            if self.wanted is not None:
                rows = rows.where(pc.is_in(rows.given("item_id").cast(_TEXT), self.wanted))
            ids, vectors = rows.names("item_id"), rows.vectors("vector", self.dims)
            if self.wanted is None:
                rows.require_good("item")
            good = ~rows.refused()
            if good.any():
                yield ItemBatch(ids.filter(pa.array(good)), vectors[good])


def open_items(
    embeddings: str, ids: Path | None, id_column: str | None, vector_column: str | None
) -> Items:
    if embeddings.lower().endswith(".npy"):
        for option, value in (("--id-column", id_column), ("--vector-column", vector_column)):
            if value is not None:
                raise InputError(f"{option} {value}: a .npy has no columns; leave the option out")
        return _npy_items(Path(embeddings), ids)
    if ids is not None:
        raise InputError(f"--ids {ids}: {embeddings} names its items itself; leave --ids out")
    return _table_items([embeddings], id_column, vector_column)


def items_of(source: TableSource, dims: int | None = None) -> Items:
    """Open the embeddings of a data folder. `dims` are those of a vector; None: of the first."""
    return _table_items(source.files, source.theirs("item_id"), source.theirs("vector"), dims)


def _npy_items(path: Path, ids: Path | None) -> Items:
    """Open an array [items, dims]; without ids, a row's number names its item."""
    for file in (path, ids):
        if file is not None and not file.is_file():
            raise InputError(f"{file}: no such file")
    array = open_array(path, _FLOATS, "float16, float32 or float64")
    if array.ndim != 2 or not 1 <= array.shape[1] <= MOST_DIMS:
        raise InputError(
            f"{path}: expected [items, dims, 1 to {MOST_DIMS}], got {list(array.shape)}"
        )
    rows, dims = array.shape
    most, names = max(1, _NUMBERS_AT_A_TIME // dims), read_ids(ids, rows)

    def read() -> Iterator[Rows]:
        for at in range(0, rows, most):
            named = names.slice(at, most)
            columns = {"item_id": named, "vector": as_lists(array[at : at + len(named)])}
            yield other_rows(str(path), range(at, at + len(named)), columns, "item_id", {})

    return Items(str(path), rows, dims, read)


def _table_items(
    addresses: Sequence[str],
    id_column: str | None,
    vector_column: str | None,
    given_dims: int | None = None,
) -> Items:
    files = table_files(addresses)
    columns = None
    for file in files:
        if file.format is Format.CSV:
            raise InputError(
                f"{file.address}: a CSV has no column of vectors; write Parquet, JSON lines or a "
                ".npy"
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
    theirs = {"item_id": columns[0], "vector": columns[1]}
    dims = given_dims or _dims(files, columns[1])
    most = max(1, min(BATCH_ITEMS, _NUMBERS_AT_A_TIME // dims))

    def read() -> Iterator[Rows]:
        for file in files:
            yield from read_rows(file, theirs, "item_id", most)

    counts = [file.rows for file in files if file.rows is not None]
    rows = sum(counts) if len(counts) == len(files) else None
    return Items(files[0].address, rows, dims, read)


def _id_column(file: TableFile, wanted: str | None) -> str:
    if wanted is not None:
        require_column(NAME, file, wanted, wanted)
        return wanted
    fit = [field.name for field in file.schema if NAME.fits(field.type)]
    usual = [name for name in _ID_NAMES if name in fit]
    return _only(file, usual[:1] or fit, "ids", "--id-column", "integers or text")


def _vector_column(file: TableFile, wanted: str | None) -> str:
    if wanted is not None:
        require_column(VECTOR, file, wanted, wanted)
        return wanted
    kinds = {field.name: field.type.value_type for field in file.schema if is_list(field.type)}
    floats = [name for name, held in kinds.items() if pa.types.is_floating(held)]
    return _only(file, floats, "vectors", "--vector-column", "lists of floats")


def _only(file: TableFile, names: list[str], what: str, option: str, kinds: str) -> str:
    if len(names) != 1:
        found = f"{len(names)} columns may: {', '.join(names)}" if names else "no column does"
        raise InputError(
            f"{file.address}: the {what} are in a column of {kinds}, and {found}; "
            f"name it with {option}"
        )
    return names[0]


def _dims(files: Sequence[TableFile], column: str) -> int:
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
