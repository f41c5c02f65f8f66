"""Facts about each column of a table, from all rows.

A sample would miss values: the schema would not list them, and the build would refuse their ads.
Memory holds the distinct values of a column up to a limit, and all values of a column that may be
the ids.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grace.index.proposal.names import is_entity, plain_name, words
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
_TEXT = pa.large_string()
_TIME = r"^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?$"
_BOOLEAN = r"^(?i:true|false)$"
_FLAGS = ({"yes", "no"}, {"y", "n"}, {"t", "f"}, {"0", "1"})


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


class IdValues:
    """The values of a column that may be the ids, as texts.

    It stops at the first null and, where the name alone does not say that these are ids, at the
    first value that repeats within a batch.
    """

    def __init__(self, *, stops_early: bool) -> None:
        self.stops_early = stops_early
        self._rows = 0
        self._parts: list[pa.Array] = []
        self.null_row: int | None = None
        self.stopped = False

    def add(self, column: pa.Array) -> None:
        rows, self._rows = self._rows, self._rows + len(column)
        if self.stopped or is_list(column.type) or not is_rule(column.type):
            return
        if column.null_count:
            self.null_row = rows + int(pc.index(column.is_null(), True).as_py())
            self.stopped = True
            return
        self._parts.append(column.cast(_TEXT))
        self.stopped = self.stops_early and len(column.unique()) < len(column)

    @property
    def values(self) -> pa.Array:
        self._parts = [pa.concat_arrays([pa.array([], _TEXT), *self._parts])]
        return self._parts[0]

    def share_of(self, column: pa.Array) -> float:
        """Return what share of a column's values are among these ids."""
        given = pc.ascii_trim_whitespace(column.drop_null().cast(_TEXT))
        share: float | None = pc.mean(pc.is_in(given, self.values)).as_py()
        return share or 0.0


