"""Read a data folder's log of interactions, over the SIDs of its catalogue.

Columns: `user_id` (integers or texts), the ad as `ad_id` (as in the ads table) or its `sid`,
`timestamp_ms`, optional `split`, columns of ids that the model reads, and columns named like the
attributes and sets of targeting.yaml. The reader leaves out events of ads that the catalogue
does not have.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from grace.configs.errors import InputError
from grace.index.snapshot import Snapshot
from grace.index.tables.addresses import Format
from grace.index.tables.cells import (
    integer_lists,
    integers,
    is_list,
    is_text,
    rule_lists,
    split_cells,
)
from grace.index.tables.data_folder import (
    FIRST_SECOND,
    LAST_SECOND,
    PER_SECOND,
    TIME_UNITS,
    DataFolder,
    TableSource,
)
from grace.index.trie import SidTrie
from grace.model.train.interactions import Interactions

Int64 = npt.NDArray[np.int64]

_SPLITS = ("train", "test")
_BATCH_ROWS = 1 << 20
_UNKNOWN = -1  # the leaf of an event whose ad the catalogue does not have


@dataclass(frozen=True, slots=True)
class ReadLog:
    """The log, and the number of rows that the reader left out."""

    interactions: Interactions
    rows: int
    left_out: int


def read_log(
    folder: DataFolder,
    catalogue: Snapshot,
    side: Sequence[str] = (),
    max_unknown: float = 0.0,
    *,
    attributes: bool = False,
) -> ReadLog:
    """Read the log with the columns of ids that `side` names.

    `max_unknown` is the largest share of events that may be left out, and `attributes` asks for the
    columns that say who a user is.
    """
    if folder.log is None:
        raise InputError(
            f"{folder.folder}: has no log of interactions; add `log:` with its files to tables.yaml"
        )
    wanted = tuple(catalogue.schema.names) if attributes else ()
    table = _LogTable.read(folder.log, side, wanted)
    leaves = table.leaves(folder, catalogue)
    known = np.flatnonzero(leaves != _UNKNOWN)
    _require_known(table, leaves, len(known), max_unknown)
    users, number = table.users(known)
    times, leaves = table.times()[known], leaves[known]
    order = np.lexsort((leaves, times, number))
    rows = known[order]
    counts = np.bincount(number, minlength=len(users))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    log = Interactions(
        offsets=offsets,
        user_ids=users,
        held_out=_held_out(table, rows, offsets, users),
        leaves=leaves[order],
        leaf_sids=catalogue.trie.sids(np.arange(catalogue.trie.num_leaves)),
        times_ms=times[order],
        side={name: table.numbers(name).to_numpy()[rows] for name in side},
        attributes={
            name: table.lists(name).take(pa.array(rows)) for name in wanted if name in table.columns
        },
    )
    if not len(log.last_events()):
        raise InputError(f"{table.name}: no held-out user has two events; recall needs a history")
    if not len(log.examples()):
        raise InputError(f"{table.name}: column split needs users of both kinds, {_SPLITS}")
    return ReadLog(log, table.rows, table.rows - len(known))


@dataclass(frozen=True, slots=True)
class _LogTable:
    """The log's columns by our names. The columns of a CSV are texts."""

    source: TableSource
    name: str
    columns: dict[str, pa.Array]
    is_csv: bool

    @classmethod
    def read(
        cls, source: TableSource, side: Sequence[str], attributes: Sequence[str]
    ) -> "_LogTable":
        found: dict[str, list[pa.Array]] = {}
        files = source.tables()
        name = ", ".join(source.files)
        for file in files:
            if file.format is not files[0].format:  # the columns of a CSV have other types
                raise InputError(
                    f"{file.address}: is {file.format.shown}, but {files[0].address} is "
                    f"{files[0].format.shown}; write all files of the log in one format"
                )
        for file in files:
            ours = _columns(source, file.schema.names, file.address, side, attributes)
            if found and set(ours) != set(found):
                (other, *_) = sorted(set(ours) ^ set(found))
                raise InputError(
                    f"{file.address}: column {other!r} is in some files of the log only; write it "
                    "to all of them"
                )
            for batch in file.batches([source.theirs(each) for each in ours], _BATCH_ROWS):
                for each, column in zip(ours, batch.columns, strict=True):
                    found.setdefault(each, []).append(column)
        if not found:
            raise InputError(f"{name}: no rows; training needs events")
        columns = {each: _joined(parts) for each, parts in found.items()}
        table = cls(source, name, columns, files[0].format is Format.CSV)
        table.require_filled("user_id", "timestamp_ms", *side, *{"split"} & {*columns})
        return table

    @property
    def rows(self) -> int:
        return len(self.columns["user_id"])

    def require_filled(self, *names: str) -> None:
        for name in names:
            if self.columns[name].null_count:
                row = pc.index(self.columns[name].is_null(), True).as_py()
                raise InputError(
                    f"{self.name}: row {row + 1}: column {self.source.theirs(name)!r} has nulls; "
                    "leave such events out"
                )

    def users(self, rows: Int64) -> tuple[npt.NDArray[Any], Int64]:
        """Return the users of these rows in ascending order, and the number of each row's user."""
        column = self.columns["user_id"].take(pa.array(rows))
        if not (pa.types.is_integer(column.type) or is_text(column.type)):
            raise self._wrong_type("user_id", "integers or texts")
        encoded = pc.dictionary_encode(column)
        names = encoded.dictionary.to_numpy(zero_copy_only=False)
        order = np.argsort(names, kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        return names[order], place[encoded.indices.to_numpy()]

    def times(self) -> Int64:
        """[rows] in milliseconds"""
        column = self.columns["timestamp_ms"]
        if is_text(column.type):
            numbers, wrong = integers(column)
            column = _moments(column) if wrong.any() else numbers
        are_times = column is not None and pa.types.is_timestamp(column.type)
        if are_times:
            column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
        if column is None or not pa.types.is_integer(column.type):
            raise self._wrong_type("timestamp_ms", "integers, milliseconds since 1970, or times")
        given: Int64 = column.cast(pa.int64(), safe=False).to_numpy()  # too large: negative
        if are_times:
            return given
        unit = self.source.time_unit
        factor = PER_SECOND[unit]
        wrong = (given < FIRST_SECOND * factor) | (given >= LAST_SECOND * factor)
        for row in np.flatnonzero(wrong)[:1]:
            raise InputError(
                f"{self.name}: row {row + 1}: {self.source.theirs('timestamp_ms')} {column[row]} "
                f"is not between 1990 and 2100, in {unit} since 1970; set log.time_unit in "
                f"tables.yaml to the unit of this column ({', '.join(TIME_UNITS)}), or leave such "
                "events out"
            )
        return given * 1000 if unit == "s" else given // (factor // 1000)

    def numbers(self, name: str, expected: str = "integers", remedy: str = "") -> pa.Array:
        """Return a column of integers; nulls stay."""
        column = self.columns[name]
        if is_text(column.type):
            column, wrong = integers(column)
            for row in np.flatnonzero(wrong)[:1]:
                raise InputError(
                    f"{self.name}: row {row + 1}: {self.source.theirs(name)} "
                    f"{self.columns[name][row].as_py()!r} is not an integer{remedy}"
                )
        if not pa.types.is_integer(column.type):
            raise self._wrong_type(name, expected)
        return column.cast(pa.int64())

    def lists(self, name: str) -> pa.Array:
        """Return a column as lists of texts."""
        column, separator = self.columns[name], self.source.list_separator
        return rule_lists(column, separator, is_csv=self.is_csv)

    def leaves(self, folder: DataFolder, catalogue: Snapshot) -> Int64:
        """Return each event's leaf, or _UNKNOWN.   [rows]"""
        if "ad_id" not in self.columns:
            return self._leaves_of_sids(catalogue.trie)
        ads = catalogue.ads
        ordinals = ads.ordinals(self._ad_numbers(folder.id_map))
        leaves = np.searchsorted(ads.ad_offsets, ordinals, side="right") - 1
        return np.where(ordinals < 0, _UNKNOWN, leaves)

    def _ad_numbers(self, id_map: Path | None) -> Int64:
        """Return the number of each event's ad, as the catalogue numbers it; -1 for none."""
        column = self.columns["ad_id"]
        if id_map is not None:
            known = pq.read_table(id_map, columns=["item_id", "ad_id"])
            places = pc.index_in(column.cast(pa.string()), value_set=known["item_id"])
            column = known["ad_id"].take(places).combine_chunks()
        else:
            remedy = "; number the ads with id_map in tables.yaml, and build with it"
            column = self.numbers("ad_id", "integers, or of texts with an id_map", remedy)
        numbers: Int64 = pc.fill_null(column, -1).to_numpy()
        return numbers

    def _leaves_of_sids(self, trie: SidTrie) -> Int64:
        column, separator = self.columns["sid"], self.source.list_separator
        if is_text(column.type) and separator is not None:
            column, wrong = integer_lists(split_cells(column, separator))
            for row in np.flatnonzero(wrong)[:1]:
                raise InputError(f"{self.name}: {self.shown(row)} is not a list of integers")
        if not (is_list(column.type) and pa.types.is_integer(column.type.value_type)):
            raise self._wrong_type("sid", "lists of integers")
        leaves = np.full(len(column), _UNKNOWN)
        filled = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        lists = column.drop_null()
        lengths = lists.value_lengths().to_numpy()
        for place in np.flatnonzero(lengths != trie.sid_length)[:1]:
            raise InputError(
                f"{self.name}: row {filled[place] + 1}: sid has {lengths[place]} tokens, the "
                f"catalogue's have {trie.sid_length}; give a log and ads of one SID space"
            )
        tokens = lists.flatten()
        if tokens.null_count:
            raise InputError(
                f"{self.name}: column 'sid' has nulls in a list; leave such events out"
            )
        given = tokens.cast(pa.int64()).to_numpy().reshape(-1, trie.sid_length)
        leaves[filled] = leaves_of_sids(given, trie)
        return leaves

    def shown(self, row: int) -> str:
        """Return the value by which an event names its ad."""
        name = "ad_id" if "ad_id" in self.columns else "sid"
        return f"row {row + 1}: {name} {self.columns[name][row].as_py()}"

    def _wrong_type(self, name: str, expected: str) -> InputError:
        found, theirs = self.columns[name].type, self.source.theirs(name)
        return InputError(f"{self.name}: column {theirs!r} must be of {expected}, got {found}")


def _columns(
    source: TableSource,
    there: Sequence[str],
    address: str,
    side: Sequence[str],
    attributes: Sequence[str],
) -> tuple[str, ...]:
    """Return our names of the columns to read."""
    item = next((name for name in ("ad_id", "sid") if source.theirs(name) in there), None)
    if item is None:
        raise InputError(
            f"{address}: column {source.theirs('ad_id')!r} is missing, and so is "
            f"{source.theirs('sid')!r}; it has {', '.join(there)}: name the ad's column in "
            "tables.yaml, log.columns.ad_id"
        )
    needed = ("user_id", item, "timestamp_ms", *side)
    for name in needed:
        if source.theirs(name) not in there:
            raise InputError(
                f"{address}: column {source.theirs(name)!r} is missing; it has {', '.join(there)}: "
                f"name it in tables.yaml, log.columns.{name}"
            )
    optional = (each for each in ("split", *attributes) if source.theirs(each) in there)
    return tuple(dict.fromkeys((*needed, *optional)))


def _require_known(table: _LogTable, leaves: Int64, known: int, max_unknown: float) -> None:
    unknown = len(leaves) - known
    if unknown <= max_unknown * len(leaves) and known:
        return
    first = int(np.flatnonzero(leaves == _UNKNOWN)[0]) if unknown else 0
    raise InputError(
        f"{table.name}: {unknown:,} of {len(leaves):,} events ({unknown / len(leaves):.1%}) name "
        f"ads that the catalogue does not have or that have no SID, first {table.shown(first)}; at "
        f"most {max_unknown:.1%} are left out: raise --max-unknown, or check that log and ads name "
        "ads alike"
    )


def _held_out(
    table: _LogTable, rows: Int64, offsets: Int64, users: npt.NDArray[Any]
) -> npt.NDArray[np.bool_]:
    """Return which events training does not see: those of test users, or each user's newest."""
    if "split" not in table.columns:
        held_out = np.zeros(len(rows), np.bool_)
        held_out[offsets[1:][np.diff(offsets) > 1] - 1] = True
        return held_out
    splits = table.columns["split"].cast(pa.string())
    for unknown in sorted({*pc.unique(splits).to_pylist()} - {*_SPLITS}):
        raise InputError(
            f"{table.name}: column 'split' has {unknown!r}; it must be one of {_SPLITS}, or leave "
            "the column out"
        )
    test: npt.NDArray[np.bool_] = pc.equal(splits, "test").to_numpy(zero_copy_only=False)[rows]
    mixed = np.flatnonzero(test != np.repeat(test[offsets[:-1]], np.diff(offsets)))
    if len(mixed):
        user = users[np.searchsorted(offsets, mixed[0], side="right") - 1]
        raise InputError(
            f"{table.name}: user {user} is in both splits; keep all events of a user in one"
        )
    if test.all() or not test.any():
        raise InputError(f"{table.name}: column split needs users of both kinds, {_SPLITS}")
    return test


def leaves_of_sids(sids: Int64, trie: SidTrie) -> Int64:
    """Return the leaf of every SID, -1 where the trie does not have it.   [n, L] -> [n]"""
    known, given = _sortable(trie.sids(np.arange(trie.num_leaves))), _sortable(sids)
    leaves = np.minimum(np.searchsorted(known, given), len(known) - 1)
    beyond = (sids < 0) | (sids >= trie.vocab_sizes)
    return np.where((known[leaves] != given) | beyond.any(axis=1), _UNKNOWN, leaves)


def _sortable(sids: npt.NDArray[np.integer]) -> npt.NDArray[np.bytes_]:
    """Return SIDs [n, L] as strings of bytes [n] in the same order."""
    return np.ascontiguousarray(sids, dtype=">u2").view(f"S{2 * sids.shape[1]}")[:, 0]


def _joined(parts: list[pa.Array]) -> pa.Array:
    first = parts[0].type
    if pa.types.is_dictionary(first):
        parts, first = [part.cast(first.value_type) for part in parts], first.value_type
    return pa.concat_arrays([part if part.type == first else part.cast(first) for part in parts])


def _moments(column: pa.Array) -> pa.Array | None:
    """Return texts as times, with or without a time zone; None if they are not times."""
    for zone in (None, "UTC"):
        try:
            return column.cast(pa.timestamp("ns", zone))
        except pa.ArrowInvalid:
            continue
    return None
