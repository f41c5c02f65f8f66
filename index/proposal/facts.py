"""Collect facts about each column of a table, from all rows.

A sample would miss values: the schema would not list them, and the build would refuse their ads.
So this reads every row, batch by batch. Memory holds the distinct values of a column up to a limit,
and eight bytes per row of a column that may be the ids.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from grace.index.proposal.names import is_entity, plain_name
from grace.index.tables.addresses import Format
from grace.index.tables.cells import (
    integers,
    is_list,
    is_rule,
    is_text,
    list_parts,
    numbers,
    rule_lists,
    texts,
)
from grace.index.tables.table_file import TableFile

MOST_VALUES = 1 << 16
"""The most distinct values to keep of a column. Of more, only the fact that there are more."""

BATCH_ROWS = 1 << 16
TIME_PATTERN = r"^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?$"
_BOOLEAN = r"^(?i:true|false)$"
_FLAGS = ({"yes", "no"}, {"y", "n"}, {"t", "f"}, {"0", "1"})

Int64 = npt.NDArray[np.int64]


class Kind(StrEnum):
    """The kind of a column's values, in words for a reason."""

    EMPTY = "no value in any row"
    TEXT = "texts"
    INTEGER = "integers"
    NUMBER = "numbers"
    BOOLEAN = "true or false"
    TIME = "times"
    LISTS = "lists"  # of what a rule may hold
    OTHER = "nested values"


@dataclass
class ColumnFacts:
    """Facts about one column of all files, complete once all rows are added."""

    name: str
    nested: bool = False  # Parquet or JSON lists, which a build reads or refuses
    typed_text: bool = False  # texts in Parquet or JSON, which a build does not parse
    rows: int = 0
    given: int = 0  # rows with a value
    values: set[str] = field(default_factory=set)  # distinct ones, at most MOST_VALUES
    counted: int = 0  # rows with a value, up to the batch that reached MOST_VALUES
    most_per_row: int = 0
    longest: int = 0  # characters
    faulty: int = 0  # values that no rule can name (null in a list, "", "*") or that are NaN
    least: float = np.inf
    most: float = -np.inf
    kinds: set[Kind] = field(default_factory=set)
    padded: str = ""  # a note, if a value has blanks around it
    dims: set[int] = field(default_factory=set)  # lengths of lists of floats
    ids: "IdValues | None" = None  # of a column that may be the ids

    @property
    def kind(self) -> Kind:
        """The narrowest kind that holds all values."""
        if not self.kinds:
            return Kind.EMPTY
        if len(self.kinds) == 1:
            return next(iter(self.kinds))
        if self.kinds <= {Kind.INTEGER, Kind.NUMBER}:
            return Kind.NUMBER
        return Kind.OTHER if Kind.OTHER in self.kinds else Kind.TEXT

    @property
    def may_be_rule(self) -> bool:
        return self.kind not in (Kind.NUMBER, Kind.TIME, Kind.OTHER)

    @property
    def holds_integers(self) -> bool:
        """Return whether the values, those of lists too, are all integers from 0."""
        return bool(self.values) and not self.faulty and all(map(str.isdecimal, self.values))

    @property
    def are_flags(self) -> bool:
        """Return whether the values say yes or no."""
        return self.kind is Kind.BOOLEAN or {*map(str.casefold, self.values)} in _FLAGS

    @property
    def many(self) -> bool:
        return len(self.values) >= MOST_VALUES

    @property
    def shown_values(self) -> str:
        more = "over " if self.many else ""
        return f"{more}{len(self.values):,} value{'s' if len(self.values) != 1 else ''}"


