"""Find the columns of a log of interactions, and those of a table of embeddings."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grace.configs.errors import InputError
from grace.index.proposal import names
from grace.index.proposal.facts import (
    BATCH_ROWS,
    TIME_PATTERN,
    ColumnFacts,
    IdValues,
    padded_note,
    plain_texts,
)
from grace.index.proposal.names import plain_name, singular, stem
from grace.index.proposal.separators import list_separator, separator_in
from grace.index.tables import cells
from grace.index.tables.addresses import Format
from grace.index.tables.data_folder import FIRST_SECOND, LAST_SECOND, PER_SECOND
from grace.index.tables.table_file import TableFile, table_files

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

    several   whether some row has several values
    of_user   whether a user has the same value in all rows; columns that describe ads have not
    """

    column: str
    values: frozenset[str]
    several: bool
    of_user: bool

    def rank(self, facts: ColumnFacts) -> int | None:
        """Return how well this fits an ads column: 0 is best, None is no fit."""
        if self.column == facts.name:
            return 0
        both = (names.rule_name(plain_name(each)) for each in (self.column, facts.name))
        if len({*map(singular, both)}) == 1:
            return 1
        numbers = all(map(str.isdecimal, self.values))  # may be equal by chance
        chance = numbers or facts.are_flags or names.is_about_ads(plain_name(facts.name))
        return 2 if self.shows_users_of(facts) and not chance else None

    def shows_users_of(self, facts: ColumnFacts) -> bool:
        """Return whether users have the values of an ads column."""
        common = len(self.values & facts.values)
        return self.of_user and common >= max(2, _LEAST_KNOWN * len(self.values))


def best_user(users: Iterable[UserColumn], facts: ColumnFacts) -> UserColumn | None:
    """Return the column that says which of an ads column's values a user has."""
    ranked = [(rank, each) for each in users if (rank := each.rank(facts)) is not None]
    return min(ranked, key=lambda each: each[0])[1] if ranked else None


class OpenLog:
    """A log with its first rows, in which the columns of user, ad and time are found."""

    def __init__(self, addresses: Sequence[str], ids: IdValues, id_column: str) -> None:
        self._addresses, self._files = tuple(addresses), table_files(addresses)
        self._is_csv = self._files[0].format is Format.CSV
        self._first = first = _first_rows(self._files, "log")
        self._chosen: dict[str, tuple[str, str]] = {}
        scalars = [each.name for each in first.schema if _is_scalar(each.type)]
        user = _named(names.USER_NAMES, scalars)
        if user is not None:
            self._chosen[user] = ("user_id", "the user")
        if found := _ids_in(self._free(), ids, id_column):
            self._chosen[found.column] = ("ad_id", found.reason)
        else:
            sids = [each for each in first.schema.names if plain_name(each) in names.SID_NAMES]
            self._chosen |= dict.fromkeys(sids[:1], ("sid", "the SID of the ad"))
        free = self._free().schema.names
        times = [name for name in free if _are_times(first.column(name))]
        only = times[0] if len(times) == 1 else None
        self._unit: str | None = None
        time = _named(names.TIME_NAMES, times) or only or _named(names.TIME_NAMES, free)
        if time is not None:
            self._unit, reason = _time(first.column(time))
            self._chosen[time] = ("timestamp_ms", reason)
        self.users = self._user_columns(user)

    def _free(self) -> pa.RecordBatch:
        columns = self._first.schema.names
        return self._first.select([name for name in columns if name not in self._chosen])

    def _user_columns(self, user: str | None) -> tuple[UserColumn, ...]:
        free = self._free()
        separator = separator_in([free])
        found = []
        for name, column in zip(free.schema.names, map(plain_texts, free.columns), strict=True):
            if not cells.is_rule(column.type) or column.null_count == len(column):
                continue
            of_user = True
            lists = cells.list_parts(cells.rule_lists(column, separator, is_csv=self._is_csv))
            if user is not None and not cells.is_list(column.type):
                rows = pa.table([plain_texts(self._first.column(user)), column], ["user", "value"])
                counts = [("value", "count"), ("value", "count_distinct")]
                each = rows.group_by("user").aggregate(counts)
                several = each.filter(pc.greater(each["value_count"], 1))
                same = pc.mean(pc.equal(several["value_count_distinct"], 1)).as_py()
                of_user = same is None or same >= _LEAST_CONSTANT
            values = frozenset(filter(None, cells.texts(lists.flat.unique())))
            most = np.diff(lists.offsets).max(initial=0)
            found.append(UserColumn(name, values, bool(most > 1), of_user))
        return tuple(found)

    def proposal(self, ads: Iterable[tuple[ColumnFacts, str]]) -> TableProposal:
        """`ads` are the rules of the ads table, with our names."""
        found = (
            (user.rank(facts), user.column, name)
            for facts, name in ads
            if (user := best_user(self.users, facts)) is not None
        )
        rules = {column: name for _, column, name in sorted(found, reverse=True)}
        chosen = dict(self._chosen)
        for column, name in rules.items():
            note = padded_note(self._first.column(column), self._is_csv)
            chosen[column] = name, f"what the user had then, for evaluation with targeting{note}"
        columns = (
            OurColumn(name, *(chosen.get(name) or _other(self._first, name) or _UNREAD))
            for name in self._first.schema.names
        )
        listing = [name for name, (ours, _) in chosen.items() if ours == "sid" or name in rules]
        ours = {"ad_id" if name == "sid" else name for name, _ in chosen.values()}
        return TableProposal(
            self._addresses,
            tuple(columns),
            tuple(OurColumn("", name, why) for name, why in _MISSING.items() if name not in ours),
            list_separator(self._files, listing),
            self._unit,
        )


