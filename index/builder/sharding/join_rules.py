"""Joins the rules of several shards or runs: each rule, bitmask and set rule once, by first use.

If every table is numbered by first use and the tables stand in the order of their ads, the joined
ids are by first use over all ads: what a later table repeats has its id from an earlier one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from grace.index.builder.sharding.copies import Numbered, Spans, SpanTable, number_spans
from grace.index.builder.sharding.stored_arrays import OutputFolder, Sliced, blocks
from grace.index.targeting.rules import SetRules, TargetingRules
from grace.index.users.values import InternedValues

__all__ = ["JoinedRules", "RuleSource", "SetRuleSource", "join_rules", "set_rule_spans"]

BLOCK_RULES = 1 << 18  # rules at a time


@dataclass(frozen=True, slots=True)
class SetRuleSource:
    """The set rules of one table and one set, as index.rules has them, and the set's values."""

    values: InternedValues
    include_offsets: Sliced
    include_values: Sliced
    exclude_offsets: Sliced
    exclude_values: Sliced


@dataclass(frozen=True, slots=True)
class RuleSource:
    """One table of rules, as index.rules has them."""

    bitmask: Sliced
    bitmask_table: Sliced
    set_rules: Sliced
    sets: tuple[SetRuleSource, ...]


@dataclass(frozen=True, slots=True)
class JoinedRules:
    """new_of: for each table, int32 [its rules]"""

    rules: TargetingRules
    set_values: tuple[InternedValues, ...]
    new_of: tuple[npt.NDArray[np.int32], ...]


def join_rules(tables: Sequence[RuleSource], out: OutputFolder) -> JoinedRules:
    sets, set_values, numbered_sets = [], [], []
    for s in range(len(tables[0].sets)):
        of_set = [table.sets[s] for table in tables]
        values, value_ids = _join_values([source.values for source in of_set])
        rules, numbered = _join_set(of_set, value_ids, out, f"set{s}")
        sets.append(rules)
        set_values.append(values)
        numbered_sets.append(numbered)
    bitmask_table, bitmasks = _join_bitmasks([table.bitmask_table for table in tables], out)
    parts = [
        partial(_parts, table, bitmasks.new_of[t], [ids.new_of[t] for ids in numbered_sets])
        for t, table in enumerate(tables)
    ]
    bitmask, set_rules, new_of = _join_parts(tables, parts, len(sets), out)
    joined = TargetingRules(bitmask, bitmask_table, set_rules, tuple(sets))
    return JoinedRules(joined, tuple(set_values), new_of)


def _join_bitmasks(
    tables: Sequence[Sliced], out: OutputFolder
) -> tuple[npt.NDArray[np.uint64], Numbered]:
    numbered = number_spans([_row_table(table) for table in tables])
    joined = out.array("rule_bitmask_table", "<u8", tables[0].shape[1:])
    for rows, is_first in zip(tables, numbered.is_first, strict=True):
        at = 0
        for block in blocks(rows):
            joined.append(block[is_first[at : at + len(block)]])
            at += len(block)
    return joined.finish(), numbered


def _row_table(rows: Sliced) -> SpanTable:
    count, width = rows.shape
    size = count * width * rows.dtype.itemsize
    return SpanTable(count, size, lambda: map(Spans.of_rows, blocks(rows)))


ReadParts = Callable[[], Iterator[npt.NDArray[np.int32]]]


def _parts(
    table: RuleSource,
    bitmask_of: npt.NDArray[np.int32],
    set_rule_of: Sequence[npt.NDArray[np.int32]],
) -> Iterator[npt.NDArray[np.int32]]:
    """The table's rules in joined ids, int32 [some, 1 + sets] at a time."""
    for begin in range(0, table.bitmask.shape[0], BLOCK_RULES):
        rows = slice(begin, begin + BLOCK_RULES)
        set_rules = table.set_rules[rows]
        columns = [new_of[set_rules[:, s]] for s, new_of in enumerate(set_rule_of)]
        yield np.column_stack([bitmask_of[table.bitmask[rows]], *columns])


def _part_table(count: int, width: int, read: ReadParts) -> SpanTable:
    return SpanTable(count, 4 * width * count, lambda: map(Spans.of_rows, read()))


def _join_parts(
    tables: Sequence[RuleSource], parts: Sequence[ReadParts], sets: int, out: OutputFolder
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], tuple[npt.NDArray[np.int32], ...]]:
    """The joined rules' bitmasks and set rules, and each table's rules in joined ids."""
    numbered = number_spans(
        [
            _part_table(table.bitmask.shape[0], 1 + sets, read)
            for table, read in zip(tables, parts, strict=True)
        ]
    )
    joined = out.array("rule_parts", "<i4", (1 + sets,))
    for read, is_first in zip(parts, numbered.is_first, strict=True):
        at = 0
        for block in read():
            joined.append(block[is_first[at : at + len(block)]])
            at += len(block)
    rows = joined.finish()
    bitmask, set_rules = out.array("rule_bitmask", "<i4"), out.array("rule_sets", "<i4", (sets,))
    for block in blocks(rows):
        bitmask.append(block[:, 0])
        set_rules.append(block[:, 1:])
    return bitmask.finish(), set_rules.finish(), numbered.new_of


