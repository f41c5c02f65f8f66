"""Items with their vectors, from a table that is checked row by row, and never all in memory."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from grace.configs.errors import InputError
from grace.index.codebook.codebook import Vectors
from grace.index.tables.addresses import Format
from grace.index.tables.cells import is_text
from grace.index.tables.data_folder import TableSource
from grace.index.tables.roles import NAME, VECTOR, require_column
from grace.index.tables.rows import read_rows
from grace.index.tables.table_file import TableFile

Ids: TypeAlias = pa.Array  # int64 or large_string [items], without nulls

BATCH_ITEMS = 1 << 16
MOST_DIMS = 1 << 14
_TEXT = pa.large_string()
_NUMBERS_AT_A_TIME = 1 << 23


@dataclass(frozen=True, slots=True)
class Items:
    """Items that can be read several times, in the same order."""

    files: Sequence[TableFile]
    theirs: Mapping[str, str]  # the tables' names of `item_id` and `vector`
    dims: int
    # ids as texts: only items with these ids and a usable vector are read; None: all items
    wanted: Ids | None = None

    @property
    def name(self) -> str:
        return self.files[0].address

    def batches(self) -> Iterator[tuple[Ids, Vectors]]:
        """Yield ids and finite vectors.   [items], float32 [items, dims]"""
        most = max(1, min(BATCH_ITEMS, _NUMBERS_AT_A_TIME // self.dims))
        batches = (read_rows(file, self.theirs, "item_id", most) for file in self.files)
        for rows in chain.from_iterable(batches):
            if self.wanted is not None:
                rows = rows.where(pc.is_in(rows.given("item_id").cast(_TEXT), self.wanted))
            ids, vectors = rows.names("item_id"), rows.vectors("vector", self.dims)
            if self.wanted is None:
                rows.require_good("item")
            good = ~rows.refused()
            if good.any():
                yield ids.filter(pa.array(good)), vectors[good]


def items_of(source: TableSource, dims: int | None = None) -> Items:
    """Open a table of vectors. `dims` are those of a vector; None: of the first."""
    files = source.tables()
    theirs = {ours: source.theirs(ours) for ours in ("item_id", "vector")}
    for file in files:
        if file.format is Format.CSV:
            raise InputError(
                f"{file.address}: a CSV has no column of vectors; write Parquet or JSON lines"
            )
        for (ours, named), role in zip(theirs.items(), (NAME, VECTOR), strict=True):
            require_column(role, file, ours, named, f", our {ours}," if named != ours else "")
    if len({is_text(file.schema.field(theirs["item_id"]).type) for file in files}) > 1:
        raise InputError(
            f"{files[0].address}: column {theirs['item_id']!r} has texts in some files and "
            "integers in others; give all files the same type"
        )
    return Items(files, theirs, dims or _dims(files, theirs["vector"]))


def _dims(files: Sequence[TableFile], column: str) -> int:
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
