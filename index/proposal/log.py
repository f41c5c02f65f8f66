"""Find the columns of a log of interactions, and those of a table of embeddings."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from grace.configs.errors import InputError
from grace.index.proposal import names
from grace.index.proposal.facts import (
    BATCH_ROWS,
    ColumnFacts,
    IdValues,
    Kind,
    add_batch,
    plain_texts,
    read_facts,
)
from grace.index.proposal.names import plain_name, singular, stem
from grace.index.proposal.separators import separator_in
from grace.index.tables import cells
from grace.index.tables.data_folder import FIRST_SECOND, LAST_SECOND, PER_SECOND
from grace.index.tables.table_file import table_files

_FIRST_ROWS = 10_000
_LEAST_KNOWN = 0.5  # of the first rows' values, in a column that names ads
_LEAST_CONSTANT = 0.9  # of the users with several rows, in a column that describes users
_NO_NAME = "no column has a usual name for the {} ({} ...)"
_MISSING = {
    "user_id": _NO_NAME.format("user", "user_id, customer_id, visitor"),
    "ad_id": "no column holds ids of the ads table",
    "timestamp_ms": _NO_NAME.format("time", ", ".join(names.TIME_NAMES[:3])),
}
_UNREAD = ("", "not one that training or evaluation reads")


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
class UserColumn:
    """A column of the log that may say who its users are.

    of_user   whether a user has the same value in all rows; columns that describe ads have not
    """

    facts: ColumnFacts
    of_user: bool

    def rank(self, facts: ColumnFacts) -> int | None:
        """Return how well this fits an ads column: 0 is best, None is no fit."""
        if self.facts.name == facts.name:
            return 0
        both = (names.rule_name(each.plain) for each in (self.facts, facts))
        if len({*map(singular, both)}) == 1:
            return 1
        numbers = all(map(str.isdecimal, self.facts.values))  # may be equal by chance
        chance = numbers or facts.are_flags or names.is_about_ads(facts.plain)
        return 2 if self.shows_users_of(facts) and not chance else None

    def shows_users_of(self, facts: ColumnFacts) -> bool:
        """Return whether users have the values of an ads column."""
        common = len(self.facts.values & facts.values)
        return self.of_user and common >= max(2, _LEAST_KNOWN * len(self.facts.values))


def best_user(users: Iterable[UserColumn], facts: ColumnFacts) -> UserColumn | None:
    """Return the column that says which of an ads column's values a user has."""
    ranked = [(rank, each) for each in users if (rank := each.rank(facts)) is not None]
    return min(ranked, key=lambda each: each[0])[1] if ranked else None


class OpenLog:
    """A log with its first rows, in which the columns of user, ad and time are found."""

    def __init__(self, addresses: Sequence[str], ids: IdValues, id_column: str) -> None:
        self._addresses = tuple(addresses)
        first, self._facts = _first_rows(addresses, "log")
        self._chosen: dict[str, tuple[str, str]] = {}
        user = _named(names.USER_NAMES, _scalars(first.schema))
        if user is not None:
            self._chosen[user] = ("user_id", "the user")
        if found := _ids_in(first.select(self._free()), ids, id_column):
            self._chosen[found.column] = ("ad_id", found.reason)
        else:
            sids = [each.name for each in self._facts.values() if each.plain in names.SID_NAMES]
            self._chosen |= dict.fromkeys(sids[:1], ("sid", "the SID of the ad"))
        times = [name for name in self._free() if _is_time(self._facts[name])]
        only = times[0] if len(times) == 1 else None
        usual = names.TIME_NAMES
        time = _named(usual, times) or only or _named(usual, self._free())
        self._unit: str | None = None
        if time is not None:
            self._unit = _unit(self._facts[time])
            self._chosen[time] = ("timestamp_ms", _time_reason(self._facts[time]))
        users = None if user is None else first.column(user)
        self.users = tuple(
            UserColumn(self._facts[name], _is_of_user(users, first.column(name)))
            for name in self._free()
            if self._facts[name].values
        )

    def _free(self) -> list[str]:
        return [name for name in self._facts if name not in self._chosen]

    def proposal(self, ads: Iterable[tuple[ColumnFacts, str]]) -> TableProposal:
        """`ads` are the rules of the ads table, with our names."""
        found = (
            (user.rank(facts), user.facts.name, name)
            for facts, name in ads
            if (user := best_user(self.users, facts)) is not None
        )
        rules = {column: name for _, column, name in sorted(found, reverse=True)}
        chosen = dict(self._chosen)
        for column, name in rules.items():
            note = self._facts[column].padded
            chosen[column] = name, f"what the user had then, for evaluation with targeting{note}"
        columns = (
            OurColumn(name, *(chosen.get(name) or _other(facts) or _UNREAD))
            for name, facts in self._facts.items()
        )
        listing = [name for name, (ours, _) in chosen.items() if ours == "sid" or name in rules]
        ours = {"ad_id" if name == "sid" else name for name, _ in chosen.values()}
        return TableProposal(
            self._addresses,
            tuple(columns),
            tuple(OurColumn("", name, why) for name, why in _MISSING.items() if name not in ours),
            separator_in(read_facts(table_files(self._addresses), listing).values()),
            self._unit,
        )


