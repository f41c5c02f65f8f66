"""The form `lists`: each set is a component.

A row has the values that a rule includes, groups of values, and those that it excludes. A request
asks with its user's values, and passes a row if it has one of the included, where there are any,
one of each group, and none of the excluded ones. C++: native/src/forms/lists.cpp.
"""

from collections.abc import Iterator, Sequence
from ctypes import c_void_p
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple

import numpy as np

from grace.configs.arrays import AnyArray, Bools, Int32, Int64, Integers, Shape, rounded_room
from grace.index.forms.component import (
    BAD_VALUE,
    Array,
    Codes,
    ListColumn,
    Reason,
    TargetComponent,
    ValuedRows,
    some,
    values_in,
)
from grace.index.targeting.rules import (
    Groups,
    Lists,
    Rows,
    SetRules,
    gather_spans,
    take_groups,
    take_lists,
)
from grace.index.targeting.schema import RESERVED_VALUE, TargetingSchema, TargetSet
from grace.index.users.values import InternedValues
from grace.native.loader import declare
from grace.proto.retrieval_pb2 import RetrieveRequest

_add_to_matcher = declare(
    "grace_exact_add_lists("
    "uint64, int64, int64, int64[], int32[], int64[], int32[], int64[], int64[], int32[])"
)

_add_to_rules = declare("grace_rules_add_lists(pointer)")
_add_to_users = declare(
    "grace_users_add_lists(uint64, text, int64, int64[], uint8[], uint64[], int64, int32)"
)


class ValueCodes(Codes):
    """Ids of a set's values, in order of arrival: a new value gets the next."""

    refusal = "is reserved for ads without an include list"

    def __missing__(self, value: str | None) -> int:
        if value is None or value == RESERVED_VALUE:
            return BAD_VALUE
        return self.setdefault(value, len(self))


class AskedLists(NamedTuple, Generic[Array]):
    """What B requests ask about one set.

    The ids and hashes of the values that some rule names are at value_offsets[b] ..
    value_offsets[b + 1]. Other values lead to no ad.
    """

    open: Array  # uint8 [B]: OPEN_EXCLUDE where a row that only excludes passes
    value_offsets: Array  # int32 [B + 1]
    value_ids: Array  # int32 [...]: ascending per request
    hashes: Array  # uint64 [...]: their Bloom queries, 0 if not needed; int64 in a tensor

    @property
    def included(self) -> tuple[Array, Array]:
        return self.value_offsets, self.value_ids

    @property
    def excluded(self) -> tuple[Array, Array]:
        return self.included


class ValuedComponent(TargetComponent):
    """A component of a target whose values are interned."""

    def codes(self) -> Sequence[ValueCodes]:
        return [ValueCodes()]


