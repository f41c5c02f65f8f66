"""The log of interactions: which user met which SID when, and batches of their histories."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from grace.configs.arrays import AnyArray, Bools, Int64, UInt16
from grace.configs.errors import ConfigError, InputError
from grace.index.users.user_rows import UserAttributes
from grace.model.definition.inputs import ModelInputs, SequenceEvents, age_buckets
from grace.model.definition.spec import ModelSpec, SequenceInput


@dataclass(frozen=True, slots=True)
class Interactions:
    """The events of all users, one user after another, oldest first."""

    offsets: Int64  # [users + 1]
    user_ids: AnyArray  # int64 or text [users]
    held_out: Bools  # [events]: what training does not see
    leaves: Int64  # [events]: leaf numbers of the catalogue's trie
    leaf_sids: UInt16  # [leaves, L]
    times_ms: Int64  # [events]
    side: Mapping[str, Int64] = field(default_factory=dict)  # int64 [events] each
    # [events] each: lists of texts that say who the user is
    attributes: Mapping[str, pa.Array] = field(default_factory=dict)

    @property
    def event_user(self) -> Int64:
        return np.repeat(np.arange(len(self.user_ids)), np.diff(self.offsets))

    def sids(self, events: Int64) -> Int64:
        """Return the SIDs of events.   [n] -> [n, L]"""
        return self.leaf_sids[self.leaves[events]].astype(np.int64)

    def examples(self) -> Int64:
        """Return the events to learn to predict. A user's first teaches what to offer new users."""
        return np.flatnonzero(~self.held_out)

    def training_users(self) -> int:
        """Return the number of users with an event that training sees."""
        return len(np.unique(self.event_user[self.examples()]))

    def last_events(self, most: int | None = None) -> Int64:
        """Return users' newest held-out events with older ones, or a fixed sample of `most`."""
        newest = self.offsets[1:] - 1
        known = newest[self.held_out[newest] & (np.diff(self.offsets) > 1)]
        if most is None or len(known) <= most:
            return known
        return np.sort(np.random.default_rng(0).choice(known, most, replace=False))

    def leaf_counts(self, num_leaves: int) -> Int64:
        """Return how often training meets each leaf, [num_leaves]."""
        return np.bincount(self.leaves[self.examples()], minlength=num_leaves)

    def transitions(self) -> Int64:
        """Return successive leaves of which training sees both, [pairs, 2]."""
        events = self.examples()
        events = events[events > self.offsets[self.event_user[events]]]
        return np.column_stack([self.leaves[events - 1], self.leaves[events]])

    def attributes_at(self, event: int) -> UserAttributes:
        """Return what the log says about an event's user, without names that have no value."""
        found: dict[str, tuple[str, ...]] = {}
        for name, column in self.attributes.items():
            value = column[event].as_py()
            if value is not None:
                found[name] = tuple(each for each in value if each is not None)
        return found


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
        history = SequenceEvents(
            offsets=torch.from_numpy(offsets),
            sids=torch.from_numpy(log.sids(rows)),
            age_buckets=torch.from_numpy(age_buckets(newest - log.times_ms[rows])),
            side=tuple(torch.from_numpy(log.side[name][rows]) for name in self.history.side),
        )
        return ModelInputs(len(events), dense=(), categorical=(), bags=(), sequences=(history,))

    def targets(self, events: Int64) -> Tensor:
        """Return the SIDs of `events`, int64 [B, L]."""
        return torch.from_numpy(self.log.sids(events))


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