def propose_embeddings(addresses: Sequence[str], ids: IdValues, id_column: str) -> TableProposal:
    first, facts = _first_rows(addresses, "embeddings")
    vectors = [each for each in facts.values() if each.dims]
    vectors.sort(key=lambda each: not each.words & names.VECTOR_WORDS)
    found = _ids_in(first, ids, id_column)
    for what, there in (("lists of floats", vectors), (f"the ids of {id_column!r}", found)):
        if not there:
            raise InputError(f"{addresses[0]}: no column holds {what}; it has: {', '.join(facts)}")
    chosen = {vectors[0].name: ("vector", "lists of floats")}
    if found is not None:
        chosen[found.column] = "item_id", found.reason
    ignored = ("", "neither the ids nor the vectors")
    columns = (OurColumn(name, *chosen.get(name, ignored)) for name in facts)
    return TableProposal(tuple(addresses), tuple(columns))


def _first_rows(
    addresses: Sequence[str], option: str
) -> tuple[pa.RecordBatch, Mapping[str, ColumnFacts]]:
    """Return the first rows of a table, without dictionaries, and facts about their columns."""
    for file in table_files(addresses):
        for batch in file.batches(file.schema.names, BATCH_ROWS):
            if batch.num_rows:
                whole = {name: ColumnFacts(name) for name in batch.schema.names}
                add_batch(whole, batch, file)
                separator = separator_in(whole.values())
                facts = {name: ColumnFacts(name) for name in batch.schema.names}
                add_batch(facts, batch, replace(file, list_separator=separator))
                columns = [plain_texts(column) for column in batch.columns]
                return pa.record_batch(columns, batch.schema.names), facts
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


def _ids_in(rows: pa.RecordBatch, ids: IdValues, id_column: str) -> OurColumn | None:
    """Return the column whose values are ids of the ads table.

    A column named like an id comes first: small numbers, such as quantities, may equal ids.
    """
    found: list[tuple[bool, float, str]] = []
    for column in _scalars(rows.schema):
        share = ids.share_of(rows.column(column).slice(0, _FIRST_ROWS))
        both = {plain_name(column), stem(plain_name(column))}
        named = bool(both & {plain_name(id_column), *names.ID_NAMES})
        found += [(named, share, column)] if share >= _LEAST_KNOWN else []
    if not found:
        return None
    _, share, column = max(found, key=lambda each: each[:2])
    return OurColumn(column, "", f"{share:.0%} of its first values are ids of the ads table")


def _scalars(schema: pa.Schema) -> list[str]:
    scalars = (each for each in schema if cells.is_rule(each.type) and not cells.is_list(each.type))
    return [each.name for each in scalars]


def _is_of_user(users: pa.Array | None, column: pa.Array) -> bool:
    """Return whether a user has the same value in all rows."""
    if users is None or cells.is_list(column.type):
        return True
    rows = pa.table([users, column], ["user", "value"])
    each = rows.group_by("user").aggregate([("value", "count"), ("value", "count_distinct")])
    several = each.filter(pc.greater(each["value_count"], 1))
    same = pc.mean(pc.equal(several["value_count_distinct"], 1)).as_py()
    return same is None or same >= _LEAST_CONSTANT


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
