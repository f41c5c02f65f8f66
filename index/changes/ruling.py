"""The rules of put ads among those that a snapshot has: equal ones are found, new ones appended.

So the rules of other ads keep their numbers, and alternatives move by as many as there are new
rules. New values join by rank, which moves the ids of others but keeps their order.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.index.builder.arrange import only_used
from grace.index.builder.collect import CollectedAds
from grace.index.changes.rows import Edit, Editor, Int64
from grace.index.snapshot import Snapshot, require_ids
from grace.index.targeting.rules import (
    Column,
    Lists,
    TargetingRules,
    gather_spans,
    lists_in,
    take,
    with_lists,
)
from grace.index.users.values import InternedValues

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Ruled:
    """
    rule_of  int32 [put ads]
    numbers  the edit of the numbers of rules and alternatives
    """

    rules: TargetingRules
    set_values: tuple[InternedValues, ...]
    rule_of: npt.NDArray[np.int32]
    numbers: Edit


def with_rules_of(editor: Editor, snapshot: Snapshot, puts: CollectedAds) -> Ruled:
    old, old_values = snapshot.rules, snapshot.set_values
    before = old.num_rules + old.num_alternatives
    if not len(puts):
        return Ruled(old, old_values, puts.columns.rule_of, Edit.joining(before, _NONE))
    rule_of, own, own_values = only_used(puts.rules, puts.set_values, puts.columns.rule_of)
    rows = own.rows.copy()
    parts, joined = [], []
    of_sets = iter(zip(old_values, own_values, strict=True))
    for number, (part, of_puts) in enumerate(zip(old.parts, own.parts, strict=True)):
        columns, wanted = part.columns, of_puts.columns
        if part.has_values:
            values, edit, ids = _with_values(editor, *next(of_sets))
            joined.append(values)
            if len(edit.at):
                columns = tuple(_renamed(editor, each, edit) for each in columns)
            wanted = tuple(_with_ids(each, ids) for each in wanted)
        columns, places = _with_rows(editor, columns, wanted)
        rows[:, number] = places[own.rows[:, number]]
        same = all(map(is_, columns, part.columns))
        parts.append(part if same else type(part)(*columns))
    (all_rows,), rules = _with_rows(editor, (old.rows,), (rows,))
    listed = Lists(own.alternatives.offsets, rules[own.alternatives.values].astype(np.int32))
    (alternatives,), several = _with_rows(editor, (old.alternatives,), (listed,))
    require_ids(len(all_rows) + len(alternatives.offsets) - 1, "rules and alternatives")
    numbers = np.append(rules, len(all_rows) + several)
    added = np.full(len(all_rows) - old.num_rules, old.num_rules)
    return Ruled(
        TargetingRules(all_rows, tuple(parts), alternatives),
        old_values if all(map(is_, joined, old_values)) else tuple(joined),
        numbers[rule_of].astype(np.int32),
        Edit.joining(before, added),
    )


def _with_values(
    editor: Editor, old: InternedValues, own: InternedValues
) -> tuple[InternedValues, Edit, npt.NDArray[np.int32]]:
    """Return the values of both, the edit of the old ones, and the ids there of the own ones."""
    at = np.array([bisect_left(old, text) for text in own.strings], np.int64)
    pairs = zip(at.tolist(), own.strings, strict=True)
    there = np.array([place < len(old) and old[place] == text for place, text in pairs], np.bool_)
    edit = Edit.joining(len(old), at[~there])
    ids = edit.moved(at)
    ids[~there] = edit.places
    if there.all():
        return old, edit, ids.astype(np.int32)
    require_ids(edit.rows, "values of a set")
    texts = gather_spans(own.utf8, own.offsets[:-1][~there], np.diff(own.offsets)[~there])
    values = InternedValues(*editor.lists((old.offsets, old.utf8), edit, texts))
    return values, edit, ids.astype(np.int32)


def _renamed(editor: Editor, column: Column, edit: Edit) -> Column:
    lists = lists_in(column)
    assert lists is not None
    return with_lists(column, Lists(lists.offsets, editor.moved(lists.values, edit)))


def _with_ids(column: Column, ids: npt.NDArray[np.int32]) -> Column:
    lists = lists_in(column)
    assert lists is not None
    return with_lists(column, Lists(lists.offsets, ids[lists.values]))


def _with_rows(
    editor: Editor, columns: Sequence[Column], wanted: Sequence[Column]
) -> tuple[tuple[Any, ...], Int64]:
    """Return the rows with those wanted rows that are new, and the places of the wanted rows."""
    places = editor.places(columns, wanted)
    new = np.flatnonzero(places < 0)
    if not len(new):
        return tuple(columns), places
    first = columns[0]
    places[new] = len(first.offsets) - 1 if isinstance(first, tuple) else len(first)
    places[new] += np.arange(len(new))
    pairs = zip(columns, wanted, strict=True)
    return tuple(editor.appended(column, take(more, new)) for column, more in pairs), places
