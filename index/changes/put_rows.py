"""The rows of tables of ads as UpdateAds takes them: JSON with our names, numbers and SIDs.

Times are texts in UTC, because integers must be below 2100.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from grace.index.builder.batches import AdsBatch, BatchReader
from grace.index.builder.plan import BuildPlan
from grace.index.builder.rule_columns import clause_rows, role_of
from grace.index.matching.ads import NO_ENTITY
from grace.index.rejects import Fault, Reject, in_words, row_in_words
from grace.index.tables import roles
from grace.index.tables.cells import ListParts, list_parts, texts
from grace.index.tables.roles import Role
from grace.index.tables.rows import Rows, other_rows
from grace.index.targeting.schema import CLAUSES, EXPRESSION, TargetingSchema

_Column: TypeAlias = Sequence[Any]
"""The values of a column as JSON; None for a null."""

_REPEATED = Fault("ad_id", None, "is repeated; no copy of it is put")


class PutRow(NamedTuple):
    ad_id: int
    text: str
    source: str  # the table, the row and the table's id, for messages


def put_rows(plan: BuildPlan) -> tuple[list[PutRow], list[str]]:
    """Return the ads of the tables, and the refusals of others in words."""
    rejects: list[Reject] = []
    found: list[tuple[PutRow, Reject]] = []
    for batch in BatchReader(plan.source, plan.reading()):
        found += _of_batch(batch, plan.schema)
        rejects += batch.rows.rejects()
    times = Counter(row.ad_id for row, _ in found)
    rejects += [reject for row, reject in found if times[row.ad_id] > 1]
    refused = [in_words(each, "ad") for each in rejects]
    return [row for row, _ in found if times[row.ad_id] == 1], refused


def _of_batch(batch: AdsBatch, schema: TargetingSchema) -> Iterator[tuple[PutRow, Reject]]:
    rows, own = batch.rows, batch.columns
    records, refused = _records(rows, schema), rows.refused()
    for row in np.flatnonzero(~refused).tolist():
        record = {"ad_id": int(own.ad_ids[row]), "sid": own.tokens[row].tolist()}
        record["ad_weight"] = float(own.weights[row])
        of_entities = zip(schema.entities, own.entity_ids[row].tolist(), strict=True)
        record |= {name: number for name, number in of_entities if number != NO_ENTITY}
        text = json.dumps(record | records[row], ensure_ascii=False)
        reject = rows.reject(row, _REPEATED)
        yield PutRow(record["ad_id"], text, row_in_words(reject, "ad")), reject


def _records(rows: Rows, schema: TargetingSchema) -> list[dict[str, Any]]:
    """Return the rules of each row by our names, without nulls."""
    of_rules = {name: role_of(schema, name) for name in schema.rule_columns}
    of_rules |= {CLAUSES: roles.CLAUSES, EXPRESSION: roles.TEXT}
    columns = {
        name: _clauses(rows, schema) if name == CLAUSES else _READERS[role](rows, name)
        for name, role in of_rules.items()
        if name in rows.theirs
    }
    return [
        {name: column[row] for name, column in columns.items() if column[row] is not None}
        for row in range(len(rows))
    ]


def _clauses(rows: Rows, schema: TargetingSchema) -> _Column:
    given = rows.given(CLAUSES)
    if pa.types.is_null(given.type):
        return [None] * len(rows)
    parts = list_parts(given)
    return _cut(parts, _records(clause_rows(rows, parts.flat), schema))


def _values(rows: Rows, name: str) -> _Column:
    parts = rows.rules(name)
    return _cut(parts, texts(parts.flat))


def _groups(rows: Rows, name: str) -> _Column:
    parts = list_parts(rows.given(name))
    return _cut(parts, _values(other_rows(rows.file, {name: parts.flat}), name))


def _numbers(rows: Rows, name: str) -> _Column:
    numbers, valid = rows.numbers(name)
    return _valid(numbers.tolist(), valid)


def _moments(rows: Rows, name: str) -> _Column:
    times, valid = rows.moments(name)
    return _valid(np.datetime_as_string(times.astype("M8[ms]")).tolist(), valid)


def _texts(rows: Rows, name: str) -> _Column:
    return [text or None for text in texts(rows.given(name))]


def _cut(parts: ListParts, flat: _Column) -> _Column:
    spans = zip(parts.offsets[:-1].tolist(), parts.offsets[1:].tolist(), strict=True)
    return _valid([flat[begin:end] for begin, end in spans], parts.valid)


def _valid(values: _Column, valid: Iterable[bool]) -> _Column:
    return [value if is_valid else None for value, is_valid in zip(values, valid, strict=True)]


_READERS: Mapping[Role, Callable[[Rows, str], _Column]] = {
    roles.RULE: _values,
    roles.GROUPS: _groups,
    roles.NUMBER: _numbers,
    roles.MOMENT: _moments,
    roles.TEXT: _texts,
}
