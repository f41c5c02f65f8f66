"""Join the rules of several shards or runs: each rule, bitmask and set rule once, by first use.

If every table is numbered by first use and the tables follow each other in the order of their ads,
the joined ids are by first use over all ads: what a later table repeats has its id already.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.index.builder.sharding.copies import Spans, number_spans
from grace.index.storage.array_file import blocks_of_all, map_blocks, read_rows
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
    new_of: Sequence[Ids]


def join_rules(tables: Sequence[RuleSource], folder: Path) -> JoinedRules:
    """Write the joined arrays into a new folder, and map them."""
    folder.mkdir()
    all_rules = [rules for rules, _ in tables]
    bitmask_tables = [rules.bitmask_table for rules in all_rules]
    bitmask_table, new_of = _join_rows(bitmask_tables, folder / "bitmask_table")
    new_of_parts, sets, set_values = [new_of], [], []
    for s in range(len(all_rules[0].sets)):
        values, value_ids = _join_values([strings[s] for _, strings in tables])
        of_set = [rules.sets[s] for rules in all_rules]
        joined, new_of = _join_set(of_set, value_ids, f"{folder}/set{s}")
        sets.append(joined)
        set_values.append(values)
        new_of_parts.append(new_of)
    parts = [
        map_blocks(folder / f"parts{t}", "<i4", _parts(rules, new_of), 1 + len(sets))
        for t, (rules, *new_of) in enumerate(zip(all_rules, *new_of_parts, strict=True))
    ]
    joined_parts, new_of = _join_rows(parts, folder / "parts")
    bitmasks = (block[:, 0] for block in blocks_of_all([joined_parts]))
    set_rules = (block[:, 1:] for block in blocks_of_all([joined_parts]))
    rules = TargetingRules(
        map_blocks(folder / "bitmask", "<i4", bitmasks),
        bitmask_table,
        map_blocks(folder / "sets", "<i4", set_rules, len(sets)),
        tuple(sets),
    )
    return JoinedRules(rules, tuple(set_values), new_of)


def _join_rows(
    tables: Sequence[npt.NDArray[Any]], path: Path
) -> tuple[npt.NDArray[Any], Sequence[Ids]]:
    """Join tables [n, width]. Return each row once, and the new number of every row by table."""
    counts, size = [len(table) for table in tables], sum(table.nbytes for table in tables)
    numbered = number_spans(sum(counts), size, lambda: map(Spans.of_rows, blocks_of_all(tables)))

    def first_ones() -> Iterator[npt.NDArray[Any]]:
        at = 0
        for block in blocks_of_all(tables):
            yield block[numbered.is_first[at : at + len(block)]]
            at += len(block)

    joined = map_blocks(path, tables[0].dtype.str, first_ones(), tables[0].shape[1])
    return joined, _by_table(numbered.new_of, counts)


def _by_table(new_of: Ids, counts: Sequence[int]) -> Sequence[Ids]:
    return np.split(new_of, np.cumsum(counts)[:-1])


def _parts(rules: TargetingRules, new_of: Sequence[Ids]) -> Iterator[Ids]:
    """Yield the rules in joined ids: a bitmask, and a set rule per set.   int32 [n, 1 + sets]"""
    for begin in range(0, rules.num_rules, BLOCK_RULES):
        end = min(begin + BLOCK_RULES, rules.num_rules)
        block = [read_rows(array, begin, end) for array in (rules.bitmask, rules.set_rules)]
        old = np.column_stack(block)
        yield np.column_stack([new[old[:, at]] for at, new in enumerate(new_of)])


def _join_values(tables: Sequence[Sequence[str]]) -> tuple[InternedValues, list[Ids]]:
    """Return all values once in UTF-8 order, and each table's ids in it: they keep their order."""
    joined = InternedValues.of(set().union(*tables))
    ids = joined.ids
    return joined, [np.array([ids[value] for value in table], np.int32) for table in tables]


def _join_set(
    tables: Sequence[SetRules], value_ids: Sequence[Ids], path: str
) -> tuple[SetRules, Sequence[Ids]]:
    included = [(t.include_offsets, t.include_values) for t in tables]
    excluded = [(t.exclude_offsets, t.exclude_values) for t in tables]
    include, exclude = (
        [(*lists, ids) for lists, ids in zip(kind, value_ids, strict=True)]
        for kind in (included, excluded)
    )
    counts = [table.num_rules for table in tables]
    words = sum(counts) + sum(len(values) for _, values in (*included, *excluded))
    numbered = number_spans(
        sum(counts), 4 * words, lambda: map(_spans, _lists(include), _lists(exclude))
    )
    joined = SetRules(
        *_write_first(include, numbered.is_first, f"{path}_include"),
        *_write_first(exclude, numbered.is_first, f"{path}_exclude"),
    )
    return joined, _by_table(numbered.new_of, counts)


TableLists = tuple[npt.NDArray[np.int64], Ids, Ids]
"""The lists of one table: offsets, value ids, and the joined id of each value id."""

Lists = tuple[npt.NDArray[np.int64], Ids]
"""Lists of joined value ids: their sizes, and the values of all."""


def _lists(tables: Sequence[TableLists]) -> Iterator[Lists]:
    for offsets, values, ids in tables:
        for begin in range(0, len(offsets) - 1, BLOCK_RULES):
            borders = read_rows(offsets, begin, min(begin + BLOCK_RULES, len(offsets) - 1) + 1)
            yield np.diff(borders), ids[read_rows(values, int(borders[0]), int(borders[-1]))]


def _spans(include: Lists, exclude: Lists) -> Spans:
    """Return each rule as one span: how many values it includes, those, then those it excludes."""
    included, excluded = include[0], exclude[0]
    each = np.arange(len(included))
    owners = np.concatenate([each, np.repeat(each, included), np.repeat(each, excluded)])
    words = np.concatenate([included, include[1], exclude[1]])
    in_order = words[np.argsort(owners, kind="stable")].astype(np.uint32)
    return Spans(in_order, offsets=np.append(0, np.cumsum(1 + included + excluded)))


def _write_first(tables: Sequence[TableLists], is_first: npt.NDArray[np.bool_], path: str) -> Lists:
    """Write the lists of rules that are the first of their kind. Return offsets and values."""

    def first_ones() -> Iterator[Lists]:
        at = 0
        for sizes, values in _lists(tables):
            kept = is_first[at : at + len(sizes)]
            yield sizes[kept], values[np.repeat(kept, sizes)]
            at += len(sizes)

    offsets = map_blocks(Path(f"{path}_offsets"), "<i8", _offsets(s for s, _ in first_ones()))
    return offsets, map_blocks(Path(f"{path}_values"), "<i4", (v for _, v in first_ones()))


def _offsets(sizes: Iterable[npt.NDArray[np.int64]]) -> Iterator[npt.NDArray[np.int64]]:
    end = np.zeros(1, np.int64)
    yield end
    for block in sizes:
        yield end + np.cumsum(block)
        end = end + block.sum()
