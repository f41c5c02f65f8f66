"""Read a data folder for training and evaluation: its catalogue, and its log over these SIDs.

Columns of the log: `user_id` (integers or texts), the ad as `ad_id` (as in the ads table) or its
`sid`, `timestamp_ms`, optional `split`, columns of ids that the model reads, and columns named like
the attributes and sets of targeting.yaml. The reader leaves out events of ads that the catalogue
does not have.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grace.configs.arrays import AnyArray, Bools, Int64, Integers
from grace.configs.eligibility import CD, Eligibility
from grace.configs.errors import InputError
from grace.configs.options import Stated
from grace.index.builder import BuildSpec, build
from grace.index.snapshot import Snapshot
from grace.index.storage import load_snapshot
from grace.index.tables import roles
from grace.index.tables.data_folder import DataFolder, TableSource
from grace.index.tables.item_numbers import IdMap
from grace.index.tables.roles import Role, require_column
from grace.index.tables.rows import Rows, read_rows
from grace.index.tables.table_file import TableFile
from grace.model.train.interactions import Interactions

_SPLITS = ("train", "test", "validation")
_TRAIN, _TEST, _VALIDATION = range(3)
_FEWEST_TO_VALIDATE = 2  # a user needs more events than these two: training sees the others
_BATCH_ROWS = 1 << 20
_ANY = 1 << 62  # refused ads; a log's events of them count as unknown
_UNKNOWN = -1  # the leaf of an event whose ad the catalogue does not have
_SIDE, _RULE = "side ", "rule "  # before the names of columns
_LISTS = pa.large_list(pa.string())


def catalogue_of(
    folder: DataFolder, stated: Stated | None = None, eligibility: Eligibility = CD
) -> Snapshot:
    """Build a snapshot, without ads that a build refuses. Training tests no node."""
    folder.require_codebook()
    with tempfile.TemporaryDirectory(prefix="grace-train-") as root:
        facts = {each.name: getattr(stated, each.name) for each in fields(Stated)} if stated else {}
        spec = BuildSpec(folder, Path(root), max_rejects=_ANY, **facts)
        build(spec, lambda *_: None)
        return load_snapshot(spec.root, eligibility=eligibility)


@dataclass(frozen=True, slots=True)
class ReadLog:
    """The log, and the number of rows that the reader left out."""

    interactions: Interactions
    rows: int
    left_out: int


def read_log(
    folder: DataFolder,
    catalogue: Snapshot,
    side: Sequence[str] = (),  # the columns of ids to read
    max_unknown: float = 0.0,  # the largest share of events that may be left out
    *,
    attributes: bool = False,  # whether to read the columns that say who a user is
    validation: bool = False,  # whether to hold out a second event of each user
) -> ReadLog:
    if folder.log is None:
        raise InputError(
            f"{folder.folder}: has no log of interactions; add `log:` with its files to tables.yaml"
        )
    schema, wanted = catalogue.schema, dict[str, Role]()
    if attributes:
        wanted = dict.fromkeys(schema.user_names, roles.RULE)
        wanted |= {each.name: roles.NUMBER for each in schema.ranges}
    name = ", ".join(folder.log.files)
    events, unknown = _read(folder.log, side, wanted, _leaves_of(folder, catalogue))
    leaves = events["leaf"].to_numpy()
    known = np.flatnonzero(leaves != _UNKNOWN)
    _require_known(name, len(known), len(leaves), unknown, max_unknown)
    users, number = _users(events["user_id"].combine_chunks().take(pa.array(known)))
    times = events["time"].to_numpy()[known]
    order = np.lexsort((leaves[known], times, number))
    rows = known[order]
    counts = np.bincount(number, minlength=len(users))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    in_order = events.take(pa.array(rows)).combine_chunks()
    held_out, validated = _held_out(name, events, rows, offsets, users, validation)
    log = Interactions(
        offsets=offsets,
        user_ids=users,
        held_out=held_out,
        validation=validated,
        leaves=leaves[rows],
        leaf_sids=catalogue.trie.sids(np.arange(catalogue.trie.num_leaves)),
        times_ms=times[order],
        side={each: in_order[_SIDE + each].to_numpy() for each in side},
        attributes={
            each: pa.concat_arrays(in_order[_RULE + each].chunks)
            for each in wanted
            if _RULE + each in events.column_names
        },
    )
    if not len(log.last_events()):
        raise InputError(f"{name}: no held-out user has two events; recall needs a history")
    return ReadLog(log, len(leaves), len(leaves) - len(known))


_Leaves = Callable[[Rows], Int64]
"""Returns the leaf of each event, or _UNKNOWN.   [rows]"""


def _read(
    source: TableSource, side: Sequence[str], attributes: Mapping[str, Role], leaves_of: _Leaves
) -> tuple[pa.Table, str | None]:
    """Return the events, and the first one whose ad the catalogue does not have, in words."""
    parts: list[pa.Table] = []
    before: set[str] = set()
    unknown: str | None = None
    for file in source.tables():
        theirs = _columns(source, file, side, attributes)
        if parts and before != theirs.keys():
            (other, *_) = sorted(before ^ theirs.keys())
            raise InputError(
                f"{file.address}: column {other!r} is in some files of the log only; write it to "
                "all of them"
            )
        before = {*theirs}
        for rows in read_rows(file, theirs, "user_id", _BATCH_ROWS):
            leaves = leaves_of(rows)
            unknown = unknown or _unknown(rows, leaves)
            parts.append(_events(rows, source.time_unit, side, attributes, leaves))
    if not parts:
        raise InputError(f"{', '.join(source.files)}: no rows; training needs events")
    return pa.concat_tables(_alike(parts)), unknown


def _alike(parts: Sequence[pa.Table]) -> Sequence[pa.Table]:
    """Make texts of all users if some files have integers and others texts."""
    if len({part.schema.field("user_id").type for part in parts}) == 1:
        return parts
    kind = pa.large_string()
    return [part.set_column(0, "user_id", part["user_id"].cast(kind)) for part in parts]


def _columns(
    source: TableSource, file: TableFile, side: Sequence[str], attributes: Mapping[str, Role]
) -> dict[str, str]:
    """Return the table's names of the columns to read, after a check of each."""
    there = file.schema.names
    item = next((name for name in ("ad_id", "sid") if source.theirs(name) in there), None)
    if item is None:
        raise InputError(
            f"{file.address}: columns {source.theirs('ad_id')!r} and {source.theirs('sid')!r} are "
            f"missing; it has: {', '.join(there)}; name the ad's column in tables.yaml, "
            "log.columns.ad_id"
        )
    needed: dict[str, Role] = {
        "user_id": roles.NAME,
        item: roles.SID if item == "sid" else roles.NAME,
        "timestamp_ms": roles.TIME,
        **dict.fromkeys(side, roles.NAME),
    }
    optional = {"split": roles.TEXT, **attributes}
    chosen = needed | {
        name: role for name, role in optional.items() if source.theirs(name) in there
    }
    for name, role in chosen.items():
        hint = f", which log.columns.{name} of tables.yaml may name,"
        require_column(role, file, name, source.theirs(name), hint)
    return {name: source.theirs(name) for name in chosen}


