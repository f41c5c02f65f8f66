"""Native edits of arrays against NumPy, with several blocks of rows, and what they refuse."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import strategies as st

from grace.index.changes.rows import Edit, Editor
from support.arrays import assert_same_arrays

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


def random_edit(rng: np.random.Generator, size: int, most: int) -> Edit:
    """Often neighbours go, several rows join at one place, and some at the end."""
    removed = np.unique(rng.integers(0, max(size, 1), size=rng.integers(min(most, size) + 1)))
    near = removed[: rng.integers(len(removed) + 1)]
    at = np.concatenate([rng.integers(0, size + 1, size=rng.integers(most + 1)), near, [size] * 2])
    return Edit(size, removed[:size], np.sort(at.astype(np.int64)))


@pytest.mark.parametrize("size", [0, 1, 7, 300, 1 << 18, (1 << 18) + 1, 700_001])
def test_edits_of_any_number_of_blocks_equal_those_of_numpy(size: int) -> None:
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


def random_offsets(rng: np.random.Generator, rows: int) -> npt.NDArray[np.int64]:
    return np.append(0, np.cumsum(rng.integers(3, size=rows))).astype(np.int64)


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