@dataclass
class ColumnFacts:
    """Facts about one column of all files, complete once all rows are added."""

    name: str
    ids: IdValues | None = None  # of a column that may be the ids
    nested: bool = False  # Parquet or JSON lists, which a build reads or refuses
    has_texts: bool = False  # which may list values
    typed_text: bool = False  # texts in Parquet or JSON, which a build does not parse
    given: int = 0  # rows with a value
    values: set[str] = field(default_factory=set)  # distinct ones, at most MOST_VALUES
    counted: int = 0  # rows with a value, up to the batch that reached MOST_VALUES
    most_per_row: int = 0
    longest: int = 0  # characters
    faulty: int = 0  # values that no rule can name (null in a list, "", "*") or that are NaN
    least: float = np.inf  # number, or year of a time
    most: float = -np.inf
    kinds: set[Kind] = field(default_factory=set)
    padded: str = ""  # a note, if a value has blanks around it
    dims: set[int] = field(default_factory=set)  # lengths of lists of floats

    def __post_init__(self) -> None:
        self.plain = plain_name(self.name)
        self.words = words(self.plain)

    @property
    def kind(self) -> Kind:
        """The narrowest kind that holds all values."""
        if len(self.kinds) < 2:
            return next(iter(self.kinds), Kind.EMPTY)
        if self.kinds <= {Kind.INTEGER, Kind.NUMBER}:
            return Kind.NUMBER
        return Kind.OTHER if Kind.OTHER in self.kinds else Kind.TEXT

    @property
    def are_integer_ids(self) -> bool:
        """Return whether a build takes the values for ids without an id map."""
        return self.kind is Kind.INTEGER and self.least >= 0 and not self.typed_text

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

    def changes_by(self, separator: str) -> bool:
        """Return whether some facts may be others if this separates values: it also trims them."""
        listed = self.many or any(separator in value for value in self.values)
        return self.typed_text or (self.kind is Kind.TEXT and listed)

    @property
    def many(self) -> bool:
        return len(self.values) >= MOST_VALUES

    @property
    def shown_values(self) -> str:
        return shown_count(len(self.values), more=self.many)

    def add(self, column: pa.Array, file: TableFile) -> None:
        """Add the rows of a batch; `column` has no dictionary."""
        kind, is_csv = column.type, file.format is Format.CSV
        if self.ids is not None:
            self.ids.add(column)
        self.nested |= bool(pa.types.is_nested(kind))
        if column.null_count == len(column):
            return
        if not is_rule(kind):
            self._add_other(column)
            return
        separator = file.list_separator if is_text(kind) else None
        if separator == "," and is_entity(self.plain) and _are_names(column):
            separator = None
        if is_text(kind):
            self.has_texts = True
            self.typed_text |= not is_csv
            self._add_kinds_of_texts(column)
        elif pa.types.is_integer(kind):
            self._add_numbers(Kind.INTEGER, column)
        else:
            self.kinds.add(Kind.LISTS if is_list(kind) else Kind.BOOLEAN)
        self.padded = self.padded or _padded_note(column, is_csv or separator is not None)
        self._add_values(rule_lists(column, separator, is_csv=is_csv))

    def _add_other(self, column: pa.Array) -> None:
        kind = column.type
        self.given += len(column) - column.null_count
        if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            column = column.cast(pa.float64(), safe=False)
            self.faulty += pc.sum(pc.is_nan(column)).as_py() or 0
            self._add_numbers(Kind.NUMBER, column)
            return
        if pa.types.is_timestamp(kind):
            self._add_numbers(Kind.TIME, pc.year(column.cast(pa.timestamp("s"), safe=False)))
            return
        self.kinds.add(Kind.TIME if pa.types.is_temporal(kind) else Kind.OTHER)
        if is_list(kind) and pa.types.is_floating(kind.value_type):
            self.dims.update(pc.list_value_length(column).drop_null().unique().to_pylist())

    def _add_numbers(self, kind: Kind, column: pa.Array) -> None:
        self.kinds.add(kind)
        ends = pc.min_max(column.cast(pa.float64(), safe=False)).as_py()
        if ends["min"] is not None:
            self.least, self.most = min(self.least, ends["min"]), max(self.most, ends["max"])

    def _add_kinds_of_texts(self, column: pa.Array) -> None:
        """Add what texts look like. A column known as plain text is not parsed again."""
        if Kind.TEXT in self.kinds:
            return
        cells = column.filter(pc.not_equal(column, ""))
        if not len(cells):
            return
        try:
            cells.validate(full=True)
        except pa.ArrowInvalid:  # bytes that are not UTF-8
            self.kinds.add(Kind.TEXT)
            return
        padded_with_0 = pc.any(pc.match_substring_regex(cells, r"^\s*0[0-9]")).as_py()
        for kind, parse in ((Kind.INTEGER, integers), (Kind.NUMBER, numbers)):
            parsed, bad = parse(cells)
            if not (bad.any() or padded_with_0):
                self._add_numbers(kind, parsed)
                return
        if _all_match(cells, _TIME):
            self._add_numbers(Kind.TIME, pc.utf8_slice_codeunits(cells, 0, 4))
        else:
            self.kinds.add(Kind.BOOLEAN if _all_match(cells, _BOOLEAN) else Kind.TEXT)

    def _add_values(self, lists: pa.Array) -> None:
        parts = list_parts(lists)
        self.given += int(parts.valid.sum())
        self.most_per_row = max(self.most_per_row, int(np.diff(parts.offsets).max(initial=0)))
        if self.many:
            return
        self.counted = self.given
        for value in texts(parts.flat.unique()):
            if value is None or value in ("", "*"):
                self.faulty += 1
            elif len(self.values) < MOST_VALUES:
                self.values.add(value)
                self.longest = max(self.longest, len(value))


def read_facts(
    files: Sequence[TableFile],
    columns: Collection[str],
    may_be_ids: Mapping[str, bool] = MappingProxyType({}),
    advance: Callable[[int], None] = lambda _: None,
) -> dict[str, ColumnFacts]:
    """Read all rows of these columns; call `advance` with how many are done.

    `may_be_ids` names the columns to keep ids of, and which of them stop early.
    """
    found = {name: ColumnFacts(name) for name in columns}
    for name, stops_early in may_be_ids.items():
        found[name].ids = IdValues(stops_early=stops_early)
    done = 0
    for file in files:
        here = [name for name in file.schema.names if name in found]
        for batch in file.batches(here, BATCH_ROWS) if here else ():
            add_batch(found, batch, file)
            done += batch.num_rows
            advance(done)
    return found


def add_batch(found: Mapping[str, ColumnFacts], batch: pa.RecordBatch, file: TableFile) -> None:
    columns = dict(zip(batch.schema.names, map(plain_texts, batch.columns), strict=True))
    for name, facts in found.items():
        facts.add(columns.get(name, pa.nulls(batch.num_rows)), file)


def shown_count(values: int, *, more: bool) -> str:
    return f"{'over ' if more else ''}{values:,} value{'s' if values != 1 else ''}"


def _padded_note(column: pa.Array, removed: bool) -> str:
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


def plain_texts(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _are_names(column: pa.Array) -> bool:
    """Return whether every comma of the texts is before a blank, as in `Acme, Inc.`"""
    return not pc.any(pc.match_substring_regex(column, r",(\S|$)")).as_py()


def _all_match(column: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(column, pattern)).as_py())
