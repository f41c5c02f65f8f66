"""Propose the data folder of an ads table: read all its rows, decide, and check for refusals."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grace.configs.errors import InputError
from grace.index.progress import Progress
from grace.index.proposal.facts import BATCH_ROWS, ColumnFacts, Kind, read_facts, split_lists
from grace.index.proposal.log import AdIds, TableProposal, propose_embeddings, propose_log
from grace.index.proposal.names import ID_NAMES, is_entity, limits_users, plain_name, stem
from grace.index.proposal.roles import LIMITING, RULES, SPANS, Decision, Role, decide
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
        stated = {
            each.rule
            for each in limiting
            if each.facts.values or (each.role in (*SPANS, Role.GROUPS) and each.facts.given)
        }
        return tuple(dict.fromkeys(each.rule for each in limiting if each.rule not in stated))

    @property
    def time_unit(self) -> str | None:
        """The unit of flights that are integers; None if none are."""
        flights = (each.facts for each in self.decisions if each.rule_role is Role.FLIGHT)
        return next((facts.time_unit for facts in flights if facts.time_unit), None)

    @property
    def left_out(self) -> list[Decision]:
        return [each for each in self.decisions if each.role is Role.LEFT_OUT]

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
    names = list(dict.fromkeys(name for file in files for name in file.schema.names))
    if id_column is not None and id_column not in names:
        raise InputError(f"--id {id_column}: no such column; {_columns(names)}")
    may_be_ids = _may_be_ids(names) if id_column is None else [id_column]
    columns = {name: name in may_be_ids for name in names}
    facts = read_facts(files, columns, lambda done: progress("read ads", done, rows))
    column = _id_column(files, [facts[name] for name in may_be_ids], names)
    ids = AdIds(column, facts[column].ids)
    separator = split_lists(facts.values())
    decisions = decide(facts, column, rows)
    sid = next((each.facts for each in decisions if each.role is Role.SID), None)
    files = [replace(file, list_separator=separator) for file in files]
    return Proposal(
        ads=tuple(ads),
        rows=rows,
        list_separator=separator,
        decisions=tuple(decisions),
        vocab_sizes=None if sid is None else _vocab_sizes(files, sid),
        embeddings=propose_embeddings(embeddings, ids) if embeddings else None,
        log=propose_log(log, ids, (d.name for d in decisions if d.role in RULES)) if log else None,
    )


def _may_be_ids(names: Sequence[str]) -> list[str]:
    """Return the columns with usual names, the best first, and then others named `..._id`."""
    plain = {name: plain_name(name) for name in names}
    usual = [name for name in names if stem(plain[name]) in ID_NAMES]
    usual.sort(key=lambda name: ID_NAMES.index(stem(plain[name])))
    others = (name for name in names if stem(plain[name]) != plain[name] and name not in usual)
    return [*usual, *(n for n in others if not (is_entity(plain[n]) or limits_users(plain[n])))]


def _columns(names: Sequence[str]) -> str:
    return f"the table has: {', '.join(names)}"


def _id_column(
    files: Sequence[TableFile], candidates: Sequence[ColumnFacts], names: Sequence[str]
) -> str:
    """Return the first candidate with a different value in every row."""
    address, first = files[0].address, None
    for each in candidates:
        fault = _id_fault(files, each)
        if fault is None:
            return each.name
        first = first or f"column {each.name!r} {fault}"
        if each.name == "ad_id":  # a build would read it
            break
    if first is not None:
        raise InputError(
            f"{address}: {first}; each ad needs its own id: correct the table, or name another "
            f"column with --id; {_columns(names)}"
        )
    raise InputError(
        f"{address}: no column is named like an id (ad_id, id, sku, item_id ...): name it with "
        f"--id COLUMN; {_columns(names)}"
    )


def _id_fault(files: Sequence[TableFile], facts: ColumnFacts) -> str | None:
    if facts.nested or not (facts.is_text or facts.kind is Kind.INTEGER):
        return f"holds {facts.kind.value}, not ids (integers or texts)"
    types = {field.type for file in files for field in file.schema if field.name == facts.name}
    if pa.uint64() in types:
        return "is uint64: cast it to int64"
    ids = facts.ids
    if ids.null_count:
        return f"has no value in row {pc.index(ids.is_null(), True).as_py() + 1}"
    repeat = first_repeat(ids)
    return repeat and f"repeats {repeat[0]!r}, {repeat[1]}"


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
