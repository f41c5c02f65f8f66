"""Exact targeting: the rules of the ads, on bits and interned values, never on Bloom bits.

A rule has a row of each component (index/forms). An ad has a rule, or an alternative: a list of
rules of which one must pass. Rules, rows and alternatives are deduplicated and numbered by
first use in (SID, ad id) order.
"""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np

from grace.configs.arrays import AnyArray, Int32, Int64, Integers, UInt64

_BLOCK = 1 << 18  # ads that are counted at a time


class Lists(NamedTuple):
    """Rows of value ids: row i is values[offsets[i] : offsets[i + 1]], ascending."""

    offsets: Int64  # [rows + 1]
    values: Int32  # [...]


class Groups(NamedTuple):
    """Rows of lists: row i has the lists offsets[i] .. offsets[i + 1]."""

    offsets: Int64  # [rows + 1]
    lists: Lists


Column = AnyArray | Lists | Groups
"""Part of each row: plain numbers [rows, width], a list of value ids, or several."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The distinct rows of one component: its fields are columns. The builder knows no more."""

    has_values: ClassVar[bool]  # whether the rows name interned values

    @property
    def columns(self) -> tuple[Any, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))

    def __len__(self) -> int:
        return rows_in(self.columns[0])


@dataclass(frozen=True, slots=True)
class NumberRows(Rows):
    """Rows of numbers: the bits of attribute values that a rule allows, or both ends of a range."""

    has_values = False
    table: AnyArray  # [rows, width]


@dataclass(frozen=True, slots=True)
class ValueRows(Rows):
    has_values = True
    values: Lists


@dataclass(frozen=True, slots=True)
class SetRules(Rows):
    """A set's rules. An empty list limits nobody. A user also needs a value of each group."""

    has_values = True
    include: Lists
    exclude: Lists
    groups: Groups


@dataclass(frozen=True, slots=True)
class TargetingRules:
    rows: Int32  # [rules, components]: the row of each component
    parts: tuple[Any, ...]  # the rows of each component
    # rules of which one must pass, distinct, in the order of an ad's clauses; alternative i has the
    # number num_rules + i
    alternatives: Lists

    @property
    def num_rules(self) -> int:
        return len(self.rows)

    @property
    def num_alternatives(self) -> int:
        return len(self.alternatives.offsets) - 1

    def count_of(self, rule_of: Int32) -> int:
        return count_rules(rule_of, self.num_rules, self.alternatives.offsets)

    def members(self, rule_of: Int32) -> Lists:
        """Return the rules of each of these ads' rules or alternatives."""
        alternative = rule_of.astype(np.int64) - self.num_rules
        several = alternative >= 0
        listed = take_lists(self.alternatives, alternative[several])
        counts = np.ones(len(rule_of), np.int64)
        counts[several] = np.diff(listed.offsets)
        found = Lists(np.append(0, np.cumsum(counts)), np.repeat(rule_of, counts))
        found.values[np.repeat(several, counts)] = listed.values
        return found

    def rules_of(self, rule: int) -> list[int]:
        """Return the rules of an ad's rule or alternative."""
        found: list[int] = self.members(np.array([rule], np.int32)).values.tolist()
        return found

    @property
    def bitmask_table(self) -> UInt64:
        table: UInt64 = self.parts[0].table
        return table

    @property
    def sets(self) -> tuple[SetRules, ...]:
        return tuple(part for part in self.parts if isinstance(part, SetRules))


def count_rules(rule_of: Int32, num_rules: int, alternative_offsets: Int64) -> int:
    """Count the rules of the ads, with every rule of an alternative. `rule_of` may be a map."""
    sizes = np.append(np.diff(alternative_offsets), 1)  # the last one is that of a plain rule
    if len(sizes) == 1:
        return len(rule_of)
    blocks = (rule_of[at : at + _BLOCK] for at in range(0, len(rule_of), _BLOCK))
    return sum(int(sizes[np.maximum(block - num_rules, -1)].sum()) for block in blocks)


def rows_in(column: Column) -> int:
    return len(column.offsets) - 1 if isinstance(column, Lists | Groups) else len(column)


def lists_in(column: Column) -> Lists | None:
    """Return the lists of value ids in a column; None for numbers."""
    lists = column.lists if isinstance(column, Groups) else column
    return lists if isinstance(lists, Lists) else None


def with_lists(column: Column, lists: Lists) -> Column:
    return column._replace(lists=lists) if isinstance(column, Groups) else lists


def with_ids(column: Column, ids: Int32) -> Column:
    """Return a column whose value v is ids[v]."""
    lists = lists_in(column)
    return column if lists is None else with_lists(column, Lists(lists.offsets, ids[lists.values]))


def take(column: Column, rows: Integers) -> Column:
    if isinstance(column, Groups):
        return take_groups(column, rows)
    return take_lists(column, rows) if isinstance(column, Lists) else np.take(column, rows, axis=0)


def take_lists(lists: Lists, rows: Integers) -> Lists:
    offsets, places = places_of(lists.offsets, rows)
    return Lists(offsets, lists.values[places])


def take_groups(groups: Groups, rows: Integers) -> Groups:
    offsets, places = places_of(groups.offsets, rows)
    return Groups(offsets, take_lists(groups.lists, places))


def places_of(offsets: Integers, rows: Integers) -> tuple[Int64, Int64]:
    """Return offsets, and the places offsets[r] .. offsets[r + 1] of these rows' members."""
    begins = offsets[rows].astype(np.int64)
    return span_places(begins, offsets[rows + 1] - begins)


def gather_spans(values: AnyArray, begins: Int64, sizes: Int64) -> tuple[Int64, AnyArray]:
    """Return offsets, and the spans values[begins[i] : begins[i] + sizes[i]] one after another."""
    offsets, places = span_places(begins, sizes)
    return offsets, values[places]


def span_places(begins: Int64, sizes: Int64) -> tuple[Int64, Int64]:
    """Return offsets, and the places begins[i] .. begins[i] + sizes[i] one after another."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets, np.repeat(begins - offsets[:-1], sizes) + np.arange(offsets[-1])
