"""The log of interactions: which user met which SID when, and batches of their histories."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from grace.configs.errors import ConfigError, InputError
from grace.index.trie import SidTrie
from grace.model.definition.inputs import ModelInputs, SequenceEvents, age_buckets
from grace.model.definition.spec import ModelSpec, SequenceInput

Int64 = npt.NDArray[np.int64]

_SPLITS = ("train", "test")


@dataclass(frozen=True, slots=True)
class Interactions:
    """The events of all users, one user after another, oldest first.

    offsets   int64 [users + 1]
    user_ids  int64 [users]
    held_out  bool [users]
    leaves    int64 [events]      leaf numbers of the catalogue's trie
    sids      int64 [events, L]
    times_ms  int64 [events]
    side      int64 [events] each
    """

    offsets: Int64
    user_ids: Int64
    held_out: npt.NDArray[np.bool_]
    leaves: Int64
    sids: Int64
    times_ms: Int64
    side: dict[str, Int64]

    @property
    def event_user(self) -> Int64:
        return np.repeat(np.arange(len(self.user_ids)), np.diff(self.offsets))

    def examples(self) -> Int64:
        """Return the events of training users: a model learns to predict each of them.

        A user's first event is one too: from it a model learns what to offer a newcomer.
        """
        return np.flatnonzero(~self.held_out[self.event_user])

    def last_events(self) -> Int64:
        """Return the newest event of every held-out user who has an older one."""
        long_enough = self.held_out & (np.diff(self.offsets) > 1)
        return self.offsets[1:][long_enough] - 1

    def leaf_counts(self, num_leaves: int) -> Int64:
        """Return how often training users met each leaf, [num_leaves]."""
        counts: Int64 = np.bincount(self.leaves[self.examples()], minlength=num_leaves)
        return counts

    def transitions(self) -> Int64:
        """Return successive leaves in the histories of training users, [pairs, 2]."""
        events = self.examples()
        events = events[events > self.offsets[self.event_user[events]]]
        return np.column_stack([self.leaves[events - 1], self.leaves[events]])


@dataclass(frozen=True, slots=True)
class HistoryBatches:
    """Batches of the histories before given events, each of at most `max_length` events."""

    log: Interactions
    history: SequenceInput

    def __post_init__(self) -> None:
        for name, cardinality in self.history.side.items():
            low, high = int(self.log.side[name].min()), int(self.log.side[name].max())
            if low < 0 or high >= cardinality:
                raise InputError(
                    f"the log's column {name!r} has ids {low} to {high}, but the model's side "
                    f"input is declared for 0 to {cardinality - 1}; declare {high + 1} or more"
                )

    def inputs(self, events: Int64) -> ModelInputs:
        """Return the history before each of `events`, int64 [B]. A user's first event has none."""
        log = self.log
        user_start = log.offsets[np.searchsorted(log.offsets, events, side="right") - 1]
        begin = np.maximum(user_start, events - self.history.max_length)
        counts = events - begin
        offsets = np.concatenate([[0], np.cumsum(counts)])
        rows = np.repeat(begin - offsets[:-1], counts) + np.arange(offsets[-1])
        newest = np.repeat(log.times_ms[events - 1], counts)
        return ModelInputs(
            batch=len(events),
            dense=(),
            categorical=(),
            bags=(),
            sequences=(
                SequenceEvents(
                    offsets=torch.from_numpy(offsets),
                    sids=torch.from_numpy(log.sids[rows]),
                    age_buckets=torch.from_numpy(age_buckets(newest - log.times_ms[rows])),
                    side=tuple(
                        torch.from_numpy(log.side[name][rows]) for name in self.history.side
                    ),
                ),
            ),
        )

    def targets(self, events: Int64) -> Tensor:
        """Return the SIDs of `events`, int64 [B, L]."""
        return torch.from_numpy(self.log.sids[events])


def history_input(spec: ModelSpec) -> SequenceInput:
    """Return the model's only input. A log can train no model that has other inputs."""
    others = [name for name in spec.inputs if name not in [*spec.sequences][:1]]
    if others:
        raise ConfigError(
            f"model.inputs.{others[0]}: an interaction log has one sequence of events and "
            "nothing else; remove the input"
        )
    (history,) = spec.sequences.values()
    return history


