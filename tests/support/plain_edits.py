"""Edits of arrays in NumPy, over whole arrays: what the native ones must equal."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.index.changes.rows import Edit
from grace.index.targeting.rules import Column, Groups, Lists

Array = npt.NDArray[Any]


def plain_rows(array: Array, edit: Edit, new: Array, ids: Edit | None = None) -> Array:
    """The array after an edit of its rows. `ids` moves the values of the rows that stay."""
    stays, joins = np.ones(edit.size, np.bool_), np.zeros(edit.rows, np.bool_)
    stays[edit.removed], joins[edit.places] = False, True
    found = np.empty((edit.rows, *array.shape[1:]), array.dtype)
    found[~joins] = array[stays] if ids is None else ids.moved(array[stays])
    found[joins] = new
    return found


def plain_offsets(offsets: Array, edit: Edit, sizes: npt.NDArray[np.int64]) -> Array:
    found = np.zeros(edit.rows + 1, offsets.dtype)
    np.cumsum(plain_rows(np.diff(offsets), edit, sizes), out=found[1:])
    return found


def plain_places(columns: Sequence[Column], wanted: Sequence[Column]) -> list[int]:
    """The first place of each wanted row among the rows, or -1."""
    rows = [*zip(*map(_rows_of, columns), strict=True)]
    own = zip(*map(_rows_of, wanted), strict=True)
    return [rows.index(row) if row in rows else -1 for row in own]


def _rows_of(column: Column) -> list[Any]:
    if isinstance(column, Groups):
        lists = _rows_of(column.lists)
        return [lists[begin:end] for begin, end in pairwise(column.offsets.tolist())]
    if isinstance(column, Lists):
        return [column.values[a:b].tolist() for a, b in pairwise(column.offsets.tolist())]
    return [row.tobytes() for row in column]
