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

from grace.configs.arrays import Int32, Int64
from grace.index.builder.arrange import only_used
from grace.index.builder.collect import CollectedAds
from grace.index.changes.rows import NO_ROWS, Edit, Editor
from grace.index.snapshot import Snapshot, require_ids
from grace.index.targeting.rules import Column, Lists, TargetingRules, rows_in, take, with_ids
from grace.index.users.values import InternedValues


@dataclass(frozen=True, slots=True)
class Ruled:
    rules: TargetingRules
    set_values: tuple[InternedValues, ...]
    rule_of: Int32  # [put ads]
    numbers: Edit  # the edit of the numbers of rules and alternatives


def with_rules_of(editor: Editor, snapshot: Snapshot, puts: CollectedAds) -> Ruled:
    old, old_values = snapshot.rules, snapshot.set_values
    numbers = old.num_rules + old.num_alternatives
    if not len(puts):
        return Ruled(old, old_values, puts.columns.rule_of, Edit(numbers, NO_ROWS, NO_ROWS))
    rule_of, own, own_values = only_used(puts.rules, puts.set_values, puts.columns.rule_of)
    rows, parts, set_values = own.rows.copy(), [], []
    of_sets = iter(zip(old_values, own_values, strict=True))
    for number, (part, of_puts) in enumerate(zip(old.parts, own.parts, strict=True)):
        columns, wanted = part.columns, of_puts.columns
        if part.has_values:
            values, new_id, own_id = _with_values(editor, *next(of_sets))
            if new_id is not None:
                columns = tuple(with_ids(each, new_id) for each in columns)
            wanted = tuple(with_ids(each, own_id) for each in wanted)
            set_values.append(values)
        columns, places = _with_rows(editor, columns, wanted)
        rows[:, number] = places[own.rows[:, number]]
        parts.append(part if all(map(is_, columns, part.columns)) else type(part)(*columns))
    (all_rows,), rules = _with_rows(editor, (old.rows,), (rows,))
    listed = Lists(own.alternatives.offsets, rules[own.alternatives.values].astype(np.int32))
    (alternatives,), several = _with_rows(editor, (old.alternatives,), (listed,))
    require_ids(len(all_rows) + rows_in(alternatives), "rules and alternatives")
    added = np.full(len(all_rows) - old.num_rules, old.num_rules)
    return Ruled(
        TargetingRules(all_rows, tuple(parts), alternatives),
        old_values if all(map(is_, set_values, old_values)) else tuple(set_values),
        np.append(rules, len(all_rows) + several)[rule_of].astype(np.int32),
        Edit(numbers, NO_ROWS, added),
    )


def _with_values(
    editor: Editor, old: InternedValues, own: InternedValues
) -> tuple[InternedValues, Int32 | None, Int32]:
    """Return the values of both, and the ids there of the old ones and of the own ones.

    No ids of the old ones if they do not change.
    """
    at = editor.places((_texts(old),), (_texts(own),))
    new = at < 0
    if not new.any():
        return old, None, at.astype(np.int32)
    at[new] = [bisect_left(old, own[text]) for text in np.flatnonzero(new).tolist()]
    edit = Edit(len(old), NO_ROWS, at[new])
    require_ids(edit.rows, "values of a set")
    texts: Any = take(_texts(own), np.flatnonzero(new))
    values = InternedValues(*editor.lists(_texts(old), edit, texts))
    own_id = edit.moved(at)
    own_id[new] = edit.places
    return values, edit.moved(np.arange(len(old), dtype=np.int32)), own_id.astype(np.int32)


def _texts(values: InternedValues) -> Lists:
    utf8: Any = values.utf8
    return Lists(values.offsets, utf8)


def _with_rows(
    editor: Editor, columns: Sequence[Column], wanted: Sequence[Column]
) -> tuple[tuple[Any, ...], Int64]:
    """Return the rows with those wanted rows that are new, and the places of the wanted rows."""
    places = editor.places(columns, wanted)
    new = np.flatnonzero(places < 0)
    if not len(new):
        return tuple(columns), places
    places[new] = rows_in(columns[0]) + np.arange(len(new))
    pairs = zip(columns, wanted, strict=True)
    return tuple(editor.appended(column, take(more, new)) for column, more in pairs), places
