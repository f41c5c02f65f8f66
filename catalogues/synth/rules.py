"""Rule columns: which campaign names which list of values, each distinct list stored once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grace.catalogues.synth.arrays import (
    BoolArray,
    Int32Array,
    Int64Array,
    frozen,
    offsets_of,
    position_in_run,
)

NO_RULE = -1


@dataclass(frozen=True, slots=True)
class ValueLists:
    """Distinct lists over `values`: list i holds values[items[offsets[i]:offsets[i + 1]]]."""

    values: tuple[str, ...]
    offsets: Int64Array  # [lists + 1]
    items: Int32Array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def strings(self, index: int) -> list[str]:
        chosen = self.items[self.offsets[index] : self.offsets[index + 1]]
        return [self.values[item] for item in chosen]


@dataclass(frozen=True, slots=True)
class RuleColumn:
    """One Parquet column: `choice[c]` is campaign c's list in `lists`, or NO_RULE."""

    name: str
    lists: ValueLists
    choice: Int32Array  # [campaigns]


@dataclass(frozen=True, slots=True)
class Ranges:
    """One list per row: `count` neighbours from `first` on, wrapping inside a window of values.

    Places and audiences are numbered so that what belongs together is adjacent: "five cities of
    Bayern from Augsburg on" is such a range. All arrays are [rows]; `count` <= `window`.
    """

    window_start: Int64Array
    window: Int64Array
    first: Int64Array  # 0 <= first < window
    count: Int64Array


def listed_column(
    name: str, values: Sequence[str], lists: Sequence[Sequence[int]], choice: Int64Array
) -> RuleColumn:
    """A column whose few lists are spelt out; `choice` is [campaigns], list numbers or NO_RULE."""
    items = np.array([item for each in lists for item in each], np.int32)
    offsets = offsets_of(np.array([len(each) for each in lists], np.int64))
    table = ValueLists(tuple(values), offsets, frozen(items))
    return RuleColumn(name, table, frozen(choice.astype(np.int32)))


def ranged_column(
    name: str, values: Sequence[str], ranges: Ranges, has_rule: BoolArray
) -> RuleColumn:
    """A column of ranges, for the campaigns that have a rule; equal ranges become one list."""
    keys = np.stack(_normal_form(ranges), axis=1)[has_rule]
    distinct, list_of_row = np.unique(keys, axis=0, return_inverse=True)
    window_start, window, first, count = distinct.T
    offsets = offsets_of(count)
    row = np.repeat(np.arange(len(distinct)), count)
    items = window_start[row] + (first[row] + position_in_run(offsets)) % window[row]
    choice = np.full(len(has_rule), NO_RULE, np.int32)
    choice[has_rule] = list_of_row.reshape(-1)
    table = ValueLists(tuple(values), offsets, frozen(items.astype(np.int32)))
    return RuleColumn(name, table, frozen(choice))


def _normal_form(ranges: Ranges) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """(window_start, window, first, count), the window no wider than a range without a wrap."""
    first = np.where(ranges.count == ranges.window, 0, ranges.first)
    straight = first + ranges.count <= ranges.window
    return (
        np.where(straight, ranges.window_start + first, ranges.window_start),
        np.where(straight, ranges.count, ranges.window),
        np.where(straight, 0, first),
        ranges.count,
    )