def _events(
    rows: Rows, unit: str, side: Sequence[str], attributes: Mapping[str, Role], leaves: Int64
) -> pa.Table:
    def given(name: str) -> pa.Array:
        if attributes[name] is roles.RULE:
            return rows.rules(name).array().cast(_LISTS)
        numbers, valid = rows.numbers(name)
        return pa.array(numbers, mask=~valid)

    columns = {
        "user_id": rows.filled("user_id"),
        "leaf": leaves,
        "time": rows.times("timestamp_ms", unit),
        **{_SIDE + name: rows.ids(name) for name in side},
        **{_RULE + name: given(name) for name in attributes if name in rows.theirs},
    }
    if "split" in rows.theirs:
        columns["split"] = rows.filled("split").cast(pa.string())
    rows.require_good("user")
    return pa.table(columns)


def _unknown(rows: Rows, leaves: Int64) -> str | None:
    item = "ad_id" if "ad_id" in rows.theirs else "sid"
    for row in np.flatnonzero(leaves == _UNKNOWN)[:1].tolist():
        place = f"{rows.file.address} row {rows.places[row] + 1}"
        return f"{place}: {rows.theirs[item]} {rows.shown(item, row)}"
    return None


def _leaves_of(folder: DataFolder, catalogue: Snapshot) -> _Leaves:
    ads, trie = catalogue.ads, catalogue.trie
    names = None if folder.id_map is None else IdMap.read_existing(folder.id_map)
    known = _sortable(trie.sids(np.arange(trie.num_leaves)))

    def leaves_of(rows: Rows) -> Int64:
        if "ad_id" not in rows.theirs:
            sids = rows.sids("sid", trie.sid_length, null=None)
            given = _sortable(sids)
            leaves = np.minimum(np.searchsorted(known, given), len(known) - 1)
            beyond = ((sids < 0) | (sids >= trie.vocab_sizes)).any(axis=1)
            return np.where((known[leaves] != given) | beyond, _UNKNOWN, leaves)
        ordinals = ads.ordinals(rows.ids("ad_id", names, null=None, strict=False))
        leaves = np.searchsorted(ads.ad_offsets, ordinals, side="right") - 1
        return np.where(ordinals < 0, _UNKNOWN, leaves)

    return leaves_of


