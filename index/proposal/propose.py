"""Propose the data folder of an ads table: read all its rows, decide, and check for refusals."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from grace.configs.errors import InputError
from grace.index.progress import Progress
from grace.index.proposal.facts import BATCH_ROWS, ColumnFacts, IdValues, Kind, read_facts
from grace.index.proposal.log import OpenLog, OurColumn, TableProposal, propose_embeddings
from grace.index.proposal.names import ID_NAMES, is_entity, names_users, plain_name, stem
from grace.index.proposal.roles import LIMITING, RULES, Decision, Role, decide
from grace.index.proposal.separators import list_separator
from grace.index.tables.cells import integer_lists, is_text, list_parts, split_cells
from grace.index.tables.data_folder import SID_SPACE_KEY, VOCAB_SIZES_KEY
from grace.index.tables.table_file import TableFile, table_files
from grace.index.targeting.schema import EXCLUDE_SUFFIX


@dataclass(frozen=True, slots=True)
class Proposal:
    ads: tuple[str, ...]  # addresses, as given
    rows: int
    list_separator: str | None
    decisions: tuple[Decision, ...]  # in the table's order
    ids_are_integers: bool  # from 0: they need no id map
    vocab_sizes: tuple[int, ...] | None  # at least these, where a column of SIDs does not say
    embeddings: TableProposal | None
    log: TableProposal | None

    @property
    def without(self) -> tuple[str, ...]:
        """The declared rules that no row has yet."""
        limiting = [each for each in self.decisions if each.role in LIMITING]
        empty = (each.name for each in limiting if not self.values_of(each))
        return tuple(dict.fromkeys(name.removesuffix(EXCLUDE_SUFFIX) for name in empty))

    @property
    def left_out(self) -> list[Decision]:
        return [each for each in self.decisions if each.role is Role.LEFT_OUT]

    def values_of(self, rule: Decision) -> set[str]:
        """Return the values of a rule's column and of the one that it excludes by."""
        name = rule.name.removesuffix(EXCLUDE_SUFFIX)
        both = (name, name + EXCLUDE_SUFFIX)
        values = (each.facts.values for each in self.decisions if each.name in both)
        return set().union(*values)

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
    separator = list_separator(files)
    facts: dict[str, ColumnFacts] = {}
    for done in read_facts(facts, files, separator, _may_be_ids(files, id_column)):
        progress("read ads", done, rows)
    column, ids = _ids(files, facts, id_column)
    opened = OpenLog(log, ids, column) if log else None
    decisions = decide(facts, column, rows, opened.users if opened else ())
    vectors = propose_embeddings(embeddings, ids, column) if embeddings else None
    for each in [each for each in decisions if each.role is Role.EMBEDDING and vectors is None]:
        columns = ((column, "item_id", "the ads"), (each.column, "vector", each.reason))
        vectors = TableProposal(tuple(ads), tuple(OurColumn(*names) for names in columns))
    rules = ((each.facts, each.name) for each in decisions if each.role in RULES)
    sid = next((each.column for each in decisions if each.role is Role.SID), None)
    sizes = None if sid is None or _says_vocabulary(files) else _vocab_sizes(files, sid, separator)
    return Proposal(
        *(tuple(ads), rows, separator, tuple(decisions)),
        *(_are_integers(facts[column], ids), sizes, vectors),
        opened.proposal(rules) if opened else None,
    )


def _are_integers(facts: ColumnFacts, ids: IdValues) -> bool:
    return ids.are_integers and facts.kind is Kind.INTEGER and not facts.typed_text


def _may_be_ids(files: Sequence[TableFile], id_column: str | None) -> dict[str, bool]:
    """Return the columns that may be the ids, and whether any other name is a better sign."""
    names = list(dict.fromkeys(name for file in files for name in file.schema.names))
    if id_column is not None:
        if id_column not in names:
            raise InputError(f"--id {id_column}: no such column; {_columns(names)}")
        return {id_column: False}
    plain = {name: plain_name(name) for name in names}
    named = {name: False for name in names if stem(plain[name]) in ID_NAMES}
    others = {
        name: True
        for name, each in plain.items()
        if stem(each) != each and not (is_entity(each) or names_users(each))
    }
    return others | named


def _columns(names: Sequence[str]) -> str:
    return f"the table has: {', '.join(names)}"


def _ids(
    files: Sequence[TableFile], facts: dict[str, ColumnFacts], id_column: str | None
) -> tuple[str, IdValues]:
    """Return the first column, in the order of names, with a different value in every row."""
    order = {name: at for at, name in enumerate(ID_NAMES)}
    found = [each for each in facts.values() if each.ids is not None]
    found.sort(key=lambda each: order.get(stem(plain_name(each.name)), len(order)))
    faults = []
    for each in found:
        assert each.ids is not None
        fault = _id_fault(files, each, each.ids)
        if fault is None:
            return each.name, each.ids
        if not each.ids.stops_early:
            faults.append(f"column {each.name!r} {fault}")
        if plain_name(each.name) == "ad_id" or id_column is not None:
            break
    address = files[0].address
    remedy = "an ad's id is there once: correct the table, or name another column with --id"
    if faults:
        raise InputError(f"{address}: {faults[0]}; {remedy}; {_columns(list(facts))}")
    raise InputError(
        f"{address}: no column is named like an id (ad_id, id, sku, item_id ...): name it with "
        f"--id COLUMN; {_columns(list(facts))}"
    )


def _id_fault(files: Sequence[TableFile], facts: ColumnFacts, ids: IdValues) -> str | None:
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
    rows = ids.repeated()
    if rows is None:
        return None
    value = _value(files, facts.name, rows[0])
    return f"repeats {value!r}, in rows {rows[0] + 1} and {rows[1] + 1}"


def _value(files: Sequence[TableFile], column: str, row: int) -> object:
    for file in files:
        for batch in file.batches([column], BATCH_ROWS):
            if row < batch.num_rows:
                return batch.column(0)[row].as_py()
            row -= batch.num_rows
    raise AssertionError("a row that was read before")


def _says_vocabulary(files: Sequence[TableFile]) -> bool:
    metadata = files[0].schema.metadata or {}
    return SID_SPACE_KEY in metadata and VOCAB_SIZES_KEY in metadata


def _vocab_sizes(
    files: Sequence[TableFile], column: str, separator: str | None
) -> tuple[int, ...] | None:
    """Return the largest token + 1 of each position; None if the SIDs differ in length."""
    most: np.ndarray[tuple[int], np.dtype[np.int64]] | None = None
    for file in files:
        for batch in file.batches([column], BATCH_ROWS):
            lists = batch.column(0)
            if is_text(lists.type):
                lists = integer_lists(split_cells(lists, separator))[0]
            parts = list_parts(lists.drop_null())
            lengths = np.unique(np.diff(parts.offsets))
            if len(lengths) != 1 or parts.flat.null_count:
                return None
            tokens = parts.flat.to_numpy().astype(np.int64).reshape(-1, lengths[0])
            if most is not None and len(most) != lengths[0]:
                return None
            highest = tokens.max(axis=0)
            most = highest if most is None else np.maximum(most, highest)
    return None if most is None else tuple(int(token) + 1 for token in most)
