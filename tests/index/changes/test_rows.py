"""Native edits of arrays against NumPy, with several blocks of rows, and what they refuse."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.index.changes.rows import Edit, Editor
from grace.index.targeting.rules import Column, Groups, Lists, take
from support.arrays import assert_same_arrays
from support.strategies import examples

Seeds = st.integers(0, 2**32 - 1)
Array = npt.NDArray[Any]


def plain_rows(array: Array, edit: Edit, new: Array) -> Array:
    with_new = np.insert(array, edit.at, new, axis=0)
    gone = edit.removed + np.searchsorted(edit.at, edit.removed, "right")
    return np.delete(with_new, gone, axis=0)


def plain_ids(ids: Array, moves: Edit) -> Array:
    """The numbers of rows after an edit of these, where there are any."""
    rows = plain_rows(np.arange(moves.size), moves, np.full(len(moves.at), -1))
    number = np.full(moves.size, -1, np.int32)
    number[rows[rows >= 0]] = np.flatnonzero(rows >= 0)
    return np.where(ids < 0, ids, number[ids])


def plain_offsets(offsets: Array, edit: Edit, sizes: npt.NDArray[np.int64]) -> Array:
    sizes = plain_rows(np.diff(offsets), edit, sizes)
    return np.append(0, np.cumsum(sizes)).astype(offsets.dtype)


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


def random_edit(rng: np.random.Generator, size: int, most: int) -> Edit:
    """Often neighbours go, several rows join at one place, and some at the end."""
    removed = np.unique(rng.integers(0, max(size, 1), size=rng.integers(min(most, size) + 1)))
    near = removed[: rng.integers(len(removed) + 1)]
    at = np.concatenate([rng.integers(0, size + 1, size=rng.integers(most + 1)), near, [size] * 2])
    return Edit(size, removed[:size], np.sort(at.astype(np.int64)))


@examples(60)
@given(seed=Seeds, size=st.sampled_from((0, 1, 2, 7, 63, 300)), threads=st.sampled_from((1, 3)))
def test_edits_of_arrays_equal_those_of_numpy(seed: int, size: int, threads: int) -> None:
    assert_same_edits(np.random.default_rng(seed), size, 40, threads)


@pytest.mark.parametrize("size", [1 << 18, (1 << 18) + 1, 700_001])
def test_edits_of_several_blocks_equal_those_of_numpy(size: int) -> None:
    for most in (3, 9999):
        assert_same_edits(np.random.default_rng(size), size, most, 3)


def assert_same_edits(rng: np.random.Generator, size: int, most: int, threads: int) -> None:
    editor, edit = Editor(threads), random_edit(rng, size, most)
    for dtype, shape in ((np.uint8, ()), (np.uint16, ()), (np.float64, (3,)), (np.int64, ())):
        array, new = (
            rng.integers(200, size=(rows, *shape)).astype(dtype) for rows in (size, len(edit.at))
        )
        assert_same_arrays(editor.rows(array, edit, new), plain_rows(array, edit, new))
    moves = random_edit(rng, 3 * size + 5, most)
    stay = np.setdiff1d(np.arange(moves.size), moves.removed)
    ids = rng.choice(np.append(stay, -1), size=size).astype(np.int32)
    joining = rng.integers(-1, 99, size=len(edit.at)).astype(np.int32)
    assert_same_arrays(moves.moved(ids), plain_ids(ids, moves))
    expected = plain_rows(plain_ids(ids, moves), edit, joining)
    assert_same_arrays(editor.ids(ids, edit, joining, moves), expected)
    sizes = rng.integers(4, size=len(edit.at))
    for offsets in (random_offsets(rng, size), random_offsets(rng, size).astype(np.int32)):
        expected = plain_offsets(offsets, edit, sizes)
        assert_same_arrays(editor.offsets(offsets, edit, sizes), expected)


def random_column(rng: np.random.Generator, kind: str, rows: int) -> Column:
    """Few values, so that rows repeat."""
    if kind == "numbers":
        return rng.integers(2, size=(rows, 2)).astype(np.float64)
    lists = Lists(random_offsets(rng, rows), np.empty(0, np.int32))
    if kind == "lists":
        return lists._replace(values=rng.integers(2, size=lists.offsets[-1]).astype(np.int32))
    inner = random_column(rng, "lists", int(lists.offsets[-1]))
    assert isinstance(inner, Lists)
    return Groups(lists.offsets, inner)


def random_offsets(rng: np.random.Generator, rows: int) -> npt.NDArray[np.int64]:
    return np.append(0, np.cumsum(rng.integers(3, size=rows))).astype(np.int64)


@examples(60)
@given(seed=Seeds, kinds=st.lists(st.sampled_from(("numbers", "lists", "groups")), min_size=1))
def test_a_row_is_found_if_it_is_equal_in_all_columns(seed: int, kinds: list[str]) -> None:
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(60))
    columns = [random_column(rng, kind, rows) for kind in kinds]
    others = [random_column(rng, kind, 9) for kind in kinds]
    editor = Editor(2)
    both = [editor.appended(one, other) for one, other in zip(columns, others, strict=True)]
    first = rng.permutation(np.unique(plain_places(both, both)))
    wanted = [take(column, first) for column in both]
    assert editor.places(columns, wanted).tolist() == plain_places(columns, wanted)


def test_the_first_of_equal_rows_is_found_in_any_block() -> None:
    table = np.zeros((700_001, 1), np.int32)
    table[[300_000, 600_000, 700_000]] = 1
    wanted = np.array([[1], [2], [0]], np.int32)
    assert Editor(3).places((table,), (wanted,)).tolist() == [300_000, -1, 0]


@pytest.mark.parametrize(
    ("removed", "at"),
    [((3,), ()), ((-1,), ()), ((1, 1), ()), ((2, 1), ()), ((), (4,)), ((), (-1,)), ((), (2, 1))],
)
def test_an_edit_out_of_order_or_range_is_a_fault(removed: list[int], at: list[int]) -> None:
    edit = Edit(3, np.array(removed, np.int64), np.array(at, np.int64))
    with pytest.raises(AssertionError):
        Editor(1).rows(np.zeros(3, np.int32), edit, np.zeros(len(at)))