def _join_values(
    tables: Sequence[InternedValues],
) -> tuple[InternedValues, list[npt.NDArray[np.int32]]]:
    """All values once in UTF-8 order, and each table's ids in it: they keep their order."""
    union: set[str] = set()
    for table in tables:
        union.update(table.strings)
    joined = InternedValues.of(union)
    ids = joined.ids
    new_of = [np.array([ids[value] for value in table.strings], np.int32) for table in tables]
    return joined, new_of


def _join_set(
    tables: Sequence[SetRuleSource],
    value_ids: Sequence[npt.NDArray[np.int32]],
    out: OutputFolder,
    name: str,
) -> tuple[SetRules, Numbered]:
    numbered = number_spans(
        [
            SpanTable(_num_rules(table), _span_bytes(table), partial(_set_spans, table, ids))
            for table, ids in zip(tables, value_ids, strict=True)
        ],
    )
    include = _ListsWriter(out, f"{name}_include")
    exclude = _ListsWriter(out, f"{name}_exclude")
    for table, ids, is_first in zip(tables, value_ids, numbered.is_first, strict=True):
        at = 0
        for rules in _set_rules(table, ids):
            kept = is_first[at : at + rules.num_rules]
            include.append(rules.include_offsets, rules.include_values, kept)
            exclude.append(rules.exclude_offsets, rules.exclude_values, kept)
            at += rules.num_rules
    return SetRules(*include.finish(), *exclude.finish()), numbered


def _num_rules(table: SetRuleSource) -> int:
    return table.include_offsets.shape[0] - 1


def _span_bytes(table: SetRuleSource) -> int:
    values = table.include_values.shape[0] + table.exclude_values.shape[0]
    return 4 * (_num_rules(table) + values)


def _set_spans(table: SetRuleSource, ids: npt.NDArray[np.int32]) -> Iterator[Spans]:
    for rules in _set_rules(table, ids):
        offsets, words = set_rule_spans(rules)
        yield Spans(words.view(np.uint32), offsets=offsets)


def _set_rules(table: SetRuleSource, ids: npt.NDArray[np.int32]) -> Iterator[SetRules]:
    """The table's set rules in joined value ids, a block at a time, offsets from 0."""
    for begin in range(0, _num_rules(table), BLOCK_RULES):
        lists = []
        for offsets, values in (
            (table.include_offsets, table.include_values),
            (table.exclude_offsets, table.exclude_values),
        ):
            spans = offsets[begin : begin + BLOCK_RULES + 1]
            lists += [spans - spans[0], ids[values[int(spans[0]) : int(spans[-1])]]]
        yield SetRules(*lists)


def set_rule_spans(rules: SetRules) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Each rule as one span: how many values it includes, those, then those it excludes."""
    included, excluded = np.diff(rules.include_offsets), np.diff(rules.exclude_offsets)
    offsets = np.zeros(rules.num_rules + 1, np.int64)
    np.cumsum(1 + included + excluded, out=offsets[1:])
    words = np.empty(offsets[-1], np.int32)
    words[offsets[:-1]] = included
    words[_places(offsets[:-1] + 1, included)] = rules.include_values
    words[_places(offsets[:-1] + 1 + included, excluded)] = rules.exclude_values
    return offsets, words


def _places(begins: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """begins[0], begins[0] + 1, .. sizes[0] of them, then the same of the next."""
    before = np.cumsum(sizes) - sizes
    return np.repeat(begins - before, sizes) + np.arange(sizes.sum())


class _ListsWriter:
    """Lists of values: their offsets from 0, and the values of all."""

    def __init__(self, out: OutputFolder, name: str) -> None:
        self._offsets = out.array(f"{name}_offsets", "<i8")
        self._values = out.array(f"{name}_values", "<i4")
        self._offsets.append([0])

    def append(
        self,
        offsets: npt.NDArray[np.int64],
        values: npt.NDArray[np.int32],
        kept: npt.NDArray[np.bool_],
    ) -> None:
        sizes = np.diff(offsets)
        begin = self._values.rows
        self._values.append(values[np.repeat(kept, sizes)])
        self._offsets.append(begin + np.cumsum(sizes[kept]))

    def finish(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        return self._offsets.finish(), self._values.finish()