@dataclass(frozen=True, slots=True)
class ListsComponent(ValuedComponent):
    kind: ClassVar[type[Rows]] = SetRules
    schema: TargetingSchema
    target: TargetSet

    def add_to_rules(self, table: c_void_p) -> None:
        _add_to_rules(table)

    def rows_of(self, offsets: Int64, words: Int32) -> SetRules:
        """Read rows: three sizes each, then what is included, what is excluded, and the groups."""
        begins = offsets[:-1] + 3
        included, excluded, groups = words[offsets[:-1, None] + np.arange(3)].T.astype(np.int64)
        after = begins + included + excluded
        _, grouped = gather_spans(words, after, offsets[1:] - after)
        return SetRules(
            Lists(*gather_spans(words, begins, included)),
            Lists(*gather_spans(words, begins + included, excluded)),
            Groups(np.append(0, np.cumsum(groups)), _groups_in(grouped, int(groups.sum()))),
        )

    def columns_of(self, rows: SetRules, chosen: Integers) -> Iterator[ListColumn]:
        for column in (rows.include, rows.exclude):
            yield list_column(take_lists(column, chosen))
        yield group_column(take_groups(rows.groups, chosen))

    def limited(self, rows: SetRules) -> Iterator[tuple[str, Bools]]:
        limited: Bools = np.zeros(len(rows), np.bool_)
        for offsets, *_ in rows.columns:
            limited |= np.diff(offsets) > 0
        yield self.target.name, limited

    def add_to_matcher(self, matcher: int, rows: ValuedRows) -> None:
        rules: SetRules = rows.rows
        lists = *rules.include, *rules.exclude, rules.groups.offsets, *rules.groups.lists
        _add_to_matcher(matcher, len(rules), len(rows.values), *lists)

    def add_to_users(self, reader: int, values: InternedValues, hashed: bool) -> None:
        name, most = self.target.name.encode(), self.target.max_request_values
        seed = self.schema.hash_seed
        hashes = values.hashes(seed) if hashed else np.zeros(len(values), np.uint64)
        texts = len(values), values.offsets, values.utf8
        missing_passes = self.target.missing_passes_exclude
        _add_to_users(reader, name, *texts, hashes, most, missing_passes)

    def shapes(self, size: int, most: int) -> AskedLists[Shape]:
        room = rounded_room(min(most, size * self.target.max_request_values))
        ends: Shape = (np.int32, (size + 1,))
        return AskedLists((np.uint8, (size,)), ends, (np.int32, (room,)), (np.uint64, (room,)))

    def filled(self, asked: AskedLists[AnyArray]) -> AskedLists[AnyArray]:
        known = slice(int(asked.value_offsets[-1]))
        return asked._replace(value_ids=asked.value_ids[known], hashes=asked.hashes[known])

    def explain(self, rows: ValuedRows, row: int, request: RetrieveRequest) -> list[Reason]:
        rules: SetRules = rows.rows
        include = values_of(rules.include, row, rows.values)
        exclude = values_of(rules.exclude, row, rows.values)
        offsets, lists = rules.groups
        groups = [values_of(lists, g, rows.values) for g in range(offsets[row], offsets[row + 1])]
        wanted = [include, *groups] if include else groups
        if not wanted and not exclude:
            return []
        name = self.target.name
        values = values_in(request, name)
        distinct = tuple(dict.fromkeys(values))
        hits = tuple(value for value in distinct if any(value in each for each in wanted))
        unwanted = tuple(value for value in distinct if value in exclude)
        passes = not unwanted and all(any(v in each for v in values) for each in wanted)
        if exclude and not values:
            passes &= self.target.missing_passes_exclude
        words = [f"in [{some(each)}]" for each in wanted]
        words += [f"not in [{some(exclude)}]"] if exclude else []
        return [Reason(name, passes, f" and {name} ".join(words), values, unwanted or hits)]


def list_column(lists: Lists) -> ListColumn:
    return ListColumn(lists.offsets, (np.diff(lists.offsets) > 0).astype(np.uint8), lists.values)


def group_column(groups: Groups) -> ListColumn:
    """Return a column of groups as native code reads it."""
    sizes = np.diff(groups.lists.offsets)
    places = groups.lists.offsets[:-1] + np.arange(len(sizes))  # of the size of each group
    words = np.empty(len(groups.lists.values) + len(sizes), np.int32)
    is_size = np.zeros(len(words), np.bool_)
    is_size[places] = True
    words[is_size], words[~is_size] = sizes, groups.lists.values
    offsets = np.append(places, len(words))[groups.offsets]
    return ListColumn(offsets, (np.diff(groups.offsets) > 0).astype(np.uint8), words)


def _groups_in(words: Int32, groups: int) -> Lists:
    """Return the lists of groups that are written one after another: a size, and the values."""
    starts = np.empty(groups, np.int64)
    at = 0
    for group in range(groups):
        starts[group] = at
        at += 1 + int(words[at])
    sizes = words[starts].astype(np.int64)
    return Lists(*gather_spans(words, starts + 1, sizes))


def values_of(lists: Lists, row: int, values: InternedValues) -> list[str]:
    offsets, ids = lists
    return [values[int(value)] for value in ids[int(offsets[row]) : int(offsets[row + 1])]]
