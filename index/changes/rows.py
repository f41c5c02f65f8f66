"""Edits of large arrays: some rows go, some join, all others keep their order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np

from grace.configs.arrays import AnyArray, Bools, Int32, Int64
from grace.index.allocation import Allocate, plain_memory
from grace.index.forms.lists import group_column
from grace.index.targeting.rules import Column, Groups, Lists, places_of, rows_in
from grace.index.updates.id_map import distinct
from grace.native.loader import declare

NO_ROWS = np.empty(0, np.int64)
_MOST_ROWS = 1 << 18  # of a run, so that all threads have work

_move_rows = declare(
    "grace_move_rows(int64, int64[,], pointer, int64, uint8[], int32, out uint8[])"
)
_move_ids = declare(
    "grace_move_ids(int64, int64[,], int64, int64, int64[,], int32[], int32, out int32[])"
)
_find_rows = declare("grace_find_rows(int64, int64, uintp[,], int64, uintp[,], int32, out int64[])")


@dataclass(frozen=True)
class Edit:
    size: int  # rows before
    removed: Int64  # the rows that go, ascending
    at: Int64  # the old row before which each new row goes, ascending; `size` is the end

    @property
    def rows(self) -> int:
        """The number of rows afterwards."""
        return self.size - len(self.removed) + len(self.at)

    @cached_property
    def places(self) -> Int64:
        """The numbers of the new rows afterwards."""
        return self.at - np.searchsorted(self.removed, self.at) + np.arange(len(self.at))

    def moved(self, rows: AnyArray) -> AnyArray:
        """Return the numbers afterwards of rows that stay. A row below 0 keeps its number."""
        found = rows - np.searchsorted(self.removed, rows) + np.searchsorted(self.at, rows, "right")
        return found.astype(rows.dtype)

    @cached_property
    def runs(self) -> Int64:
        """Where rows that stay together begin, where they end, and where they move.   [3, runs]"""
        blocks = np.append(np.arange(0, self.size, _MOST_ROWS), self.size)
        cuts = distinct(np.concatenate([blocks, self.removed, self.removed + 1, self.at]))
        assert (np.diff(self.removed) > 0).all()
        assert (np.diff(self.at) >= 0).all()
        assert (cuts[0], cuts[-1]) == (0, self.size), "a row out of range"
        stays = ~np.isin(cuts[:-1], self.removed)
        begins, ends = cuts[:-1][stays], cuts[1:][stays]
        return np.stack([begins, ends, self.moved(begins)])


@dataclass(frozen=True, slots=True)
class Editor:
    """Edits arrays on several threads, in memory of `allocate`."""

    threads: int
    allocate: Allocate = plain_memory

    def rows(self, array: AnyArray, edit: Edit, new: AnyArray) -> AnyArray:
        found = self._moved(array, edit, edit.rows)
        found[edit.places] = new
        return found

    def ids(self, array: Int32, edit: Edit, new: AnyArray, ids: Edit) -> Int32:
        """Return ids, of which `ids` moves those that stay."""
        found = self.allocate(4 * edit.rows).view(np.int32)
        moves = ids.size, ids.runs.shape[1], ids.runs
        _move_ids(edit.runs.shape[1], edit.runs, *moves, array, self.threads, found)
        found[edit.places] = new
        return found

    def offsets(self, offsets: AnyArray, edit: Edit, sizes: Int64) -> AnyArray:
        """Return the offsets of groups after an edit of the groups. New ones have these sizes."""
        begins, ends = (offsets[edit.removed + end].astype(np.int64) for end in (0, 1))
        lost, won = (np.append(0, np.cumsum(each)) for each in (ends - begins, sizes))
        shifts = won[np.searchsorted(edit.at, edit.runs[0], "right")]
        shifts -= lost[np.searchsorted(edit.removed, edit.runs[0])]
        found = self._moved(offsets, edit, edit.rows + 1, shifts)
        shifts = won[:-1] - lost[np.searchsorted(edit.removed, edit.at)]
        found[edit.places] = offsets[edit.at] + shifts
        found[-1] = offsets[-1] + won[-1] - lost[-1]
        return found

    def _moved(
        self, array: AnyArray, edit: Edit, rows: int, shifts: Int64 | None = None
    ) -> AnyArray:
        """Return an array of this many rows, of which only those that stay are written."""
        shape, runs = (rows, *array.shape[1:]), edit.runs
        memory = self.allocate(array.itemsize * prod(shape))
        given = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        width = array.itemsize * prod(shape[1:])
        address = None if shifts is None else shifts.ctypes.data
        _move_rows(runs.shape[1], runs, address, width, given, self.threads, memory)
        return memory.view(array.dtype).reshape(shape)

    def lists(
        self, lists: tuple[AnyArray, AnyArray], edit: Edit, new: tuple[AnyArray, AnyArray]
    ) -> tuple[AnyArray, AnyArray]:
        """Return lists, each as offsets and values, after an edit of the lists."""
        (offsets, values), sizes = lists, np.diff(new[0])
        at = np.repeat(offsets[edit.at], sizes).astype(np.int64)
        members = Edit(len(values), places_of(offsets, edit.removed)[1], at)
        return self.offsets(offsets, edit, sizes), self.rows(values, members, new[1])

    def appended(self, column: Any, more: Any) -> Any:
        size = rows_in(column)
        end = Edit(size, NO_ROWS, np.full(rows_in(more), size, np.int64))
        if isinstance(column, Lists):
            return Lists(*self.lists(column, end, more))
        if isinstance(column, Groups):
            offsets = self.offsets(column.offsets, end, np.diff(more.offsets))
            return Groups(offsets, self.appended(column.lists, more.lists))
        return self.rows(column, end, more)

    def places(self, columns: Sequence[Column], wanted: Sequence[Column]) -> Int64:
        """Return the first place of each wanted row among the rows, or -1. Wanted rows differ.

        Rows are equal if they are in all columns.
        """
        kept = [[*map(_numbers, each)] for each in (columns, wanted)]
        structs = [
            np.array([(a.ctypes.data, b.ctypes.data, b.itemsize, n) for a, b, n in each], np.uintp)
            for each in kept
        ]
        rows, count = rows_in(columns[0]), rows_in(wanted[0])
        found = np.empty(count, np.int64)
        _find_rows(len(columns), rows, structs[0], count, structs[1], self.threads, found)
        return found


def _numbers(column: Column) -> tuple[AnyArray, AnyArray, int]:
    """Return the numbers of a column as C++ reads them: between offsets, or as many in each row."""
    if isinstance(column, Groups):
        grouped = group_column(column)
        return grouped.offsets, grouped.codes, 0
    if isinstance(column, Lists):
        return np.ascontiguousarray(column.offsets), np.ascontiguousarray(column.values), 0
    return NO_ROWS, np.ascontiguousarray(column), column.shape[1]


class Found(NamedTuple):
    """Where wanted keys are, or where they belong, and whether they are there."""

    at: Int64
    there: Bools


def bisected(
    key: Callable[[Int64], AnyArray], begins: AnyArray, ends: AnyArray, wanted: AnyArray
) -> Found:
    """Search each span of places, in which keys ascend, for the wanted key of the span."""
    first, after = begins.astype(np.int64), ends.astype(np.int64)
    while len(left := np.flatnonzero(first < after)):
        middle = (first[left] + after[left]) // 2
        low = key(middle) < wanted[left]
        first[left[low]], after[left[~low]] = middle[low] + 1, middle[~low]
    there = first < ends
    there[there] = key(first[there]) == wanted[there]
    return Found(first, there)


@dataclass(frozen=True)
class Regrouped:
    """Groups that lose and win members: leaves and entities have ads, and nodes have children."""

    edit: Edit  # of the groups: all that change are replaced, except those without members
    sizes: Int64  # of the groups that replace them and of new ones, in the order of `edit.at`
    gone: Int64  # the groups that have lost all members
    new: Int64  # where the new groups belong


def regrouped(
    offsets: AnyArray, removed: Int64, joining: Found, first: Bools, *, stays: bool = False
) -> Regrouped:
    """Remove members, and add one to each group of `joining`, in the groups' order.

    first  whether a member is the first one that joins its group
    stays  a group without members does not go
    """
    owners = np.searchsorted(offsets, removed.astype(offsets.dtype), "right") - 1
    changed = distinct(np.concatenate([owners, joining.at[joining.there]]))
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
