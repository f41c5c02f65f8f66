"""Edits of large arrays: some rows go, some join, all others keep their order."""

from collections.abc import Callable, Sequence
from ctypes import c_int32, c_int64
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from grace.index.allocation import Allocate, plain_memory
from grace.index.forms.lists import group_column
from grace.index.targeting.rules import Column, Groups, Lists
from grace.native.loader import array_in, array_out, declare

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

_NONE = np.empty(0, np.int64)
_STRUCT, _BYTES = array_in(np.uintp), array_in(np.uint8)

_edit_rows = declare(
    "grace_edit_rows", _STRUCT, c_int64, _BYTES, _BYTES, c_int32, array_out(np.uint8)
)
_edit_ids = declare(
    "grace_edit_ids",
    *(_STRUCT, _STRUCT, array_in(np.int32), array_in(np.int32), c_int32, array_out(np.int32)),
)
_edit_offsets = declare(
    "grace_edit_offsets",
    *(_STRUCT, c_int64, _BYTES, array_in(np.int64), c_int32, array_out(np.uint8)),
)
_find_rows = declare(
    "grace_find_rows",
    *(c_int64, c_int64, _STRUCT, c_int64, _STRUCT, c_int32, array_out(np.int64)),
)


# The structs of native/src/edits.cpp.
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

    @cached_property
    def struct(self) -> npt.NDArray[np.uintp]:
        assert self.removed.dtype == self.at.dtype == np.int64
        sizes = self.size, len(self.removed), len(self.at)
        return np.array([*sizes, self.removed.ctypes.data, self.at.ctypes.data], np.uintp)


@dataclass(frozen=True, slots=True)
class Editor:
    """Edits arrays on several threads, in memory of `allocate`."""

    threads: int
    allocate: Allocate = plain_memory

    def rows(self, array: Array, edit: Edit, new: Array) -> Array:
        found, width = self._memory(array, edit.rows), array.itemsize * prod(array.shape[1:])
        joining = _bytes(new.astype(array.dtype, copy=False))
        _edit_rows(edit.struct, width, _bytes(array), joining, self.threads, found)
        return found.view(array.dtype).reshape(edit.rows, *array.shape[1:])

    def ids(self, array: Ids, edit: Edit, new: Array, ids: Edit) -> Ids:
        """Return ids, of which `ids` moves those that stay."""
        found = self._memory(array, edit.rows).view(np.int32)
        joining = np.ascontiguousarray(new, np.int32)
        _edit_ids(edit.struct, ids.struct, array, joining, self.threads, found)
        return found

    def moved(self, array: Ids, ids: Edit) -> Ids:
        return self.ids(array, Edit.appending(len(array), 0), _NONE, ids)

    def offsets(self, offsets: Array, edit: Edit, sizes: Int64) -> Array:
        """Return the offsets of groups after an edit of the groups. New ones have these sizes."""
        found = self._memory(offsets, edit.rows + 1)
        own, width = _bytes(offsets), offsets.itemsize
        _edit_offsets(edit.struct, width, own, sizes.astype(np.int64), self.threads, found)
        return found.view(offsets.dtype)

    def lists(
        self, lists: tuple[Array, Array], edit: Edit, new: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        """Return lists, each as offsets and values, after an edit of the lists."""
        (offsets, values), sizes = lists, np.diff(new[0])
        at = np.repeat(offsets[edit.at], sizes).astype(np.int64)
        members = Edit(len(values), spans(offsets, edit.removed), at)
        return self.offsets(offsets, edit, sizes), self.rows(values, members, new[1])

    def appended(self, column: Any, more: Any) -> Any:
        """Return the rows of both columns."""
        if not isinstance(column, Lists | Groups):
            return self.rows(column, Edit.appending(len(column), len(more)), more)
        end = Edit.appending(len(column.offsets) - 1, len(more.offsets) - 1)
        if isinstance(column, Lists):
            return Lists(*self.lists(column, end, more))
        offsets = self.offsets(column.offsets, end, np.diff(more.offsets))
        return Groups(offsets, self.appended(column.lists, more.lists))

    def places(self, columns: Sequence[Column], wanted: Sequence[Column]) -> Int64:
        """Return the first place of each wanted row among the rows, or -1. Wanted rows differ.

        Rows are equal if they are in all columns.
        """
        own, others = [*map(_words, columns)], [*map(_words, wanted)]
        found = np.empty(_count(others[0]), np.int64)
        structs = [np.concatenate([*map(_struct, each)]) for each in (own, others)]
        counts = _count(own[0]), _count(others[0])
        _find_rows(len(own), counts[0], structs[0], counts[1], structs[1], self.threads, found)
        return found

    def _memory(self, like: Array, rows: int) -> npt.NDArray[np.uint8]:
        return self.allocate(like.itemsize * prod((rows, *like.shape[1:])))


def _bytes(array: Array) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _words(column: Column) -> Lists | Ids:
    """Return a column as rows of words: lists of them, or a table."""
    if isinstance(column, Groups):
        grouped = group_column(column)
        return Lists(grouped.offsets, grouped.codes)
    if isinstance(column, Lists):
        return Lists(*map(np.ascontiguousarray, column))
    return np.ascontiguousarray(column).view(np.int32)


def _count(words: Lists | Ids) -> int:
    return len(words.offsets) - 1 if isinstance(words, Lists) else len(words)


def _struct(words: Lists | Ids) -> npt.NDArray[np.uintp]:
    if isinstance(words, Lists):
        return np.array([words.offsets.ctypes.data, words.values.ctypes.data, 0], np.uintp)
    return np.array([0, words.ctypes.data, words.shape[1]], np.uintp)


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


def bisected(key: Callable[[Int64], Array], begins: Array, ends: Array, wanted: Array) -> Found:
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
    """Groups that lose and win members: leaves and entities have ads, and nodes have children.

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