class IdValues:
    """The values of a column that may be the ids: int64 as they are, texts by their hash.

    It stops at the first null and, where the name alone does not say that these are ids, at the
    first value that repeats within a batch.
    """

    def __init__(self, *, stops_early: bool) -> None:
        self._parts: list[Int64] = []
        self.stops_early = stops_early
        self._rows = 0
        self._sorted: tuple[Int64, Int64] | None = None
        self.are_integers = True
        self.null_row: int | None = None
        self.stopped = False

    def add(self, column: pa.Array) -> None:
        rows, self._rows = self._rows, self._rows + len(column)
        if self.stopped or not len(column):
            return
        if column.null_count:
            self.null_row = rows + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
            self.stopped = True
            self._parts.clear()
            return
        found = self._as_integers(column) if self.are_integers else None
        if found is None:
            if self.are_integers:
                self._parts = [_hashes(map(str, part.tolist())) for part in self._parts]
                self.are_integers = False
            found = _hashes(texts(column))
        if self.stops_early and len(np.unique(found)) < len(found):
            self.stopped = True
            self._parts.clear()
            return
        self._parts.append(found)

    def repeated(self) -> tuple[int, int] | None:
        """Return two rows with the same value, the first such value in order of its hash."""
        ids = self.sorted_with_rows()
        if ids is None:
            return None
        values, rows = ids
        same = np.flatnonzero(values[1:] == values[:-1])
        return (int(rows[same[0]]), int(rows[same[0] + 1])) if len(same) else None

    def sorted_with_rows(self) -> tuple[Int64, Int64] | None:
        if self.stopped or not self._parts:
            return None
        if self._sorted is None:
            ids = np.concatenate(self._parts)
            self._parts = [ids]
            order = np.argsort(ids, kind="stable")
            self._sorted = ids[order], order
        return self._sorted

    def share_of(self, column: pa.Array) -> float:
        """Return what share of a column's values are among these ids."""
        ids = self.sorted_with_rows()
        column = column.drop_null()
        if ids is None or not len(column):
            return 0.0
        found = self._as_integers(column) if self.are_integers else _hashes(texts(column))
        if found is None:
            return 0.0
        at = np.minimum(np.searchsorted(ids[0], found), len(ids[0]) - 1)
        return float(np.mean(ids[0][at] == found))

    def _as_integers(self, column: pa.Array) -> Int64 | None:
        if pa.types.is_integer(column.type) and column.type != pa.uint64():
            values: Int64 = column.cast(pa.int64()).to_numpy()
            return values if values.min() >= 0 else None
        if not is_text(column.type):
            return None
        parsed, bad = integers(plain_texts(column))
        if bad.any() or pc.min(parsed).as_py() < 0:
            return None
        parsed_values: Int64 = parsed.to_numpy()
        return parsed_values


def _hashes(values: Iterator[str] | Sequence[str | None]) -> Int64:
    digest = xxhash.xxh3_64_intdigest
    return np.array([digest((value or "").encode()) for value in values], np.uint64).view(np.int64)


def read_facts(
    found: dict[str, ColumnFacts],
    files: Sequence[TableFile],
    separator: str | None,
    may_be_ids: dict[str, bool],
) -> Iterator[int]:
    """Read all rows into `found`; yield how many are done.

    `may_be_ids` names the columns to keep ids of, and which of them stop early.
    """
    for name in dict.fromkeys(name for file in files for name in file.schema.names):
        found[name] = ColumnFacts(name)
        if name in may_be_ids:
            found[name].ids = IdValues(stops_early=may_be_ids[name])
    done = 0
    for file in files:
        for batch in file.batches(file.schema.names, BATCH_ROWS):
            for name, facts in found.items():
                if name in file.schema.names:
                    column = batch.column(name)
                    whole = separator == "," and is_entity(plain_name(name)) and _has_names(column)
                    _add(facts, column, file.format is Format.CSV, None if whole else separator)
                else:
                    _add(facts, pa.nulls(batch.num_rows), False, None)
            done += batch.num_rows
            yield done


def _has_names(column: pa.Array) -> bool:
    """Return whether every comma of the texts is before a blank, as in `Acme, Inc.`"""
    flat = plain_texts(column)
    return is_text(flat.type) and not pc.any(pc.match_substring_regex(flat, r",(\S|$)")).as_py()


