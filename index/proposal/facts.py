"""Facts about each column of a table, from all rows.

A sample would miss values: the schema would not list them, and the build would refuse their ads.
Memory holds the distinct values of a column up to a limit, and all values of a column that may be
the ids.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grace.index.proposal.names import WORDS, is_title, plain_name, words
from grace.index.tables import cells
from grace.index.tables.addresses import Format
from grace.index.tables.data_folder import FIRST_SECOND, LAST_SECOND
from grace.index.tables.table_file import TableFile
from grace.index.targeting.schema import EXPRESSION

MOST_VALUES = 1 << 16
"""The most distinct values to keep of a column. Of more, only the fact that there are more."""

BATCH_ROWS = 1 << 16
_TEXT = pa.large_string()
_TIME = r"^\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?$"
_LEAST_TIMES = 0.9  # a column of times has a larger share of them
_SEPARATORS = ("|", ";", ",")


class Kind(StrEnum):
    """The kind of a column's values, in words for a reason."""

    EMPTY = "no value in any row"
    TEXT = "texts"
    INTEGER = "integers"
    NUMBER = "numbers"
    TIME = "times"
    LISTS = "lists"  # of what a rule may hold
    OTHER = "values of another type"


@dataclass
class ColumnFacts:
    """Facts about one column of all files, complete once all rows are added."""

    name: str
    id_parts: list[pa.Array] | None = None  # as texts, if the column may hold the ids
    nested: bool = False  # Parquet or JSON lists, which a build reads or refuses
    has_texts: bool = False  # which may list values
    typed_text: bool = False  # texts in Parquet or JSON, which a build does not parse
    given: int = 0  # rows with a value
    values: set[str] = field(default_factory=set)  # distinct ones, at most MOST_VALUES
    most_per_row: int = 0
    least: float = np.inf  # number, or year of a time
    most: float = -np.inf
    kinds: set[Kind] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.plain = plain_name(self.name)
        self.words = words(self.plain)

    @property
    def ids(self) -> pa.Array:
        return pa.concat_arrays([pa.array([], _TEXT), *(self.id_parts or ())])

    @property
    def kind(self) -> Kind:
        """The narrowest kind that holds all values."""
        if len(self.kinds) < 2:
            return next(iter(self.kinds), Kind.EMPTY)
        if self.kinds <= {Kind.INTEGER, Kind.NUMBER}:
            return Kind.NUMBER
        return Kind.OTHER if Kind.OTHER in self.kinds else Kind.TEXT

    @property
    def is_text(self) -> bool:
        return self.kind is Kind.TEXT or self.typed_text

    @property
    def are_integer_ids(self) -> bool:
        """Return whether a build takes the values for ids without an id map."""
        return self.kind is Kind.INTEGER and self.least >= 0 and not self.typed_text

    @property
    def time_unit(self) -> str | None:
        """The unit of integers that are times from 1990 to 2100."""
        units = cells.PER_SECOND.items() if self.kind is Kind.INTEGER else ()
        for unit, factor in units:  # their ranges do not overlap
            if FIRST_SECOND * factor <= self.least <= self.most < LAST_SECOND * factor:
                return unit
        return None

    @property
    def may_be_rule(self) -> bool:
        return self.kind not in (Kind.NUMBER, Kind.TIME, Kind.OTHER)

    @property
    def many(self) -> bool:
        return len(self.values) >= MOST_VALUES

    @property
    def shown_values(self) -> str:
        return shown_count(len(self.values), more=self.many)

    def add(self, column: pa.Array, file: TableFile) -> None:
        """Add the rows of a batch; `column` has no dictionary."""
        kind, is_csv = column.type, file.format is Format.CSV
        if self.id_parts is not None and cells.is_rule(kind) and not cells.is_list(kind):
            self.id_parts.append(column.cast(_TEXT))
        self.nested |= bool(pa.types.is_nested(kind))
        if column.null_count == len(column):
            return
        if not cells.is_rule(kind):
            self._add_other(column)
            return
        if cells.is_text(kind):
            self.has_texts = True
            self.typed_text |= not is_csv
            self._add_kinds_of_texts(column)
        elif pa.types.is_integer(kind):
            self._add_numbers(Kind.INTEGER, column)
        else:
            self.kinds.add(Kind.LISTS if cells.is_list(kind) else Kind.TEXT)
        parts = cells.rule_lists(column, None, is_csv=is_csv)
        self.given += int(parts.valid.sum())
        self.most_per_row = max(self.most_per_row, int(np.diff(parts.offsets).max(initial=0)))
        for value in cells.texts(parts.flat.unique()):
            if value not in (None, "", "*") and not self.many:  # no rule can name those
                self.values.add(str(value))

    def _add_other(self, column: pa.Array) -> None:
        kind = column.type
        self.given += len(column) - column.null_count
        if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            self._add_numbers(Kind.NUMBER, column)
        else:
            moments = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
            self.kinds.add(Kind.TIME if moments else Kind.OTHER)
            if pa.types.is_timestamp(kind):
                years = pc.year(column.cast(pa.timestamp("s"), safe=False))
                self._add_numbers(Kind.TIME, years)

    def _add_numbers(self, kind: Kind, column: pa.Array) -> None:
        self.kinds.add(kind)
        given = column.cast(pa.float64(), safe=False).drop_null().to_numpy()
        if len(given):  # NaN makes both ends NaN
            self.least = float(np.minimum(self.least, given.min()))
            self.most = float(np.maximum(self.most, given.max()))

    def _add_kinds_of_texts(self, column: pa.Array) -> None:
        """Add what texts look like. A column known as plain text is not parsed again."""
        if Kind.TEXT in self.kinds:
            return
        given = column.filter(pc.not_equal(column, ""))
        if not len(given):
            return
        try:
            given.validate(full=True)
        except pa.ArrowInvalid:  # bytes that are not UTF-8
            self.kinds.add(Kind.TEXT)
            return
        padded_with_0 = pc.any(pc.match_substring_regex(given, r"^\s*0[0-9]")).as_py()
        for kind, parse in ((Kind.INTEGER, cells.integers), (Kind.NUMBER, cells.numbers)):
            parsed, bad = parse(given)
            if not (bad.any() or padded_with_0):
                self._add_numbers(kind, parsed)
                return
        are_times = pc.match_substring_regex(given, _TIME)
        if pc.mean(are_times).as_py() > _LEAST_TIMES:  # a build names the ads with other texts
            self._add_numbers(Kind.TIME, pc.utf8_slice_codeunits(given.filter(are_times), 0, 4))
        else:
            self.kinds.add(Kind.TEXT)

    def split(self, separator: str) -> None:
        """Treat the texts as lists, as a build with this separator does."""
        if self.has_texts:
            lists = [cell.split(separator) for cell in self.values]
            self.most_per_row = max(map(len, lists), default=0)
            self.values = {each.strip() for values in lists for each in values} - {"", "*"}


