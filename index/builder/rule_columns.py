"""Read the columns of rules: those of the ads, and those of their clauses.

An ad without clauses is one row of rules. An ad with clauses is a row for each clause, which joins
the ad's own columns to the clause's. Clauses are structs of the same columns, or an expression.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from grace.configs.arrays import Bools, Int32, Int64
from grace.index.forms.component import BAD_VALUE, Codes, ListColumn
from grace.index.forms.components import components_of
from grace.index.forms.interval import number_column
from grace.index.forms.lists import ValueCodes, group_column
from grace.index.tables import roles
from grace.index.tables.cells import coded, list_parts
from grace.index.tables.roles import Role
from grace.index.tables.rows import Rows, other_rows
from grace.index.targeting.expressions import ExpressionError, clauses_of
from grace.index.targeting.rules import Groups, Lists, gather_spans, span_places
from grace.index.targeting.schema import CLAUSES, EXPRESSION, TargetingSchema

_NONE = -1
_MOST_KEPT = 1 << 16  # expressions whose clauses are kept
_BOTH = "is in the ad's own columns and in a clause; leave one of them out"


def codes_of(values: pa.Array, codes: Codes) -> Int32:
    """Return the code of each text, BAD_VALUE for a null. It looks up each distinct text once."""
    indices, distinct = coded(values)
    of_distinct = np.array([*map(codes.__getitem__, distinct), BAD_VALUE], np.int32)
    return of_distinct[indices]  # a null has the index -1


def _values(rows: Rows, name: str, codes: Codes) -> ListColumn:
    lists = rows.rules(name)
    return ListColumn(lists.offsets, lists.valid, codes_of(lists.flat, codes))


def _groups(rows: Rows, name: str, codes: Codes) -> ListColumn:
    outer = list_parts(rows.given(name))
    inner = other_rows(rows.file, {name: outer.flat}).rules(name)
    groups = Lists(inner.offsets, codes_of(inner.flat, codes))
    return group_column(Groups(outer.offsets, groups))._replace(valid=outer.valid)


def _numbers(rows: Rows, name: str, _: None) -> ListColumn:
    return number_column(*rows.numbers(name))


def _times(rows: Rows, name: str, _: None, less: int = 0) -> ListColumn:
    """`less` is 1 for ends: an interval includes its end, so it has a flight's last millisecond."""
    times, valid = rows.moments(name)
    return number_column(times.astype(np.float64) - less, valid)


_READERS: Mapping[str, tuple[Role, Callable[[Rows, str, Any], ListColumn]]] = {
    "": (roles.RULE, _values),
    "_exclude": (roles.RULE, _values),
    "_all": (roles.GROUPS, _groups),
    "_min": (roles.NUMBER, _numbers),
    "_max": (roles.NUMBER, _numbers),
    "_start": (roles.MOMENT, _times),
    "_end": (roles.MOMENT, partial(_times, less=1)),
}
"""The role and the reader of a column, by the ending of its name after the schema's name."""


def columns_stated(schema: TargetingSchema, stated: Set[str]) -> tuple[str, ...]:
    """Return the columns of the ads table of what is stated, without entities.

    An expression is one column, whatever it names.
    """
    columns = {EXPRESSION if each.startswith(f"{EXPRESSION}.") else each for each in stated}
    return tuple(sorted(columns - {*schema.entities}))


def role_of(schema: TargetingSchema, column: str) -> Role:
    return _READERS[column.removeprefix(schema.name_of[column])][0]


@dataclass(frozen=True, slots=True)
class RuleColumns:
    """The columns of rules of some ads, row by row; None for an absent column."""

    columns: tuple[ListColumn | None, ...]
    # [ads + 1]: ad i has rows offsets[i] .. [i + 1]; None: each ad has one
    offsets: Int64 | None = None
    clauses: Rows | None = None  # of all ads
    clause_of: Int64 | None = None  # [rows]: the clause of each row, or -1
    # the columns in which some ad has a rule: `age_min`, `clauses.age_min`, `rule.age_min`
    stated: frozenset[str] = frozenset()

    def ad_of(self, ads: int) -> Int64:
        every = np.arange(ads)
        return every if self.offsets is None else np.repeat(every, np.diff(self.offsets))

    def source(self, rows: Rows, row: int, column: str) -> tuple[int, str, Rows, int]:
        """Return a row's ad, the column as messages name it, and the rows and place it is in."""
        if self.offsets is None or self.clauses is None or self.clause_of is None:
            return row, column, rows, row
        ad = int(np.searchsorted(self.offsets, row, "right")) - 1
        clause = int(self.clause_of[row])
        if clause != _NONE and column in self.clauses.theirs:
            return ad, f"{CLAUSES}.{column}", self.clauses, clause
        return ad, column, rows, ad