def _users(column: pa.Array) -> tuple[AnyArray, Int64]:
    """Return the users in ascending order, and the number of each row's user."""
    encoded = pc.dictionary_encode(column)
    names = encoded.dictionary.to_numpy(zero_copy_only=False)
    order = np.argsort(names, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return names[order], place[encoded.indices.to_numpy()]


def _require_known(
    name: str, known: int, total: int, first: str | None, max_unknown: float
) -> None:
    unknown = total - known
    if unknown <= max_unknown * total and known:
        return
    raise InputError(
        f"{name}: {unknown:,} of {total:,} events ({unknown / total:.1%}) name ads that the "
        f"catalogue does not have or that have no SID, first {first}; at most "
        f"{max_unknown:.1%} are left out: raise --max-unknown, or check that log and ads name ads "
        "alike, by the id_map of tables.yaml if they are no integers"
    )


def _held_out(
    name: str, events: pa.Table, rows: Int64, offsets: Int64, users: AnyArray, validation: bool
) -> tuple[Bools, Int64]:
    """Return which events training does not see, and which of them choose the weights.

    Without the column `split`, training does not see each user's newest event and, for validation,
    the one before it. With the column, it does not see the users in `test` and `validation`.
    """
    sizes = np.diff(offsets)
    newest = offsets[1:][sizes > 1] - 1
    if "split" not in events.column_names:
        validated = offsets[1:][sizes > _FEWEST_TO_VALIDATE] - 2 if validation else newest[:0]
        held_out = np.zeros(len(rows), np.bool_)
        held_out[newest] = held_out[validated] = True
        return held_out, validated
    splits = events["split"]
    for unknown in sorted({*pc.unique(splits).to_pylist()} - {*_SPLITS}):
        raise InputError(
            f"{name}: column 'split' has {unknown!r}; it must be one of {_SPLITS}, or leave the "
            "column out"
        )
    part = pc.index_in(splits, pa.array(_SPLITS)).to_numpy()[rows]
    mixed = np.flatnonzero(part != np.repeat(part[offsets[:-1]], sizes))
    if len(mixed):
        user = users[np.searchsorted(offsets, mixed[0], side="right") - 1]
        raise InputError(f"{name}: user {user} is in two splits; keep all events of a user in one")
    for needed in (_TRAIN, _TEST):
        if needed not in part:
            fault = f"no user is in {_SPLITS[needed]!r}; put some there, or leave the column out"
            raise InputError(f"{name}: column split: {fault}")
    return part != _TRAIN, newest[part[newest] == _VALIDATION]


def _sortable(sids: Integers) -> AnyArray:
    """Return SIDs [n, L] as strings of bytes [n] in the same order."""
    return np.ascontiguousarray(sids, dtype=">u2").view(f"S{2 * sids.shape[1]}")[:, 0]
