"""Join the rules of several shards or runs: each rule, bitmask and set rule once, by first use.

If every table is numbered by first use and the tables follow each other in the order of their ads,
the joined ids are by first use over all ads: what a later table repeats has its id already.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.index.builder.sharding.copies import Numbered, Spans, SpanTable, number_spans
from grace.index.builder.sharding.output_folder import OutputFolder
from grace.index.storage.array_file import blocks, read_rows
from grace.index.targeting.rules import SetRules, TargetingRules
from grace.index.users.values import InternedValues

BLOCK_RULES = 1 << 18  # rules at a time

Ids = npt.NDArray[np.int32]

RuleSource = tuple[TargetingRules, Sequence[Sequence[str]]]
"""The rules of one shard or run, and for each set its strings by value id, in UTF-8 order."""


@dataclass(frozen=True, slots=True)
class JoinedRules:
    """new_of: for each table, int32 [its rules]"""

    rules: TargetingRules
    set_values: tuple[InternedValues, ...]
    new_of: tuple[Ids, ...]


def join_rules(tables: Sequence[RuleSource], out: OutputFolder) -> JoinedRules:
    all_rules = [rules for rules, _ in tables]
    sets, set_values, numbered = [], [], []
    for s in range(len(all_rules[0].sets)):
        values, value_ids = _join_values([strings[s] for _, strings in tables])
        joined, numbered_set = _join_set(
            [rules.sets[s] for rules in all_rules], value_ids, out, f"set{s}"
        )
        sets.append(joined)
        set_values.append(values)
        numbered.append(numbered_set)
    bitmask_tables = [rules.bitmask_table for rules in all_rules]
    bitmask_table, numbered_bitmasks = _join_rows(bitmask_tables, out, "rule_bitmask_table")
    numbered.insert(0, numbered_bitmasks)
    parts = [
        _parts(rules, [ids.new_of[t] for ids in numbered], out, f"parts{t}")
        for t, rules in enumerate(all_rules)
    ]
    joined_parts, numbered_rules = _join_rows(parts, out, "rule_parts")
    bitmask = out.array("rule_bitmask", "<i4")
    set_rules = out.array("rule_sets", "<i4", (len(sets),))
    for block in blocks(joined_parts):
        bitmask.append(block[:, 0])
        set_rules.append(block[:, 1:])
    rules = TargetingRules(bitmask.finish(), bitmask_table, set_rules.finish(), tuple(sets))
    return JoinedRules(rules, tuple(set_values), numbered_rules.new_of)


def _join_rows(
    tables: Sequence[npt.NDArray[Any]], out: OutputFolder, name: str
) -> tuple[npt.NDArray[Any], Numbered]:
    numbered = number_spans([SpanTable.of_rows(table, 0, len(table)) for table in tables])
    joined = out.array(name, tables[0].dtype.str, tables[0].shape[1:])
    for table, is_first in zip(tables, numbered.is_first, strict=True):
        joined.append_first(blocks(table), is_first)
    return joined.finish(), numbered


def _parts(rules: TargetingRules, new_of: Sequence[Ids], out: OutputFolder, name: str) -> Ids:
    """Return the rules in joined ids: a bitmask, and a set rule per set.   int32 [n, 1 + sets]"""
    parts = out.array(name, "<i4", (len(new_of),))
    for begin in range(0, rules.num_rules, BLOCK_RULES):
        end = min(begin + BLOCK_RULES, rules.num_rules)
        block = [read_rows(array, begin, end) for array in (rules.bitmask, rules.set_rules)]
        old = np.column_stack(block)
        parts.append(np.column_stack([new[old[:, at]] for at, new in enumerate(new_of)]))
    return parts.finish()


def _join_values(tables: Sequence[Sequence[str]]) -> tuple[InternedValues, list[Ids]]:
    """Return all values once in UTF-8 order, and each table's ids in it: they keep their order."""
    joined = InternedValues.of(set().union(*tables))
    ids = joined.ids
    return joined, [np.array([ids[value] for value in table], np.int32) for table in tables]


def _join_set(
    tables: Sequence[SetRules], value_ids: Sequence[Ids], out: OutputFolder, name: str
) -> tuple[SetRules, Numbered]:
    numbered = number_spans(
        [
            SpanTable(table.num_rules, _span_bytes(table), partial(_set_spans, table, ids))
            for table, ids in zip(tables, value_ids, strict=True)
        ]
    )
    include, exclude = _ListsWriter(out, f"{name}_include"), _ListsWriter(out, f"{name}_exclude")
    for table, ids, is_first in zip(tables, value_ids, numbered.is_first, strict=True):
        at = 0
        for rules in _set_rules(table, ids):
            kept = is_first[at : at + rules.num_rules]
            include.append(rules.include_offsets, rules.include_values, kept)
            exclude.append(rules.exclude_offsets, rules.exclude_values, kept)
            at += rules.num_rules
    return SetRules(*include.finish(), *exclude.finish()), numbered


def _span_bytes(table: SetRules) -> int:
    return 4 * (table.num_rules + len(table.include_values) + len(table.exclude_values))


def _set_rules(table: SetRules, ids: Ids) -> Iterator[SetRules]:
    """Yield the set rules in joined value ids, a block at a time, offsets from 0."""
    for begin in range(0, table.num_rules, BLOCK_RULES):
        lists = []
        for offsets, values in (
            (table.include_offsets, table.include_values),
            (table.exclude_offsets, table.exclude_values),
        ):
            borders = read_rows(offsets, begin, min(begin + BLOCK_RULES, table.num_rules) + 1)
            first, last = int(borders[0]), int(borders[-1])
            lists += [borders - first, ids[read_rows(values, first, last)]]
        yield SetRules(*lists)


def _set_spans(table: SetRules, ids: Ids) -> Iterator[Spans]:
    """Yield each rule as one span: how many values it includes, those, then those it excludes."""
    for rules in _set_rules(table, ids):
        included, excluded = np.diff(rules.include_offsets), np.diff(rules.exclude_offsets)
        each = np.arange(rules.num_rules)
        owners = np.concatenate([each, np.repeat(each, included), np.repeat(each, excluded)])
        words = np.concatenate([included, rules.include_values, rules.exclude_values])
        in_order = words[np.argsort(owners, kind="stable")].astype(np.uint32)
        offsets = np.zeros(rules.num_rules + 1, np.int64)
        np.cumsum(1 + included + excluded, out=offsets[1:])
        yield Spans(in_order, offsets=offsets)


class _ListsWriter:
    """Lists of values: their offsets from 0, and the values of all."""

    def __init__(self, out: OutputFolder, name: str) -> None:
        self._offsets = out.array(f"{name}_offsets", "<i8")
        self._values = out.array(f"{name}_values", "<i4")
        self._offsets.append([0])

    def append(
        self, offsets: npt.NDArray[np.int64], values: Ids, kept: npt.NDArray[np.bool_]
    ) -> None:
        sizes = np.diff(offsets)
        begin = self._values.rows
        self._values.append(values[np.repeat(kept, sizes)])
        self._offsets.append(begin + np.cumsum(sizes[kept]))

    def finish(self) -> tuple[npt.NDArray[np.int64], Ids]:
        return self._offsets.finish(), self._values.finish()
