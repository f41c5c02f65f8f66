"""Propose the data folder of an ads table: read all its rows, decide, and check for refusals."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from grace.configs.errors import InputError
from grace.index.progress import Progress
from grace.index.proposal.facts import BATCH_ROWS, ColumnFacts, Kind, read_facts
from grace.index.proposal.log import OpenLog, OurColumn, TableProposal, propose_embeddings
from grace.index.proposal.names import ID_NAMES, is_entity, names_users, plain_name, stem
from grace.index.proposal.roles import LIMITING, RULES, Decision, Role, decide, values_of
from grace.index.proposal.separators import separator_in
from grace.index.tables.rows import read_rows
from grace.index.tables.sid_table import first_repeat, sid_space_in, vocab_sizes_in
from grace.index.tables.table_file import TableFile, table_files


@dataclass(frozen=True, slots=True)
class Proposal:
    ads: tuple[str, ...]  # addresses, as given
    rows: int
    list_separator: str | None
    decisions: tuple[Decision, ...]  # in the table's order
    vocab_sizes: tuple[int, ...] | None  # at least these, where a column of SIDs does not say
    embeddings: TableProposal | None
    log: TableProposal | None

    @property
    def without(self) -> tuple[str, ...]:
        """The declared rules that no row has yet."""
        limiting = [each for each in self.decisions if each.role in LIMITING]
        empty = (each.rule for each in limiting if not values_of(each, self.decisions))
        return tuple(dict.fromkeys(empty))

    @property
    def left_out(self) -> list[Decision]:
        return [each for each in self.decisions if each.role is Role.LEFT_OUT]

    @property
    def ids_are_integers(self) -> bool:
        """Return whether the ids need no id map."""
        ids = self.column_of(Role.ID)
        return ids is not None and ids.facts.are_integer_ids

    def column_of(self, role: Role) -> Decision | None:
        return next((each for each in self.decisions if each.role is role), None)


def propose(
    ads: Sequence[str],
    log: Sequence[str],
    id_column: str | None,
    progress: Progress,
    embeddings: Sequence[str] = (),
) -> Proposal:
    """`id_column` is the table's column of ids; None to find it by its name and values."""
    files = table_files(ads)
    rows = sum(file.count_rows() for file in files)
    if rows == 0:
        raise InputError(f"{files[0].address}: the ads table has no rows; nothing to propose")
    files, facts = _read(files, rows, id_column, progress)
    column = _id_column(files, facts, id_column)
    ids = facts[column].ids
    assert ids is not None
    opened = OpenLog(log, ids, column) if log else None
    decisions = decide(facts, column, rows, opened.users if opened else ())
    vectors = propose_embeddings(embeddings, ids, column) if embeddings else None
    for each in [each for each in decisions if each.role is Role.EMBEDDING and vectors is None]:
        columns = ((column, "item_id", "the ads"), (each.column, "vector", each.reason))
        vectors = TableProposal(tuple(ads), tuple(OurColumn(*names) for names in columns))
    rules = ((each.facts, each.name) for each in decisions if each.role in RULES)
    sid = next((each.facts for each in decisions if each.role is Role.SID), None)
    return Proposal(
        ads=tuple(ads),
        rows=rows,
        list_separator=files[0].list_separator,
        decisions=tuple(decisions),
        vocab_sizes=None if sid is None else _vocab_sizes(files, sid),
        embeddings=vectors,
        log=opened.proposal(rules) if opened else None,
    )


def _read(
    files: list[TableFile], rows: int, id_column: str | None, progress: Progress
) -> tuple[list[TableFile], dict[str, ColumnFacts]]:
    """Return the files with the separator of their lists, and the facts of all columns."""
    names = list(dict.fromkeys(name for file in files for name in file.schema.names))
    may_be_ids = _may_be_ids(names, id_column)
    facts = read_facts(files, names, may_be_ids, lambda done: progress("read ads", done, rows))
    separator = separator_in(facts.values())
    if separator is None:
        return files, facts
    files = [replace(file, list_separator=separator) for file in files]
    changed = [name for name, each in facts.items() if each.changes_by(separator)]
    lists = read_facts(files, changed, advance=lambda done: progress("read lists", done, rows))
    for name, each in lists.items():
        each.ids, facts[name] = facts[name].ids, each
    return files, facts


def _may_be_ids(names: Sequence[str], id_column: str | None) -> dict[str, bool]:
    """Return the columns that may be the ids, and whether any other name is a better sign."""
    if id_column is not None:
        if id_column not in names:
            raise InputError(f"--id {id_column}: no such column; {_columns(names)}")
        return {id_column: False}
    found = {}
    for name in names:
        plain = plain_name(name)
        named = stem(plain) in ID_NAMES
        if named or not (stem(plain) == plain or is_entity(plain) or names_users(plain)):
            found[name] = not named
    return found


def _columns(names: Sequence[str]) -> str:
    return f"the table has: {', '.join(names)}"


def _id_column(
    files: Sequence[TableFile], facts: dict[str, ColumnFacts], id_column: str | None
) -> str:
    """Return the first column, in the order of names, with a different value in every row."""
    order = {name: at for at, name in enumerate(ID_NAMES)}
    found = [each for each in facts.values() if each.ids is not None]
    found.sort(key=lambda each: order.get(stem(each.plain), len(order)))
    faults = []
    for each in found:
        assert each.ids is not None
        fault = _id_fault(files, each)
        if fault is None:
            return each.name
        if not each.ids.stops_early:
            faults.append(f"column {each.name!r} {fault}")
        if each.plain == "ad_id" or id_column is not None:
            break
    address = files[0].address
    remedy = "an ad's id is there once: correct the table, or name another column with --id"
    if faults:
        raise InputError(f"{address}: {faults[0]}; {remedy}; {_columns(list(facts))}")
    raise InputError(
        f"{address}: no column is named like an id (ad_id, id, sku, item_id ...): name it with "
        f"--id COLUMN; {_columns(list(facts))}"
    )


def _id_fault(files: Sequence[TableFile], facts: ColumnFacts) -> str | None:
    ids = facts.ids
    assert ids is not None
    may_be = facts.typed_text or facts.kind in (Kind.TEXT, Kind.INTEGER)
    if facts.nested or not may_be:
        return f"holds {facts.kind.value}, not ids (integers or texts)"
    types = {field.type for file in files for field in file.schema if field.name == facts.name}
    if pa.uint64() in types:
        return "is uint64: cast it to int64"
    if ids.null_row is not None:
        return f"has no value in row {ids.null_row + 1}"
    if ids.stopped:
        return "repeats values within a batch"
    rows = first_repeat(ids.values)
    if rows is None:
        return None
    return f"repeats {ids.values[rows[0]].as_py()!r}, in rows {rows[0] + 1} and {rows[1] + 1}"


def _vocab_sizes(files: Sequence[TableFile], sid: ColumnFacts) -> tuple[int, ...] | None:
    """Return the largest token + 1 of each position; None if the table states the sizes."""
    if sid_space_in(files[0]) and vocab_sizes_in(files[0]):
        return None
    most = np.zeros(sid.most_per_row, np.int64)
    for file in files:
        for rows in read_rows(file, {"sid": sid.name}, "sid", BATCH_ROWS):
            tokens = rows.sids("sid", len(most), null=None)
            most = np.maximum(most, tokens.max(axis=0, initial=0))
    return tuple((most + 1).tolist())
