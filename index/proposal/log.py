"""Find the columns of a log of interactions: by name, those of ad and time also by values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from grace.configs.errors import InputError
from grace.index.proposal.facts import BATCH_ROWS, TIME_PATTERN, IdValues
from grace.index.proposal.names import (
    ACTION_NAMES,
    ID_NAMES,
    SID_NAMES,
    TIME_NAMES,
    USER_NAMES,
    plain_name,
)
from grace.index.proposal.separators import list_separator
from grace.index.tables.cells import integers, is_list, is_text
from grace.index.tables.data_folder import FIRST_SECOND, LAST_SECOND, PER_SECOND
from grace.index.tables.table_file import TableFile

_FIRST_ROWS = 10_000
_LEAST_KNOWN = 0.5  # of the first rows' values, in a column that names ads


@dataclass(frozen=True, slots=True)
class LogColumn:
    """`name` is ours for the column; empty if it is ignored."""

    column: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class LogProposal:
    files: tuple[str, ...]
    list_separator: str | None
    columns: tuple[LogColumn, ...]  # in the table's order
    missing: tuple[LogColumn, ...]  # our names that have no column, with the reason
    time_unit: str | None  # of integer times; None if they have none

    @property
    def renamed(self) -> tuple[LogColumn, ...]:
        return tuple(each for each in self.columns if each.name)


def propose_log(
    addresses: Sequence[str],
    files: Sequence[TableFile],
    ids: IdValues,
    rules: Mapping[str, str],
) -> LogProposal:
    """Read the first rows. `rules` maps the ads table's columns of rules to our names."""
    first = _first_rows(files)
    chosen: dict[str, tuple[str, str]] = {}
    missing: list[LogColumn] = []
    user = _named(USER_NAMES, first, chosen)
    if user is None:
        missing.append(LogColumn("", "user_id", _no_name("the user", USER_NAMES)))
    else:
        chosen[user] = ("user_id", "the user")
    if not _choose_ad(first, ids, chosen):
        missing.append(LogColumn("", "ad_id", "no column holds ids of the ads table"))
    time = _named(TIME_NAMES, first, chosen) or _time_by_values(first, chosen)
    unit = None
    if time is None:
        missing.append(LogColumn("", "timestamp_ms", _no_name("the time", TIME_NAMES)))
    else:
        unit, reason = _time(first.column(time))
        chosen[time] = ("timestamp_ms", reason)
    chosen |= _rules(first, rules, chosen)
    for column in first.schema.names:
        if column not in chosen and (found := _other(first, column)) is not None:
            chosen[column] = found
    columns = (
        LogColumn(name, *chosen.get(name, ("", "not one that training or evaluation reads")))
        for name in first.schema.names
    )
    listing = [
        name for name, (ours, _) in chosen.items() if ours == "sid" or ours in rules.values()
    ]
    separator = list_separator(files, listing)
    return LogProposal(tuple(addresses), separator, tuple(columns), tuple(missing), unit)


def _first_rows(files: Sequence[TableFile]) -> pa.RecordBatch:
    for file in files:
        for batch in file.batches(file.schema.names, BATCH_ROWS):
            if batch.num_rows:
                return batch
    raise InputError(f"{files[0].address}: the log has no rows; leave --log out")


def _named(names: Sequence[str], first: pa.RecordBatch, chosen: Mapping[str, object]) -> str | None:
    plain = {plain_name(column): column for column in reversed(first.schema.names)}
    found = (plain[name] for name in names if name in plain and plain[name] not in chosen)
    return next(found, None)


def _no_name(what: str, names: Sequence[str]) -> str:
    return f"no column has a usual name for {what} ({', '.join(names[:6])} ...)"


def _choose_ad(first: pa.RecordBatch, ids: IdValues, chosen: dict[str, tuple[str, str]]) -> bool:
    """Take the column whose values are ids of the ads table, or else one of SIDs."""
    names = [name for name in first.schema.names if name not in chosen]
    likely = [name for name in names if plain_name(name) in ID_NAMES]
    shares = {
        name: ids.share_of(first.column(name).slice(0, _FIRST_ROWS))
        for name in [*likely, *names]
        if not is_list(first.column(name).type)
    }
    best = max(shares, key=lambda name: shares[name], default=None)
    if best is not None and shares[best] >= _LEAST_KNOWN:
        reason = f"{shares[best]:.0%} of its first values are ids of the ads table"
        chosen[best] = ("ad_id", reason)
        return True
    sid = _named(SID_NAMES, first, chosen)
    if sid is not None:
        chosen[sid] = ("sid", "the SID of the ad")
    return sid is not None


def _time_by_values(first: pa.RecordBatch, chosen: Mapping[str, object]) -> str | None:
    """Return the only other column whose values are times; None if there are several."""
    free = [name for name in first.schema.names if name not in chosen]
    found = [name for name in free if _are_times(first.column(name))]
    return found[0] if len(found) == 1 else None


def _are_times(column: pa.Array) -> bool:
    """Return whether all values, or integers in some unit, are times between 1990 and 2100."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    column = column.drop_null()
    if is_text(column.type) and pc.all(pc.match_substring_regex(column, TIME_PATTERN)).as_py():
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
    if is_text(column.type):
        column, bad = integers(column)
        if bad.any():
            return None, "times as text: cast to milliseconds"
    if not pa.types.is_integer(column.type) or not len(column):
        return None, "the time"
    ends = pc.min_max(column).as_py()
    for unit, factor in PER_SECOND.items():  # their ranges do not overlap
        if FIRST_SECOND * factor <= ends["min"] <= ends["max"] < LAST_SECOND * factor:
            return unit, f"integers: {unit} since 1970, judging by their size"
    return None, "integers, but no unit puts them all between 1990 and 2100: correct them"


def _rules(
    first: pa.RecordBatch, rules: Mapping[str, str], chosen: Mapping[str, object]
) -> dict[str, tuple[str, str]]:
    """Return the columns that are named like a rule of the ads, exactly or by their words."""
    found: dict[str, tuple[str, str]] = {}
    free = [name for name in first.schema.names if name not in chosen]
    for same in (str, plain_name):
        for theirs, name in rules.items():
            columns = (each for each in free if same(each) == same(theirs) and each not in found)
            column = next(columns, None)
            if column is not None and all(name != taken for taken, _ in found.values()):
                found[column] = (name, "what the user had then: for evaluation with targeting")
    return found


def _other(first: pa.RecordBatch, column: str) -> tuple[str, str] | None:
    plain, values = plain_name(column), first.column(column)
    if plain == "split":
        return "split", "train or test"
    if plain in ACTION_NAMES:
        whole = pa.types.is_integer(values.type)
        if is_text(values.type):
            whole = not integers(values.drop_null())[1].any()
        return ("action", "integers: a model may read them") if whole else None
    return None