class RuleReader:
    """Reads the rules of one table after another."""

    def __init__(self, schema: TargetingSchema) -> None:
        self.schema = schema
        self._codes = [codes for each in components_of(schema) for codes in each.codes()]
        of_names = zip(schema.columns.values(), self._codes, strict=True)
        self.codes_of_column = {column: codes for columns, codes in of_names for column in columns}
        self._clauses: dict[str, list[Mapping[str, Any]]] = {}  # by expression

    def values(self) -> tuple[Sequence[str], ...]:
        """Return the values read so far, for each component that interns values."""
        return tuple([*each] for each in self._codes if isinstance(each, ValueCodes))

    def read(self, rows: Rows) -> RuleColumns:
        own = self._columns(rows)
        if CLAUSES in rows.theirs and not pa.types.is_null(rows.given(CLAUSES).type):
            given = list_parts(rows.given(CLAUSES))
            sizes = np.where(given.valid == 1, np.diff(given.offsets), 0)
            for row in np.flatnonzero((sizes == 0) & (given.valid == 1)).tolist():
                reason = "has no clause, so no user could pass; leave it null"
                rows.refuse(row, CLAUSES, "[]", reason)
            clauses = clause_rows(rows, given.flat)
            offsets, places = span_places(given.offsets[:-1], sizes)
            source = CLAUSES
        elif EXPRESSION in rows.theirs:
            clauses, offsets, places = self._of_expressions(rows)
            source = EXPRESSION
        else:
            return RuleColumns(own, stated=self._stated(own))
        of_clauses = self._columns(clauses)
        joined = self._joined(rows, own, of_clauses, clauses, offsets, places)
        stated = {f"{source}.{column}" for column in self._stated(of_clauses)}
        return replace(joined, stated=self._stated(own) | stated)

    def _stated(self, columns: Sequence[ListColumn | None]) -> frozenset[str]:
        pairs = zip(self.codes_of_column, columns, strict=True)
        return frozenset(name for name, column in pairs if column and column.valid.any())

    def _columns(self, rows: Rows) -> tuple[ListColumn | None, ...]:
        """Read the cells that are rules: in some columns, an empty list is no rule."""
        name_of, properties = self.schema.name_of, {each.name for each in self.schema.properties}
        found: list[ListColumn | None] = []
        for column, codes in self.codes_of_column.items():
            ending = column.removeprefix(name_of[column])
            cells = _READERS[ending][1](rows, column, codes) if column in rows.theirs else None
            if cells and (ending in ("_exclude", "_all") or column in properties):
                cells = cells._replace(valid=cells.valid & (np.diff(cells.offsets) > 0))
            found.append(cells)
        return tuple(found)

    def _of_expressions(self, rows: Rows) -> tuple[Rows, Int64, Int64]:
        """Return the clauses of the distinct expressions, and the places of each row's."""
        indices, texts = coded(rows.given(EXPRESSION))
        found: list[Mapping[str, Any]] = []
        ends = [0]
        faults: dict[int, str] = {}
        for code, text in enumerate(texts):
            try:
                found += self._clauses_of(text)
            except ExpressionError as error:
                faults[code] = str(error)
            ends.append(len(found))
        for row in np.flatnonzero(np.isin(indices, [*faults])).tolist():
            shown = rows.shown(EXPRESSION, row)
            rows.refuse(row, EXPRESSION, shown, faults[int(indices[row])])
        begins = np.array([*ends[:-1], 0])[indices]
        sizes = np.array([*np.diff(ends), 0])[indices]
        offsets, places = span_places(begins, sizes)
        return clause_rows(rows, _clause_array(found, self.schema)), offsets, places

    def _clauses_of(self, text: str | None) -> list[Mapping[str, Any]]:
        """Return the clauses of an expression. An empty text has none, like an empty cell."""
        if text is None:
            raise ExpressionError(0, "is not UTF-8")
        if text and text not in self._clauses:
            if len(self._clauses) >= _MOST_KEPT:
                self._clauses.clear()
            self._clauses[text] = [*clauses_of(text, self.schema)]
        return self._clauses[text] if text else []

    def _joined(
        self,
        rows: Rows,
        own: tuple[ListColumn | None, ...],
        of_clauses: tuple[ListColumn | None, ...],
        clauses: Rows,
        offsets: Int64,
        places: Int64,
    ) -> RuleColumns:
        spoken = np.zeros(len(clauses), np.bool_)
        limiting = len(self.codes_of_column) - len(self.schema.properties)  # those limit nobody
        for column in of_clauses[:limiting]:
            spoken |= False if column is None else column.valid == 1
        for clause in np.flatnonzero(~spoken).tolist():
            reason = "has no rule about users, so every user would pass; drop the clause"
            clauses.refuse(clause, CLAUSES, None, reason)
        counts = np.diff(offsets)
        row_offsets = np.append(0, np.cumsum(np.maximum(counts, 1)))
        ad_of = np.repeat(np.arange(len(rows)), np.maximum(counts, 1))
        clause_of = np.full(len(ad_of), _NONE, np.int64)
        clause_of[np.repeat(counts > 0, np.maximum(counts, 1))] = places
        pairs = zip(own, of_clauses, strict=True)
        for name, names in self.schema.columns.items():
            in_own, in_clauses = np.zeros((2, len(ad_of)), np.bool_)
            for mine, theirs in islice(pairs, len(names)):
                in_own |= _says(mine, ad_of)
                in_clauses |= _says(theirs, clause_of)
            for row in ad_of[in_own & in_clauses].tolist():
                rows.refuse(row, name, None, _BOTH)
        for clause, fault in clauses.faults.items():
            for row in ad_of[clause_of == clause].tolist():
                shown = CLAUSES if fault.column == CLAUSES else f"{CLAUSES}.{fault.column}"
                rows.refuse(row, shown, fault.value, fault.reason)
        columns = tuple(map(partial(_merged, ad_of, clause_of), own, of_clauses))
        return RuleColumns(columns, row_offsets, clauses, clause_of)


