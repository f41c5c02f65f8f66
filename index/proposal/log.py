"""Find the columns of a log of interactions, and those of a table of embeddings."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from grace.configs.errors import InputError
from grace.index.proposal import names
from grace.index.proposal.facts import BATCH_ROWS, ColumnFacts, Kind, add_batch, plain_texts
from grace.index.proposal.names import one_of, plain_name, stem
from grace.index.proposal.separators import with_separator
from grace.index.tables.cells import is_list, is_rule
from grace.index.tables.data_folder import FIRST_SECOND, LAST_SECOND, PER_SECOND
from grace.index.tables.table_file import table_files

_FIRST_ROWS = 10_000
_LEAST_KNOWN = 0.5  # of the first rows' values, in a column that names ads
_NO_NAME = "no column has a usual name for the {} ({} ...)"
_MISSING = {
    "user_id": _NO_NAME.format("user", "user_id, customer_id, visitor"),
    "ad_id": "no column holds ids of the ads table",
    "timestamp_ms": _NO_NAME.format("time", ", ".join(names.TIME_NAMES[:3])),
}
_UNREAD = ("", "not one that training or evaluation reads")


@dataclass(frozen=True, slots=True)
class AdIds:
    """The ids of the ads, as texts, and the table's name of their column."""

    column: str
    texts: pa.Array

    def share_of(self, column: pa.Array) -> float:
        """Return what share of a column's values are among these ids."""
        values = column.drop_null().cast(pa.large_string())
        return pc.mean(pc.is_in(values, self.texts)).as_py() if len(values) else 0.0


@dataclass(frozen=True, slots=True)
class OurColumn:
    """`name` is ours for the column; empty if it is ignored."""

    column: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class TableProposal:
    """A log, or a table of embeddings."""

    files: tuple[str, ...]
    columns: tuple[OurColumn, ...]  # in the table's order
    missing: tuple[OurColumn, ...] = ()  # our names that have no column, with the reason
    list_separator: str | None = None
    time_unit: str | None = None  # of integer times; None if they have none


@dataclass(frozen=True, slots=True)
class _First:
    """The first rows of a table, without dictionaries, and facts about its columns in them."""

    rows: pa.RecordBatch
    facts: Mapping[str, ColumnFacts]
    list_separator: str | None


def propose_log(
    addresses: Sequence[str], ids: AdIds, rules: Iterable[tuple[str, str]]
) -> TableProposal:
    """`rules` are the table's and our names of the rules of the ads."""
    first = _first_rows(addresses, "log")
    facts, chosen = first.facts, dict[str, tuple[str, str]]()

    def free() -> list[str]:
        return [name for name in facts if name not in chosen]

    if (user := _named(names.USER_NAMES, _scalars(first.rows.schema))) is not None:
        chosen[user] = ("user_id", "the user")
    if (found := _ids_in(first.rows.select(free()), ids)) is not None:
        chosen[found.column] = ("ad_id", found.reason)
    else:
        sids = [each.name for each in facts.values() if each.plain in names.SID_NAMES]
        chosen |= dict.fromkeys(sids[:1], ("sid", "the SID of the ad"))
    times = [name for name in free() if _is_time(facts[name])]
    only = times[0] if len(times) == 1 else None
    time = _named(names.TIME_NAMES, times) or only or _named(names.TIME_NAMES, free())
    if time is not None:
        chosen[time] = ("timestamp_ms", _time_reason(facts[time]))
    for theirs, ours in rules:
        of_users = [name for name in free() if one_of(facts[name].plain) == one_of(theirs)]
        reason = "what the user had then, for evaluation with targeting"
        chosen |= dict.fromkeys(of_users[:1], (ours, reason))
    columns = (
        OurColumn(name, *(chosen.get(name) or _other(each) or _UNREAD))
        for name, each in facts.items()
    )
    given = {"ad_id" if name == "sid" else name for name, _ in chosen.values()}
    return TableProposal(
        tuple(addresses),
        tuple(columns),
        tuple(OurColumn("", name, why) for name, why in _MISSING.items() if name not in given),
        first.list_separator,
        None if time is None else _unit(facts[time]),
    )