def propose_embeddings(addresses: Sequence[str], ids: IdValues, id_column: str) -> TableProposal:
    first = _first_rows(table_files(addresses), "embeddings")
    lists = [each for each in first.schema if cells.is_list(each.type)]
    vectors = [each.name for each in lists if pa.types.is_floating(each.type.value_type)]
    vectors.sort(key=lambda name: not names.words(plain_name(name)) & names.VECTOR_WORDS)
    found = _ids_in(first, ids, id_column)
    for what, there in (("lists of floats", vectors), (f"the ids of {id_column!r}", found)):
        if not there:
            has = ", ".join(first.schema.names)
            raise InputError(f"{addresses[0]}: no column holds {what}; it has: {has}")
    chosen = {vectors[0]: ("vector", "lists of floats")}
    if found is not None:
        chosen[found.column] = "item_id", found.reason
    ignored = ("", "neither the ids nor the vectors")
    columns = (OurColumn(name, *chosen.get(name, ignored)) for name in first.schema.names)
    return TableProposal(tuple(addresses), tuple(columns))


def _first_rows(files: Sequence[TableFile], option: str) -> pa.RecordBatch:
    for file in files:
        for batch in file.batches(file.schema.names, BATCH_ROWS):
            if batch.num_rows:
                return batch
    raise InputError(f"{files[0].address}: the {option} has no rows; leave --{option} out")


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
    for each in rows.schema:
        if _is_scalar(each.type):
            share = ids.share_of(rows.column(each.name).slice(0, _FIRST_ROWS))
            both = {plain_name(each.name), stem(plain_name(each.name))}
            named = bool(both & {plain_name(id_column), *names.ID_NAMES})
            found += [(named, share, each.name)] if share >= _LEAST_KNOWN else []
    if not found:
        return None
    _, share, column = max(found, key=lambda each: each[:2])
    return OurColumn(column, "", f"{share:.0%} of its first values are ids of the ads table")


def _is_scalar(kind: pa.DataType) -> bool:
    return cells.is_rule(kind) and not cells.is_list(kind)


def _are_times(column: pa.Array) -> bool:
    """Return whether all values, or integers in some unit, are times between 1990 and 2100."""
    column = plain_texts(column).drop_null()
    if (
        cells.is_text(column.type)
        and pc.all(pc.match_substring_regex(column, TIME_PATTERN)).as_py()
    ):
        years = pc.utf8_slice_codeunits(column, 0, 4).cast(pa.int64())
    elif pa.types.is_timestamp(column.type):
        years = pc.year(column.cast(pa.timestamp("s"), safe=False))
    else:
        return _time(column)[0] is not None
    return all(1990 <= year < 2100 for year in pc.unique(years).to_pylist()) and len(years) > 0


def _time(column: pa.Array) -> tuple[str | None, str]:
    """Return the unit of integer times, or None, and the reason."""
    if pa.types.is_temporal(column.type):
        return None, "times: cast to milliseconds"
    column = column.drop_null()
    if cells.is_text(column.type):
        column, bad = cells.integers(column)
        if bad.any():
            return None, "times as text: cast to milliseconds"
    if not pa.types.is_integer(column.type) or not len(column):
        return None, "the time"
    ends = pc.min_max(column).as_py()
    for unit, factor in PER_SECOND.items():  # their ranges do not overlap
        if FIRST_SECOND * factor <= ends["min"] <= ends["max"] < LAST_SECOND * factor:
            return unit, f"integers: {unit} since 1970, judging by their size"
    return None, "integers, but no unit puts them all between 1990 and 2100: correct them"


def _other(first: pa.RecordBatch, column: str) -> tuple[str, str] | None:
    plain, values = plain_name(column), first.column(column)
    if plain == "split":
        return "split", "train or test"
    if plain in names.ACTION_NAMES:
        whole = pa.types.is_integer(values.type)
        if cells.is_text(values.type):
            whole = not cells.integers(values.drop_null())[1].any()
        return ("action", "integers: a model may read them") if whole else None
    return None
