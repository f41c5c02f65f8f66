"""Find the columns of a log of interactions, and those of a table of embeddings."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from grace.configs.errors import InputError
from grace.index.proposal import names
from grace.index.proposal.facts import BATCH_ROWS, ColumnFacts, Kind, add_batch, split_lists
from grace.index.proposal.names import plain_name, rule_name, singular, stem
from grace.index.tables import cells
from grace.index.tables.table_file import table_files

_FIRST_ROWS = 10_000
_LEAST_KNOWN = 0.5  # of the first rows' values, in a column that names ads
_NO_NAME = "no column has a usual name for the {} ({} ...)"
_MISSING = {
    "user_id": _NO_NAME.format("user", "user_id, customer_id, visitor"),
    "ad_id": "no column holds ids of the ads table",
    "timestamp_ms": _NO_NAME.format("time", ", ".join(names.TIME_NAMES[:3])),
}


@dataclass(frozen=True, slots=True)
class OurColumn:
    """`name` is ours for the column; empty if it is ignored."""

    column: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class TableProposal:
    files: tuple[str, ...]
    columns: tuple[OurColumn, ...]  # in the table's order
    missing: tuple[OurColumn, ...] = ()  # our names that have no column, with the reason
    list_separator: str | None = None
    time_unit: str | None = None  # of integer times; None if they have none


@dataclass(frozen=True, slots=True)
class AdIds:
    """The column of the ads' ids, and its values as texts."""

    column: str
    values: pa.Array

    def column_in(self, rows: pa.RecordBatch) -> OurColumn | None:
        """Return the column whose values are ids of the ads table.

        A column named like an id comes first: small numbers, such as quantities, may equal ids.
        """
        found: list[tuple[bool, float, str]] = []
        for name in _scalars(rows.schema):
            given = rows.column(name).slice(0, _FIRST_ROWS).drop_null().cast(pa.large_string())
            known = pc.is_in(pc.ascii_trim_whitespace(given), self.values)
            share = pc.mean(known).as_py() or 0.0
            both = {plain_name(name), stem(plain_name(name))}
            named = bool(both & {plain_name(self.column), *names.ID_NAMES})
            found += [(named, share, name)] if share >= _LEAST_KNOWN else []
        if not found:
            return None
        _, share, name = max(found, key=lambda each: each[:2])
        return OurColumn(name, "", f"{share:.0%} of its first values are ids of the ads table")


def propose_log(addresses: Sequence[str], ids: AdIds, rules: Iterable[str]) -> TableProposal:
    """Propose what each column of the log is. `rules`: our names of the ads table's rules."""
    rows, facts, separator = _first_rows(addresses, "log")
    chosen: dict[str, tuple[str, str]] = {}

    def free() -> list[str]:
        return [name for name in facts if name not in chosen]

    user = _named(names.USER_NAMES, _scalars(rows.schema))
    if user is not None:
        chosen[user] = "user_id", "the user"
    if found := ids.column_in(rows.select(free())):
        chosen[found.column] = "ad_id", found.reason
    times = [name for name in free() if _is_time(facts[name])]
    only = times[0] if len(times) == 1 else None
    time = _named(names.TIME_NAMES, times) or only or _named(names.TIME_NAMES, free())
    unit = None
    if time is not None:
        unit = facts[time].time_unit
        chosen[time] = "timestamp_ms", f"{facts[time].kind.value}{f' in {unit}' if unit else ''}"
    ours = {singular(name): name for name in rules}
    for name in free():
        if rule := ours.pop(singular(rule_name(facts[name].plain)), None):
            chosen[name] = rule, "what the user had then, for evaluation with targeting"
    there = {name for name, _ in chosen.values()}
    unread = ("", "not one that training or evaluation reads")
    return TableProposal(
        tuple(addresses),
        tuple(OurColumn(name, *chosen.get(name, unread)) for name in facts),
        tuple(OurColumn("", name, why) for name, why in _MISSING.items() if name not in there),
        separator,
        unit,
    )


def propose_embeddings(addresses: Sequence[str], ids: AdIds) -> TableProposal:
    rows, facts, _ = _first_rows(addresses, "embeddings")
    vectors = [
        each.name
        for each in rows.schema
        if cells.is_list(each.type) and pa.types.is_floating(each.type.value_type)
    ]
    found = ids.column_in(rows)
    for what, there in (("lists of floats", vectors), (f"the ids of {ids.column!r}", found)):
        if not there:
            raise InputError(f"{addresses[0]}: no column holds {what}; it has: {', '.join(facts)}")
    chosen = {vectors[0]: ("vector", "lists of floats")}
    if found is not None:
        chosen[found.column] = "item_id", found.reason
    ignored = ("", "neither the ids nor the vectors")
    columns = (OurColumn(name, *chosen.get(name, ignored)) for name in facts)
    return TableProposal(tuple(addresses), tuple(columns))


def _first_rows(
    addresses: Sequence[str], option: str
) -> tuple[pa.RecordBatch, Mapping[str, ColumnFacts], str | None]:
    """Return the first rows of a table, facts about their columns, and the separator of lists."""
    for file in table_files(addresses):
        for batch in file.batches(file.schema.names, BATCH_ROWS):
            if batch.num_rows:
                facts = {name: ColumnFacts(name) for name in batch.schema.names}
                add_batch(facts, batch, file)
                columns = [cells.without_dictionary(column) for column in batch.columns]
                rows = pa.record_batch(columns, batch.schema.names)
                return rows, facts, split_lists(facts.values())
    raise InputError(f"{addresses[0]}: the {option} has no rows; leave --{option} out")


def _named(usual: Sequence[str], columns: Iterable[str]) -> str | None:
    """Return the column with the best name: `user_id`, `HouseholdKey`, `hashed_user_id` ..."""
    ranks: dict[str, int] = {}
    for column in columns:
        plain = plain_name(column)
        for at, name in enumerate((plain, stem(plain), stem(plain).rpartition("_")[2])):
            if name in usual:
                ranks.setdefault(column, at * len(usual) + usual.index(name))
    return min(ranks, key=lambda column: ranks[column], default=None)


def _scalars(schema: pa.Schema) -> list[str]:
    scalars = (each for each in schema if cells.is_rule(each.type) and not cells.is_list(each.type))
    return [each.name for each in scalars]


def _is_time(facts: ColumnFacts) -> bool:
    """Return whether all values, or integers in some unit, are times between 1990 and 2100."""
    of_time = facts.kind is Kind.TIME and 1990 <= facts.least <= facts.most < 2100
    return of_time or facts.time_unit is not None
