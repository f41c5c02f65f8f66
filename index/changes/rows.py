"""Edits of large arrays: some rows go, some join, all others keep their order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from grace.index.forms.lists import group_column
from grace.index.targeting.rules import Column, Groups, Lists, gather_spans

Int64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Edit:
    """
    size     rows before
    removed  the rows that go, ascending
    at       the old row before which each new row goes, ascending; `size` is the end
    """

    size: int
    removed: Int64
    at: Int64

    @staticmethod
    def joining(size: int, at: Int64) -> "Edit":
        return Edit(size, _NONE, at)

    @staticmethod
    def appending(size: int, rows: int) -> "Edit":
        return Edit(size, _NONE, np.full(rows, size, np.int64))

    @property
    def rows(self) -> int:
        """The number of rows afterwards."""
        return self.size - len(self.removed) + len(self.at)

    @cached_property
    def places(self) -> Int64:
        """The numbers of the new rows afterwards."""
        return self.at - np.searchsorted(self.removed, self.at) + np.arange(len(self.at))

    def moved(self, rows: Array) -> Array:
        """Return the numbers afterwards of rows that stay. A row below 0 keeps its number."""
        found = rows - np.searchsorted(self.removed, rows) + np.searchsorted(self.at, rows, "right")
        return found.astype(rows.dtype)


def edited(array: Array, edit: Edit, new: Array, ids: Edit | None = None) -> Array:
    """Return the array after an edit of its rows. `ids` moves the values of the rows that stay."""
    stays, joins = np.ones(edit.size, np.bool_), np.zeros(edit.rows, np.bool_)
    stays[edit.removed], joins[edit.places] = False, True
    found = np.empty((edit.rows, *array.shape[1:]), array.dtype)
    found[~joins] = array[stays] if ids is None else ids.moved(array[stays])
    found[joins] = new
    return found


def edited_offsets(offsets: Array, edit: Edit, sizes: Int64) -> Array:
    """Return the offsets of groups after an edit of the groups. The new ones have these sizes."""
    found = np.zeros(edit.rows + 1, offsets.dtype)
    np.cumsum(edited(np.diff(offsets), edit, sizes), out=found[1:])
    return found


def edited_lists(lists: Lists, edit: Edit, new: Lists) -> Lists:
    sizes = np.diff(new.offsets)
    removed = spans(lists.offsets, edit.removed)
    members = Edit(len(lists.values), removed, np.repeat(lists.offsets[edit.at], sizes))
    return Lists(
        edited_offsets(lists.offsets, edit, sizes), edited(lists.values, members, new.values)
    )


def appended(column: Column, more: Column) -> Column:
    """Return the rows of both."""
    if isinstance(column, Groups):
        assert isinstance(more, Groups)
        end = Edit.appending(len(column.offsets) - 1, len(more.offsets) - 1)
        offsets = edited_offsets(column.offsets, end, np.diff(more.offsets))
        return Groups(offsets, appended(column.lists, more.lists))
    if isinstance(column, Lists):
        assert isinstance(more, Lists)
        end = Edit.appending(len(column.offsets) - 1, len(more.offsets) - 1)
        return edited_lists(column, end, more)
    return edited(column, Edit.appending(len(column), len(more)), more)


def spans(offsets: Array, groups: Int64) -> Int64:
    """Return the places of all members of these groups."""
    begins = offsets[groups].astype(np.int64)
    sizes = offsets[groups + 1] - begins
    ends = np.cumsum(sizes)
    return np.repeat(begins - ends + sizes, sizes) + np.arange(int(sizes.sum()))


class Found(NamedTuple):
    """Where wanted keys are, or where they belong, and whether they are there."""

    at: Int64
    there: Mask


def bisected(key: Callable[[Int64], Array], begins: Int64, ends: Int64, wanted: Array) -> Found:
    """Search each span of places, in which keys ascend, for the wanted key of the span."""
    first, after = begins.astype(np.int64), ends.astype(np.int64)
    while len(left := np.flatnonzero(first < after)):
        middle = (first[left] + after[left]) // 2
        low = key(middle) < wanted[left]
        first[left[low]], after[left[~low]] = middle[low] + 1, middle[~low]
    there = first < ends
    there[there] = key(first[there]) == wanted[there]
    return Found(first, there)


def places_of_rows(columns: Sequence[Column], wanted: Sequence[Column]) -> Int64:
    """Return the place of each wanted row among the rows, or -1. Rows are equal in all columns."""
    own = {row: place for place, row in enumerate(zip(*map(_rows_of, wanted), strict=True))}
    found = np.full(len(own), -1, np.int64)
    for place, row in enumerate(zip(*map(_rows_of, columns), strict=True)):
        if row in own:
            found[own[row]] = place
    return found


def _rows_of(column: Column) -> list[bytes]:
    if isinstance(column, Groups):
        words = group_column(column)
        column = Lists(words.offsets, words.codes)
    if isinstance(column, Lists):
        ends = column.offsets.tolist()
        return [column.values[a:b].tobytes() for a, b in zip(ends, ends[1:], strict=False)]
    return [row.tobytes() for row in column]


@dataclass(frozen=True)
class Regrouped:
    """Groups whose members change: of the ads of leaves, of the children of nodes, of entities' ads.

    edit   of the groups: all that change are replaced, except those without members
    sizes  of the groups that replace them and of new ones, in the order of `edit.at`
    gone   the groups that have lost all members
    new    where the new groups belong
    """

    edit: Edit
    sizes: Int64
    gone: Int64
    new: Int64


def regrouped(
    offsets: Array, removed: Int64, joining: Found, first: Mask, *, stays: bool = False
) -> Regrouped:
    """Remove members, and add one to each group of `joining`, in the groups' order.

    first  whether a member is the first one that joins its group
    stays  a group without members does not go
    """
    owners = np.searchsorted(offsets, removed.astype(offsets.dtype), "right") - 1
    changed = np.unique(np.concatenate([owners, joining.at[joining.there]]))
    lost = np.bincount(np.searchsorted(changed, owners), minlength=len(changed))
    won = np.searchsorted(changed, joining.at[joining.there])
    sizes = offsets[changed + 1].astype(np.int64) - offsets[changed]
    sizes += np.bincount(won, minlength=len(changed)) - lost
    kept = sizes > 0 if not stays else np.ones(len(sizes), np.bool_)
    new = joining.at[first & ~joining.there]
    of_new = np.cumsum(first[~joining.there]) - 1
    places = np.append(new, changed[kept])
    # A new group goes before the old one whose place it takes.
    order = np.argsort(2 * places + (np.arange(len(places)) >= len(new)), kind="stable")
    all_sizes = np.append(np.bincount(of_new, minlength=len(new)), sizes[kept])
    edit = Edit(len(offsets) - 1, changed, places[order])
    return Regrouped(edit, all_sizes[order].astype(np.int64), changed[~kept], new)