def propose_embeddings(addresses: Sequence[str], ids: AdIds) -> TableProposal:
    first = _first_rows(addresses, "embeddings")
    vectors = [each for each in first.facts.values() if each.dims]
    vectors.sort(key=lambda each: not each.words & names.VECTOR_WORDS)
    found = _ids_in(first.rows, ids)
    for what, there in (("lists of floats", vectors), (f"the ids of {ids.column!r}", found)):
        if not there:
            held = ", ".join(first.facts)
            raise InputError(f"{addresses[0]}: no column holds {what}; it has: {held}")
    chosen = {vectors[0].name: ("vector", "lists of floats")}
    if found is not None:
        chosen[found.column] = "item_id", found.reason
    ignored = ("", "neither the ids nor the vectors")
    columns = (OurColumn(name, *chosen.get(name, ignored)) for name in first.facts)
    return TableProposal(tuple(addresses), tuple(columns))


def _first_rows(addresses: Sequence[str], option: str) -> _First:
    for file in with_separator(table_files(addresses)):
        for batch in file.batches(file.schema.names, BATCH_ROWS):
            if batch.num_rows:
                facts = {name: ColumnFacts(name) for name in batch.schema.names}
                add_batch(facts, batch, file)
                columns = [plain_texts(column) for column in batch.columns]
                rows = pa.record_batch(columns, batch.schema.names)
                return _First(rows, facts, file.list_separator)
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


def _ids_in(rows: pa.RecordBatch, ids: AdIds) -> OurColumn | None:
    """Return the column whose values are ids of the ads table.

    A column named like an id comes first: small numbers, such as quantities, may equal ids.
    """
    found: list[tuple[bool, float, str]] = []
    for column in _scalars(rows.schema):
        share = ids.share_of(rows.column(column).slice(0, _FIRST_ROWS))
        both = {plain_name(column), stem(plain_name(column))}
        named = bool(both & {plain_name(ids.column), *names.ID_NAMES})
        found += [(named, share, column)] if share >= _LEAST_KNOWN else []
    if not found:
        return None
    _, share, column = max(found, key=lambda each: each[:2])
    return OurColumn(column, "", f"{share:.0%} of its first values are ids of the ads table")


def _scalars(schema: pa.Schema) -> list[str]:
    return [each.name for each in schema if is_rule(each.type) and not is_list(each.type)]


def _is_time(facts: ColumnFacts) -> bool:
    """Return whether all values, or integers in some unit, are times between 1990 and 2100."""
    of_time = facts.kind is Kind.TIME and 1990 <= facts.least <= facts.most < 2100
    return of_time or _unit(facts) is not None


def _unit(facts: ColumnFacts) -> str | None:
    """Return the unit of integer times."""
    units = PER_SECOND.items() if facts.kind is Kind.INTEGER else ()
    for unit, factor in units:  # their ranges do not overlap
        if FIRST_SECOND * factor <= facts.least <= facts.most < LAST_SECOND * factor:
            return unit
    return None


def _time_reason(facts: ColumnFacts) -> str:
    if (unit := _unit(facts)) is not None:
        return f"integers: {unit} since 1970, judging by their size"
    if facts.kind is Kind.INTEGER:
        return "integers, but no unit puts them all between 1990 and 2100: correct them"
    return "times: cast to milliseconds" if facts.kind is Kind.TIME else "the time"


def _other(facts: ColumnFacts) -> tuple[str, str] | None:
    if facts.plain == "split":
        return "split", "train or test"
    if facts.plain in names.ACTION_NAMES and facts.kind is Kind.INTEGER:
        return "action", "integers: a model may read them"
    return None
