"""The form `properties`: each property is a component, and the request decides.

A row has the values of an ad. A request may ask for an ad with one of some values (`any_of`), and
for one with none of some values (`none_of`). Without a filter it passes every row.
C++: native/src/forms/properties.cpp.
"""

from collections.abc import Iterator
from ctypes import c_void_p
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple

import numpy as np

from grace.configs.arrays import AnyArray, Bools, Int32, Int64, Integers, Shape, rounded_room
from grace.index.forms.component import (
    OPEN_EXCLUDE,
    OPEN_INCLUDE,
    Array,
    ListColumn,
    Reason,
    ValuedRows,
    some,
)
from grace.index.forms.lists import ValuedComponent, list_column, values_of
from grace.index.targeting.rules import Lists, Rows, ValueRows, take_lists
from grace.index.targeting.schema import Property
from grace.index.users.values import InternedValues
from grace.native.loader import declare
from grace.proto.retrieval_pb2 import Filter, RetrieveRequest

_add_to_matcher = declare("grace_exact_add_properties(uint64, int64, int64, int64[], int32[])")
_add_to_rules = declare("grace_rules_add_properties(pointer)")
_add_to_users = declare("grace_users_add_properties(uint64, text, int64, int64[], uint8[])")


class AskedFilters(NamedTuple, Generic[Array]):
    """What B requests ask about one property."""

    # uint8 [B]: OPEN_INCLUDE where a row with any value passes but for none_ids, OPEN_EXCLUDE where
    # a row without a value passes
    open: Array
    any_offsets: Array  # int32 [B + 1], request b's values: offsets b to b + 1
    any_ids: Array  # int32 [...]: ascending per request; values that no ad has are left out
    none_offsets: Array  # int32 [B + 1]
    none_ids: Array  # int32 [...]

    @property
    def included(self) -> tuple[Array, Array]:
        return self.any_offsets, self.any_ids

    @property
    def excluded(self) -> tuple[Array, Array]:
        return self.none_offsets, self.none_ids


@dataclass(frozen=True, slots=True)
class PropertiesComponent(ValuedComponent):
    kind: ClassVar[type[Rows]] = ValueRows
    target: Property

    def add_to_rules(self, table: c_void_p) -> None:
        _add_to_rules(table)

    def rows_of(self, offsets: Int64, words: Int32) -> ValueRows:
        return ValueRows(Lists(offsets, words))

    def columns_of(self, rows: ValueRows, chosen: Integers) -> Iterator[ListColumn]:
        yield list_column(take_lists(rows.values, chosen))

    def limited(self, rows: ValueRows) -> Iterator[tuple[str, Bools]]:
        """Yield which rows have a value, for coverage. A property limits nobody by itself."""
        yield self.target.name, np.diff(rows.values.offsets) > 0

    def add_to_matcher(self, matcher: int, rows: ValuedRows) -> None:
        _add_to_matcher(matcher, len(rows.rows), len(rows.values), *rows.rows.values)

    def add_to_users(self, reader: int, values: InternedValues, hashed: bool) -> None:  # noqa: ARG002
        name = self.target.name.encode()
        _add_to_users(reader, name, len(values), values.offsets, values.utf8)

    def shapes(self, size: int, most: int) -> AskedFilters[Shape]:
        room: Shape = (np.int32, (rounded_room(most),))
        ends: Shape = (np.int32, (size + 1,))
        return AskedFilters((np.uint8, (size,)), ends, room, ends, room)

    def filled(self, asked: AskedFilters[AnyArray]) -> AskedFilters[AnyArray]:
        return asked._replace(
            any_ids=asked.any_ids[: int(asked.any_offsets[-1])],
            none_ids=asked.none_ids[: int(asked.none_offsets[-1])],
        )

    def narrows(self, asked: AskedFilters[AnyArray]) -> bool:
        every = OPEN_INCLUDE | OPEN_EXCLUDE
        return bool((asked.open != every).any() or asked.none_offsets[-1])

    def explain(self, rows: ValuedRows, row: int, request: RetrieveRequest) -> list[Reason]:
        name = self.target.name
        if name not in request.filters:
            return []
        asked = request.filters[name]
        values = values_of(rows.rows.values, row, rows.values)
        wanted = [value for value in values if value in set(asked.any_of)]
        unwanted = [value for value in values if value in set(asked.none_of)]
        if values:
            passes = not unwanted and bool(wanted or not asked.any_of)
        elif asked.unknown == Filter.UNKNOWN_UNSPECIFIED:
            passes = not asked.any_of
        else:
            passes = asked.unknown == Filter.PASSES
        words = [f"any of {some(asked.any_of)}"] if asked.any_of else []
        words += [f"none of {some(asked.none_of)}"] if asked.none_of else []
        rule = f"is [{some(values)}]" if values else "has no value"
        return [Reason(name, passes, rule, tuple(words), tuple(words) if not passes else ())]
