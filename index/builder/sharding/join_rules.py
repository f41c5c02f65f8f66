"""Join the rules of several shards or runs: each rule and each row once, by first use.

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
from grace.index.snapshot import bytes_of
from grace.index.storage.array_file import blocks_of_all, map_blocks, read_rows
from grace.index.targeting.rules import Column, Lists, NumberRows, TargetingRules, size_of, take
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
    strings = iter(zip(*(own for _, own in tables), strict=True))
    parts, interned, new_of_parts = [], [], []
    for c, rows in enumerate(zip(*(rules.parts for rules in all_rules), strict=True)):
        ids: Sequence[Ids | None] = [None] * len(rows)
        if rows[0].has_values:
            values, ids = _join_values(next(strings))
            interned.append(values)
        joined, new_of = _join_rows(rows, ids, folder / f"part{c}")
        parts.append(joined)
        new_of_parts.append(new_of)
    each = [
        map_blocks(folder / f"rules{t}", "<i4", _renumbered(rules.rows, new_of), len(parts))
        for t, (rules, *new_of) in enumerate(zip(all_rules, *new_of_parts, strict=True))
    ]
    joined, new_of = _join_rows(list(map(NumberRows, each)), [None] * len(each), folder / "rules")
    return JoinedRules(TargetingRules(joined.table, tuple(parts)), tuple(interned), new_of)


def _renumbered(rules: Ids, new_of: Sequence[Ids]) -> Iterator[Ids]:
    """Yield rules by the joined numbers of their rows."""
    for block in blocks_of_all([rules]):
        yield np.column_stack([new[block[:, at]] for at, new in enumerate(new_of)])


def _join_values(tables: Sequence[Sequence[str]]) -> tuple[InternedValues, list[Ids]]:
    """Return all values once in UTF-8 order, and each table's ids in it: they keep their order."""
    joined = InternedValues.of(set().union(*tables))
    ids = joined.ids
    return joined, [np.array([ids[value] for value in table], np.int32) for table in tables]


def _join_rows(
    tables: Sequence[Any], ids: Sequence[Ids | None], path: Path
) -> tuple[Any, Sequence[Ids]]:
    """Return the rows of all tables once, and the new number of every row by table.

    ids  the joined id of each value of a table
    """
    counts = [len(table) for table in tables]
    columns = list(zip(*(table.columns for table in tables), strict=True))

    def rows() -> Iterator[tuple[Column, ...]]:
        return zip(*(_blocks(column, ids) for column in columns), strict=True)

    numbered = number_spans(sum(counts), sum(map(bytes_of, tables)), lambda: map(_spans, rows()))
    joined = [
        _write_first(column, ids, numbered.is_first, f"{path}_{at}")
        for at, column in enumerate(columns)
    ]
    return type(tables[0]).of(joined), np.split(numbered.new_of, np.cumsum(counts)[:-1])


def _blocks(tables: Sequence[Column], ids: Sequence[Ids | None]) -> Iterator[Column]:
    """Yield one column of all tables, block by block; lists have joined ids and offsets from 0."""
    for column, new_of in zip(tables, ids, strict=True):
        rows = size_of(column)
        for begin in range(0, rows, BLOCK_RULES):
            end = min(begin + BLOCK_RULES, rows)
            if not isinstance(column, Lists):
                yield read_rows(column, begin, end)
                continue
            assert new_of is not None
            borders = read_rows(column.offsets, begin, end + 1)
            values = read_rows(column.values, int(borders[0]), int(borders[-1]))
            yield Lists(borders - borders[0], new_of[values])


def _spans(columns: tuple[Column, ...]) -> Spans:
    """Return each row as one span: its numbers, and how long each of its lists is, and its ids."""
    if len(columns) == 1 and not isinstance(columns[0], Lists):
        return Spans.of_rows(columns[0])
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
    return Spans(in_order, offsets=np.append(0, np.cumsum(np.bincount(owner))))


def _write_first(
    tables: Sequence[Column], ids: Sequence[Ids | None], is_first: npt.NDArray[np.bool_], path: str
) -> Column:
    """Write a column of the rows that are the first of their kind, and map it."""

    def first_ones() -> Iterator[Column]:
        at = 0
        for block in _blocks(tables, ids):
            end = at + size_of(block)
            yield take(block, np.flatnonzero(is_first[at:end]))
            at = end

    head = tables[0]
    if not isinstance(head, Lists):
        return map_blocks(Path(path), head.dtype.str, first_ones(), head.shape[1])
    offsets = _offsets(each.offsets for each in first_ones() if isinstance(each, Lists))
    values = (each.values for each in first_ones() if isinstance(each, Lists))
    return Lists(
        map_blocks(Path(f"{path}_offsets"), "<i8", offsets),
        map_blocks(Path(f"{path}_values"), "<i4", values),
    )


def _offsets(each: Iterable[npt.NDArray[np.int64]]) -> Iterator[npt.NDArray[np.int64]]:
    end = np.zeros(1, np.int64)
    yield end
    for block in each:
        yield end + block[1:]
        end = end + block[-1]
