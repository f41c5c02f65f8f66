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
from grace.index.tables.cells import is_text
from grace.index.tables.data_folder import TableSource
from grace.index.tables.roles import NAME, VECTOR, require_column
from grace.index.tables.rows import Rows, other_rows, read_rows
from grace.index.tables.table_file import TableFile

Ids: TypeAlias = pa.Array
"""int64 or large_string [items], without nulls"""

MOST_DIMS = 1 << 14
_TEXT = pa.large_string()
_NUMBERS_AT_A_TIME = 1 << 23
_FLOATS = re.compile(r"[<>=|]?f[248]")


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


def open_items(embeddings: str, ids: Path | None) -> Items:
    """Open an array, or a table with the columns `item_id` and `vector`."""
    if embeddings.lower().endswith(".npy"):
        return _npy_items(Path(embeddings), ids)
    if ids is not None:
        raise InputError(f"--ids {ids}: {embeddings} names its items itself; leave --ids out")
    return items_of(TableSource((embeddings,)))


def items_of(source: TableSource, dims: int | None = None) -> Items:
    """Open a table of vectors. `dims` are those of a vector; None: of the first."""
    files = source.tables()
    theirs = {ours: source.theirs(ours) for ours in ("item_id", "vector")}
    for file in files:
        if file.format is Format.CSV:
            raise InputError(
                f"{file.address}: a CSV has no column of vectors; write Parquet, JSON lines or a "
                ".npy"
            )
        for (ours, named), role in zip(theirs.items(), (NAME, VECTOR), strict=True):
            require_column(role, file, ours, named, f", our {ours}," if named != ours else "")
    if len({is_text(file.schema.field(theirs["item_id"]).type) for file in files}) > 1:
        raise InputError(
            f"{files[0].address}: column {theirs['item_id']!r} has texts in some files and "
            "integers in others; give all files the same type"
        )
    dims = dims or _dims(files, theirs["vector"])
    most = max(1, min(BATCH_ITEMS, _NUMBERS_AT_A_TIME // dims))

    def read() -> Iterator[Rows]:
        for file in files:
            yield from read_rows(file, theirs, "item_id", most)

    counts = [file.rows for file in files if file.rows is not None]
    rows = sum(counts) if len(counts) == len(files) else None
    return Items(files[0].address, rows, dims, read)


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
