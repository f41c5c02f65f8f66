"""The form `lists`: each set is a component.

A row has the values that a rule includes, and those that it excludes. A request asks with its
user's values, and passes a row if it has one of the included, where there are any, and none of the
excluded ones. C++: native/src/forms/lists.cpp.
"""

from collections.abc import Iterator, Sequence
from ctypes import c_char_p, c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple

import numpy as np
import numpy.typing as npt

from grace.configs.arrays import Shape, rounded_room
from grace.index.forms.component import BAD_VALUE, Array, Flags, ListColumn, Reason, ValuesOf, some
from grace.index.targeting.rules import SetRules, gather_spans, take
from grace.index.targeting.schema import EXCLUDE_SUFFIX, RESERVED_VALUE, TargetingSchema, TargetSet
from grace.index.users.values import InternedValues
from grace.native.loader import array_in, declare

_LISTS = (array_in(np.int64), array_in(np.int32))
_add_to_matcher = declare(
    "grace_exact_add_lists",
    *(c_uint64, c_void_p, c_int64, c_int64, c_int64, *_LISTS, *_LISTS, c_int32),
)


_add_to_rules = declare("grace_rules_add_lists", c_void_p)
_add_to_users = declare(
    "grace_users_add_lists",
    *(c_uint64, c_char_p, c_int64, array_in(np.int64), array_in(np.uint8)),
    *(array_in(np.uint64), c_int64),
)


class ValueCodes:
    """Ids of a set's values, in order of arrival."""

    refusal = "is reserved for ads without an include list"

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def __call__(self, value: str) -> int:
        if value == RESERVED_VALUE:
            return BAD_VALUE
        return self._ids.setdefault(value, len(self._ids))

    def strings(self) -> list[str]:
        return list(self._ids)


class AskedLists(NamedTuple, Generic[Array]):
    """What B requests ask about one set.

    Request b has offsets[b + 1] - offsets[b] distinct values. The ids and hashes of those that some
    rule names are at value_offsets[b] .. value_offsets[b + 1]. The others lead to no ad.

    offsets        int32 [B + 1]
    value_offsets  int32 [B + 1]
    value_ids      int32 [...]     ascending per request
    hashes         uint64 [...]    their Bloom queries, 0 if not needed; int64 in a tensor
    """

    offsets: Array
    value_offsets: Array
    value_ids: Array
    hashes: Array


class ListRows(NamedTuple):
    """The rows of a set, and the values that they name."""

    rules: SetRules
    values: InternedValues


@dataclass(frozen=True, slots=True)
class ListsComponent:
    has_values: ClassVar[bool] = True
    schema: TargetingSchema
    target_set: TargetSet

    @property
    def label(self) -> str:
        return f"set:{self.target_set.name}"

    def codes(self) -> Sequence[ValueCodes]:
        return [ValueCodes()]

    def add_to_rules(self, table: c_void_p) -> None:
        _add_to_rules(table)

    def rows_of(self, offsets: npt.NDArray[np.int64], words: npt.NDArray[np.int32]) -> SetRules:
        begins = offsets[:-1] + 1
        included = words[offsets[:-1]].astype(np.int64)
        excluded = np.diff(offsets) - 1 - included
        return SetRules(
            *gather_spans(words, begins, included),
            *gather_spans(words, begins + included, excluded),
        )

    def columns_of(self, rows: SetRules, chosen: npt.NDArray[np.integer]) -> Iterator[ListColumn]:
        for column in rows.columns:
            offsets, values = take(column, chosen)
            yield ListColumn(offsets, (np.diff(offsets) > 0).astype(np.uint8), values)

    def limited(self, rows: SetRules) -> Iterator[tuple[str, Flags]]:
        listed: Flags = np.diff(rows.include_offsets) > 0
        yield self.target_set.name, listed | (np.diff(rows.exclude_offsets) > 0)

    def add_to_matcher(self, matcher: int, ids: npt.NDArray[np.int32], rows: "ListRows") -> None:
        rules = rows.rules
        _add_to_matcher(
            *(matcher, ids.ctypes.data, ids.strides[0] // ids.itemsize),
            *(len(rules), len(rows.values), rules.include_offsets, rules.include_values),
            *(rules.exclude_offsets, rules.exclude_values, self.target_set.missing_passes_exclude),
        )

    def add_to_users(self, reader: int, values: InternedValues, hashed: bool) -> None:
        name, most = self.target_set.name.encode(), self.target_set.max_request_values
        seed = self.schema.hash_seed
        hashes = values.hashes(seed) if hashed else np.zeros(len(values), np.uint64)
        _add_to_users(reader, name, len(values), values.offsets, values.utf8, hashes, most)

    def shapes(self, size: int, most: int) -> AskedLists[Shape]:
        room = rounded_room(min(most, size * self.target_set.max_request_values))
        ends: Shape = (np.int32, (size + 1,))
        return AskedLists(ends, ends, (np.int32, (room,)), (np.uint64, (room,)))

    def filled(self, asked: AskedLists[npt.NDArray[Any]]) -> AskedLists[npt.NDArray[Any]]:
        known = slice(int(asked.value_offsets[-1]))
        return asked._replace(value_ids=asked.value_ids[known], hashes=asked.hashes[known])

    def address(self, asked: AskedLists[npt.NDArray[Any]], kept: list[Any]) -> int:
        addresses = [*(array.ctypes.data for array in asked), len(asked.hashes)]
        kept.append(np.array(addresses, np.uintp))
        return int(kept[-1].ctypes.data)

    def explain(self, rows: "ListRows", row: int, user: ValuesOf) -> list[Reason]:
        include, exclude = (
            [rows.values[int(value)] for value in values[offsets[row] : offsets[row + 1]]]
            for offsets, values in rows.rules.columns
        )
        return self._reasons(include, exclude, user)

    def explain_lists(self, lists: ValuesOf, user: ValuesOf) -> list[Reason]:
        include, exclude = (
            sorted(set(lists.get(self.target_set.name + ending) or ()))
            for ending in ("", EXCLUDE_SUFFIX)
        )
        return self._reasons(include, exclude, user)

    def _reasons(
        self, include: Sequence[str], exclude: Sequence[str], user: ValuesOf
    ) -> list[Reason]:
        if not include and not exclude:
            return []
        values = tuple(user.get(self.target_set.name) or ())
        wanted = tuple(value for value in dict.fromkeys(values) if value in set(include))
        unwanted = tuple(value for value in dict.fromkeys(values) if value in set(exclude))
        passes = not unwanted and bool(wanted or not include)
        if exclude and not values:
            passes &= self.target_set.missing_passes_exclude
        words = [f"any of {some(include)}"] if include else []
        words += [f"none of {some(exclude)}"] if exclude else []
        name = self.target_set.name
        return [Reason(name, passes, ", ".join(words), values, unwanted or wanted)]