def read_facts(
    files: Sequence[TableFile], columns: Mapping[str, bool], advance: Callable[[int], None]
) -> dict[str, ColumnFacts]:
    """Read all rows. `columns` says whose values to keep as ids; `advance` gets the rows read."""
    found = {name: ColumnFacts(name, [] if is_id else None) for name, is_id in columns.items()}
    done = 0
    for file in files:
        for batch in file.batches(file.schema.names, BATCH_ROWS):
            add_batch(found, batch, file)
            done += batch.num_rows
            advance(done)
    return found


def add_batch(found: Mapping[str, ColumnFacts], batch: pa.RecordBatch, file: TableFile) -> None:
    plain = map(cells.without_dictionary, batch.columns)
    columns = dict(zip(batch.schema.names, plain, strict=True))
    for name, facts in found.items():
        facts.add(columns.get(name, pa.nulls(batch.num_rows)), file)


def split_lists(facts: Collection[ColumnFacts]) -> str | None:
    """Split cells, not split yet, by the separator that lists values in most columns; return it."""
    texts = [each for each in facts if each.has_texts and each.plain != EXPRESSION]
    columns = [each for each in texts if not is_title(each.plain)]
    may_list = [each for each in columns if not each.words & WORDS["prose"]]
    counts = {s: sum(_lists(each.values, s) for each in may_list) for s in _SEPARATORS}
    best = max(_SEPARATORS, key=lambda separator: counts[separator])
    if not counts[best]:
        return None
    for each in facts:
        each.split(best)
    return best


def _lists(texts: Collection[str], separator: str) -> bool:
    """Return whether cells are lists: their values repeat in other cells, or are codes."""
    values = {value.strip() for text in texts for value in text.split(separator)}
    if not any(separator in text for text in texts) or "" in values:
        return False
    if separator == "," and all(map(str.isdecimal, values)):  # decimals such as 1,5
        return False
    codes = separator == "|" or not any(" " in text for text in texts)
    return codes or len(values) < len(texts)


def are_paths(values: Iterable[str]) -> bool:
    """Return whether most values are places in a tree, such as `us/oh/columbus`."""
    values = list(values)
    return any(2 * sum(mark in value for value in values) > len(values) for mark in ("/", ">"))


def shown_count(values: int, *, more: bool) -> str:
    return f"{'over ' if more else ''}{values:,} value{'s' if values != 1 else ''}"
