"""The form `lists`: each set is a component.

A row has the values that a rule includes, and those that it excludes. A request asks with its
user's values, and passes a row if it has one of the included, where there are any, and none of the
excluded ones. C++: native/src/forms/lists.cpp.
"""

from collections.abc import Sequence
from ctypes import c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from grace.index.forms.component import Reason, ValuesOf, some
from grace.index.targeting.rules import SetRules
from grace.index.targeting.schema import EXCLUDE_SUFFIX, TargetSet
from grace.index.users.user_rows import SetQueries
from grace.index.users.values import InternedValues
from grace.native.loader import array_in, declare

_LISTS = (array_in(np.int64), array_in(np.int32))
_add = declare(
    "grace_exact_add_lists",
    *(c_uint64, c_void_p, c_int64, c_int64, c_int64, *_LISTS, *_LISTS, c_int32),
)


class ListRows(NamedTuple):
    """The rows of a set, and the values that they name."""

    rules: SetRules
    values: InternedValues


@dataclass(frozen=True, slots=True)
class ListsComponent:
    target_set: TargetSet

    @property
    def label(self) -> str:
        return f"set:{self.target_set.name}"

    def add_to(self, matcher: int, ids: npt.NDArray[np.int32], rows: "ListRows") -> None:
        rules = rows.rules
        _add(
            *(matcher, ids.ctypes.data, ids.strides[0] // ids.itemsize),
            *(rules.num_rules, len(rows.values), rules.include_offsets, rules.include_values),
            *(rules.exclude_offsets, rules.exclude_values, self.target_set.missing_passes_exclude),
        )

    def address(self, asked: SetQueries, kept: list[Any]) -> int:
        read = (asked.offsets, asked.value_offsets, asked.value_ids)
        arrays = [np.ascontiguousarray(array) for array in read]
        addresses = np.array([array.ctypes.data for array in arrays], np.uintp)
        kept += (*arrays, addresses)
        return int(addresses.ctypes.data)

    def explain(self, rows: "ListRows", row: int, user: ValuesOf) -> list[Reason]:
        rules, values = rows.rules, rows.values
        include = _strings(rules.include_offsets, rules.include_values, row, values)
        exclude = _strings(rules.exclude_offsets, rules.exclude_values, row, values)
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


def _strings(
    offsets: npt.NDArray[np.int64],
    value_ids: npt.NDArray[np.int32],
    row: int,
    values: InternedValues,
) -> tuple[str, ...]:
    return tuple(values[int(v)] for v in value_ids[offsets[row] : offsets[row + 1]])