def _add(facts: ColumnFacts, column: pa.Array, is_csv: bool, separator: str | None) -> None:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    facts.rows += len(column)
    if facts.ids is not None:
        facts.ids.add(column)
    if is_list(kind) or pa.types.is_nested(kind):
        facts.nested = True
    if column.null_count == len(column):
        return
    if not is_rule(kind):
        facts.given += len(column) - column.null_count
        facts.kinds.add(_kind_of(kind))
        if is_list(kind) and pa.types.is_floating(kind.value_type):
            facts.dims.update(pc.list_value_length(column).drop_null().unique().to_pylist())
        if _kind_of(kind) is Kind.NUMBER:
            column = column.cast(pa.float64(), safe=False)
            facts.faulty += pc.sum(pc.is_nan(column)).as_py() or 0
            _add_range(facts, column)
        return
    if is_text(kind):
        facts.kinds |= _kinds_of_texts(facts, column)
        facts.typed_text |= not is_csv
    else:
        facts.kinds.add(Kind.LISTS if is_list(kind) else _kind_of(kind))
    removed = is_csv or (separator is not None and is_text(kind))
    facts.padded = facts.padded or padded_note(column, removed)
    lists = rule_lists(column, separator, is_csv=is_csv)
    if pa.types.is_integer(kind):
        _add_range(facts, column.cast(pa.float64(), safe=False))
    _add_values(facts, lists)


def padded_note(column: pa.Array, removed: bool) -> str:
    """Return a note on a value with blanks around it, which a build removes or not; or nothing."""
    flat = plain_texts(list_parts(column).flat if is_list(column.type) else column)
    if not is_text(flat.type):
        return ""
    flat = flat.drop_null()
    padded = flat.filter(pc.not_equal(pc.ascii_trim_whitespace(flat), flat))
    for text in filter(None, texts(padded.slice(0, 1))):
        fix = "a build reads" if removed else "remove the blanks from the table, since it is not"
        return f"; {text!r} has blanks around it: {fix} {text.strip()!r}"
    return ""


def _add_values(facts: ColumnFacts, lists: pa.Array) -> None:
    parts = list_parts(lists)
    facts.given += int(parts.valid.sum())
    facts.most_per_row = max(facts.most_per_row, int(np.diff(parts.offsets).max(initial=0)))
    if facts.many:
        return
    facts.counted = facts.given
    for value in texts(parts.flat.unique()):
        if value is None or value in ("", "*"):
            facts.faulty += 1
        elif len(facts.values) < MOST_VALUES:
            facts.values.add(value)
            facts.longest = max(facts.longest, len(value))


def _kind_of(kind: pa.DataType) -> Kind:
    if is_text(kind):
        return Kind.TEXT
    if pa.types.is_boolean(kind):
        return Kind.BOOLEAN
    if pa.types.is_integer(kind):
        return Kind.INTEGER
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return Kind.NUMBER
    return Kind.TIME if pa.types.is_temporal(kind) else Kind.OTHER


def _kinds_of_texts(facts: ColumnFacts, column: pa.Array) -> set[Kind]:
    """Return the kinds that texts look like. A column known as plain text is not parsed again."""
    if Kind.TEXT in facts.kinds:
        return set()
    cells = column.filter(pc.not_equal(column, ""))
    if not len(cells):
        return set()
    try:
        cells.validate(full=True)
    except pa.ArrowInvalid:  # bytes that are not UTF-8
        return {Kind.TEXT}
    parsed, bad = integers(cells)
    if not bad.any():
        _add_range(facts, parsed.cast(pa.float64(), safe=False))
        return {Kind.INTEGER}
    parsed, bad = numbers(cells)
    if not bad.any() and not pc.any(pc.match_substring_regex(cells, r"^\s*0[0-9]")).as_py():
        _add_range(facts, parsed)
        return {Kind.NUMBER}
    for kind, pattern in ((Kind.BOOLEAN, _BOOLEAN), (Kind.TIME, TIME_PATTERN)):
        if pc.all(pc.match_substring_regex(cells, pattern)).as_py():
            return {kind}
    return {Kind.TEXT}


def _add_range(facts: ColumnFacts, column: pa.Array) -> None:
    ends = pc.min_max(column).as_py()
    facts.least = min(facts.least, np.inf if ends["min"] is None else ends["min"])
    facts.most = max(facts.most, -np.inf if ends["max"] is None else ends["max"])


def plain_texts(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