def read_interactions(path: Path, trie: SidTrie, side: Sequence[str] = ()) -> Interactions:
    """Read a log over a catalogue's SIDs, with the columns of ids that `side` names."""
    table = _read_table(path, side)
    integers = {name: _integers(path, table, name) for name in ("user_id", "timestamp_ms", *side)}
    order = np.lexsort((integers["timestamp_ms"], integers["user_id"]))
    columns = {name: values[order] for name, values in integers.items()}
    users, first, counts = np.unique(columns["user_id"], return_index=True, return_counts=True)
    test = _held_out(path, table)[order]
    mixed = np.flatnonzero(test != np.repeat(test[first], counts))
    if len(mixed):
        raise InputError(
            f"{path}: user {columns['user_id'][mixed[0]]} is in both splits; keep all events of a "
            "user in one"
        )
    if test.all() or not test.any():
        raise InputError(f"{path}: column split needs users of both kinds, {_SPLITS}")
    sids = _sids(path, table, trie.sid_length)
    return Interactions(
        offsets=np.append(first, len(order)),
        user_ids=users,
        held_out=test[first],
        leaves=_leaves(path, sids, trie)[order],
        sids=sids[order],
        times_ms=columns["timestamp_ms"],
        side={name: columns[name] for name in side},
    )


def _read_table(path: Path, side: Sequence[str]) -> pa.Table:
    names = ["user_id", "sid", "timestamp_ms", "split", *side]
    try:
        known = pq.read_schema(path).names
        for name in names:
            if name not in known:
                raise InputError(f"{path}: column {name!r} is missing; it has {known}")
        table = pq.read_table(path, columns=names)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None
    if not len(table):
        raise InputError(f"{path}: no rows; training needs events")
    for name in names:
        if table[name].null_count:
            raise InputError(f"{path}: column {name!r} has nulls; leave such events out")
    return table.combine_chunks()


def _integers(path: Path, table: pa.Table, name: str) -> Int64:
    column = table[name]
    if not pa.types.is_integer(column.type):
        raise InputError(f"{path}: column {name!r} must be of integers, got {column.type}")
    values: Int64 = column.cast(pa.int64()).to_numpy()
    return values


def _held_out(path: Path, table: pa.Table) -> npt.NDArray[np.bool_]:
    splits = table["split"].to_numpy().astype(str)
    for unknown in sorted({*splits.tolist()} - {*_SPLITS}):
        raise InputError(f"{path}: column 'split' has {unknown!r}; it must be one of {_SPLITS}")
    held_out: npt.NDArray[np.bool_] = splits == "test"
    return held_out


def _sids(path: Path, table: pa.Table, sid_length: int) -> Int64:
    """[events, L]"""
    (column,) = table["sid"].chunks
    if not pa.types.is_list(column.type) or not pa.types.is_integer(column.type.value_type):
        raise InputError(f"{path}: column 'sid' must be lists of integers, got {column.type}")
    lengths = column.value_lengths().to_numpy()
    for row in np.flatnonzero(lengths != sid_length):
        raise InputError(
            f"{path}: row {row}: sid has {lengths[row]} tokens, the catalogue's have {sid_length}"
        )
    tokens = column.flatten()
    if tokens.null_count:
        raise InputError(f"{path}: column 'sid' has nulls; leave such events out")
    sids: Int64 = tokens.cast(pa.int64()).to_numpy().reshape(-1, sid_length)
    return sids


def _leaves(path: Path, sids: Int64, trie: SidTrie) -> Int64:
    """Return the leaf of every SID: leaves are in SID order."""
    known, given = _sortable(trie.sids(np.arange(trie.num_leaves))), _sortable(sids)
    leaves = np.minimum(np.searchsorted(known, given), len(known) - 1)
    beyond = (sids < 0) | (sids >= trie.vocab_sizes)
    for row in np.flatnonzero((known[leaves] != given) | beyond.any(axis=1)):
        raise InputError(
            f"{path}: row {row}: SID {sids[row].tolist()} is not in the catalogue; "
            "log and ads must be of one SID space"
        )
    return leaves


def _sortable(sids: npt.NDArray[np.integer]) -> npt.NDArray[np.bytes_]:
    """Return SIDs [n, L] as strings of bytes [n] in the same order."""
    return np.ascontiguousarray(sids, dtype=">u2").view(f"S{2 * sids.shape[1]}")[:, 0]
