"""Propose the data folder of an ads table: read all its rows, decide, and check for refusals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from grace.configs.errors import InputError
from grace.index.progress import Progress
from grace.index.proposal.facts import BATCH_ROWS, ColumnFacts, Kind, read_facts
from grace.index.proposal.log import (
    AdIds,
    OurColumn,
    TableProposal,
    propose_embeddings,
    propose_log,
)
from grace.index.proposal.names import ID_NAMES, is_entity, names_users, stem
from grace.index.proposal.roles import LIMITING, RULES, Decision, Role, decide, values_of
from grace.index.proposal.separators import with_separator
from grace.index.tables.rows import read_rows
from grace.index.tables.sid_table import require_distinct, sid_space_in, vocab_sizes_in
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
    files = with_separator(table_files(ads))
    rows = sum(file.count_rows() for file in files)
    if rows == 0:
        raise InputError(f"{files[0].address}: the ads table has no rows; nothing to propose")
    facts = read_facts(files, lambda done: progress("read ads", done, rows))
    ids = _find_ids(files, facts, id_column)
    decisions = decide(facts, ids.column, rows)
    vectors = propose_embeddings(embeddings, ids) if embeddings else None
    for each in [each for each in decisions if each.role is Role.EMBEDDING and vectors is None]:
        columns = ((ids.column, "item_id", "the ads"), (each.column, "vector", each.reason))
        vectors = TableProposal(tuple(ads), tuple(OurColumn(*names) for names in columns))
    rules = [(each.facts.plain, each.name) for each in decisions if each.role in RULES]
    sid = next((each.facts for each in decisions if each.role is Role.SID), None)
    return Proposal(
        ads=tuple(ads),
        rows=rows,
        list_separator=files[0].list_separator,
        decisions=tuple(decisions),
        vocab_sizes=None if sid is None else _vocab_sizes(files, sid),
        embeddings=vectors,
        log=propose_log(log, ids, rules) if log else None,
    )


def _find_ids(
    files: Sequence[TableFile], facts: Mapping[str, ColumnFacts], id_column: str | None
) -> AdIds:
    """Return the first column, in the order of names, with a different value in every row."""
    table = f"the table has: {', '.join(facts)}"
    if id_column is not None and id_column not in facts:
        raise InputError(f"--id {id_column}: no such column; {table}")
    usual = [each for name in ID_NAMES for each in facts.values() if stem(each.plain) == name]
    others = [each for each in facts.values() if _may_be_ids(each)]
    faults = []
    for each in [*usual, *others] if id_column is None else [facts[id_column]]:
        try:
            return _ids_of(files, each)
        except InputError as error:
            faults.append(str(error))
        if each.plain == "ad_id":
            break
    if not (usual or id_column):
        raise InputError(
            f"{files[0].address}: no column is named like an id (ad_id, id, sku, item_id ...): "
            f"name it with --id COLUMN; {table}"
        )
    raise InputError(f"{faults[0]}; or name another column with --id; {table}")


def _may_be_ids(facts: ColumnFacts) -> bool:
    """Return whether the name is like `policy_id`, of nothing that several ads have."""
    plain = facts.plain
    named = stem(plain) != plain and not (is_entity(plain) or names_users(plain))
    return named and (facts.many or len(facts.values) == facts.given)


def _ids_of(files: Sequence[TableFile], facts: ColumnFacts) -> AdIds:
    """Refuse a column that a build would not read as ids, or that has one twice."""
    name, address = facts.name, files[0].address
    if facts.nested or not (facts.typed_text or facts.kind in (Kind.TEXT, Kind.INTEGER)):
        held = f"holds {facts.kind.value}, not ids (integers or texts)"
        raise InputError(f"{address}: column {name!r} {held}")
    parts = []
    for file in files:
        if name not in file.schema.names:
            raise InputError(f"{file.address}: column {name!r} is missing")
        for rows in read_rows(file, {name: name}, name, BATCH_ROWS):
            parts.append(rows.filled(name).cast(pa.large_string()))
            rows.require_good("ad")
    ids = pa.concat_arrays(parts)
    require_distinct(f"{address}: column {name!r}", ids)
    return AdIds(name, ids)


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