def _says(column: ListColumn | None, places: Int64) -> Bools:
    """Return whether the column has a cell that is not null at each place; it has none at -1."""
    if column is None:
        return np.zeros(len(places), np.bool_)
    found: Bools = np.append(column.valid == 1, False)[places]
    return found


def _merged(
    ad_of: Int64, clause_of: Int64, own: ListColumn | None, clauses: ListColumn | None
) -> ListColumn | None:
    """Return each row's cell: that of the clause unless it is null, and else the ad's own."""
    if own is None and clauses is None:
        return None
    own = own or _silent(int(ad_of.max(initial=-1)) + 1)
    clauses = clauses or _silent(int(clause_of.max(initial=-1)) + 1)
    places = np.where(_says(clauses, clause_of), len(own.valid) + clause_of, ad_of)
    begins = np.append(own.offsets[:-1], clauses.offsets[:-1] + len(own.codes))[places]
    sizes = np.append(np.diff(own.offsets), np.diff(clauses.offsets))[places]
    offsets, words = gather_spans(np.append(own.codes, clauses.codes), begins, sizes)
    return ListColumn(offsets, np.append(own.valid, clauses.valid)[places], words)


def _silent(rows: int) -> ListColumn:
    return ListColumn(np.zeros(rows + 1, np.int64), np.zeros(rows, np.uint8), np.zeros(0, np.int32))


def clause_rows(rows: Rows, structs: pa.Array) -> Rows:
    columns = dict(zip(structs.type.names, structs.flatten(), strict=True))
    return other_rows(rows.file, columns)


def _clause_array(clauses: Sequence[Mapping[str, Any]], schema: TargetingSchema) -> pa.Array:
    """Return clauses as structs, as a table has them."""
    values = pa.list_(pa.string())
    kinds = {roles.RULE: values, roles.GROUPS: pa.list_(values), roles.NUMBER: pa.float64()}
    columns = [column for column in schema.rule_columns if role_of(schema, column) in kinds]
    fields = [pa.field(column, kinds[role_of(schema, column)]) for column in columns]
    return pa.array(clauses, pa.struct(fields))
