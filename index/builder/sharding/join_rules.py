"""Join the rules of several shards or runs: each rule and each row once, by first use.

If every table is numbered by first use and the tables follow each other in the order of their ads,
the joined ids are by first use over all ads: what a later table repeats has its id already.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.index.builder.sorting import first_equal
from grace.index.snapshot import require_ids
from grace.index.targeting.rules import Column, Lists, NumberRows, TargetingRules, take
from grace.index.users.values import InternedValues

Ids = npt.NDArray[np.int32]

RuleSource = tuple[TargetingRules, Sequence[Sequence[str]]]
"""The rules of one shard or run, and for each set its strings by value id, in UTF-8 order."""


@dataclass(frozen=True, slots=True)
class JoinedRules:
    """new_of: for each table, int32 [its rules]"""

    rules: TargetingRules
    set_values: tuple[InternedValues, ...]
    new_of: Sequence[Ids]


def join_rules(tables: Sequence[RuleSource]) -> JoinedRules:
    all_rules = [rules for rules, _ in tables]
    strings = iter(zip(*(own for _, own in tables), strict=True))
    parts, interned, new_of_parts = [], [], []
    for of_part in zip(*(rules.parts for rules in all_rules), strict=True):
        new_values: Sequence[Ids | None] = [None] * len(of_part)
        if of_part[0].has_values:
            values, new_values = _join_values(next(strings))
            interned.append(values)
        joined, new_of = _join_rows(of_part, new_values)
        parts.append(joined)
        new_of_parts.append(new_of)
    renumbered = [
        NumberRows(np.column_stack([new[rules.rows[:, c]] for c, new in enumerate(new_of)]))
        for rules, *new_of in zip(all_rules, *new_of_parts, strict=True)
    ]
    joined, new_of = _join_rows(renumbered, [None] * len(tables))
    return JoinedRules(TargetingRules(joined.table, tuple(parts)), tuple(interned), new_of)


def _join_values(tables: Sequence[Sequence[str]]) -> tuple[InternedValues, list[Ids]]:
    """Return all values once in UTF-8 order, and each table's ids in it: they keep their order."""
    joined = InternedValues.of(set().union(*tables))
    ids = joined.ids
    return joined, [np.array([ids[value] for value in table], np.int32) for table in tables]


def _join_rows(
    tables: Sequence[Any], new_values: Sequence[Ids | None]
) -> tuple[Any, Sequence[Ids]]:
    """Return the rows of all tables once, and the new number of every row by table.

    new_values  the joined id of each value of a table
    """
    counts = [len(table) for table in tables]
    require_ids(sum(counts), "rows of all shards")
    columns = [
        _concatenated(column, new_values)
        for column in zip(*(table.columns for table in tables), strict=True)
    ]
    numbered = first_equal(*_spans(columns))
    rows = type(tables[0]).of([take(column, numbered.old_of) for column in columns])
    return rows, np.split(numbered.new_of, np.cumsum(counts)[:-1])


def _concatenated(tables: Sequence[Column], new_values: Sequence[Ids | None]) -> Column:
    offsets, values = [np.zeros(1, np.int64)], []
    for column, new_of in zip(tables, new_values, strict=True):
        if isinstance(column, Lists):
            assert new_of is not None
            offsets.append(column.offsets[1:] + offsets[-1][-1])
            values.append(new_of[column.values])
        else:
            values.append(column)
    joined = np.concatenate(values)
    return Lists(np.concatenate(offsets), joined) if len(offsets) > 1 else joined


def _spans(columns: Sequence[Column]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32]]:
    """Return each row as one span: its numbers, and how long each of its lists is, and its ids."""
    if len(columns) == 1 and not isinstance(columns[0], Lists):
        numbers = np.ascontiguousarray(columns[0]).view(np.uint32)
        return np.arange(len(numbers) + 1) * numbers.shape[1], numbers.reshape(-1)
    owners: list[npt.NDArray[np.int64]] = []
    words: list[npt.NDArray[np.uint32]] = []
    for column in columns:
        if isinstance(column, Lists):
            sizes = np.diff(column.offsets)
            rows = np.arange(len(sizes))
            owners += (rows, np.repeat(rows, sizes))
            words += (sizes.astype(np.uint32), column.values.view(np.uint32))
        else:
            numbers = np.ascontiguousarray(column).view(np.uint32)
            owners.append(np.repeat(np.arange(len(numbers)), numbers.shape[1]))
            words.append(numbers.reshape(-1))
    owner = np.concatenate(owners)
    in_order = np.concatenate(words)[np.argsort(owner, kind="stable")]
    return np.append(0, np.cumsum(np.bincount(owner))), in_order
