"""The log of interactions: which user met which SID when, and batches of their histories."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.nn import functional

from grace.configs.arrays import AnyArray, Bools, Int64, UInt16
from grace.configs.errors import ConfigError, InputError
from grace.index.users.user_rows import UserAttributes
from grace.model.checkpoints.checkpoint import CPU
from grace.model.definition.inputs import AGE_BUCKETS, ModelInputs, PaddedEvents
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
    # [events] each: lists of texts, or the numbers of ranges, that say who the user is
    attributes: Mapping[str, pa.Array] = field(default_factory=dict)
    # the held-out events whose NDCG chooses the weights
    validation: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))

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
        return _sample(np.setdiff1d(known, self.validation), most)

    def validation_events(self, most: int) -> Int64:
        return _sample(self.validation, most)

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
        found: dict[str, tuple[str, ...] | float] = {}
        for name, column in self.attributes.items():
            value = column[event].as_py()
            if isinstance(value, float):
                found[name] = value
            elif value is not None:
                found[name] = tuple(each for each in value if each is not None)
        return found


_WIDTHS = 4  # pads histories to a multiple of it, or to `max_length`


class HistoryBatches:
    """Batches of the histories before given events, each of at most `max_length` events.

    The log is on the device. Shapes depend only on the number of events and the width.
    """

    def __init__(
        self, log: Interactions, history: SequenceInput, device: torch.device = CPU
    ) -> None:
        for name, cardinality in history.side.items():
            low, high = int(log.side[name].min()), int(log.side[name].max())
            if low < 0 or high >= cardinality:
                raise InputError(
                    f"the log's column {name!r} has ids {low} to {high}, but the model's side "
                    f"input is declared for 0 to {cardinality - 1}; declare {high + 1} or more"
                )
        self.log = log
        self.device = device
        self._history = history
        self._leaf_sids = self._here(log.leaf_sids.astype(np.int64))
        number = np.int32 if len(log.leaves) < 1 << 31 else np.int64
        self._leaves = self._here(log.leaves.astype(number))
        self._times = self._here(log.times_ms)
        begin = np.repeat(log.offsets[:-1].astype(number), np.diff(log.offsets))
        self._begin = self._here(begin)
        self._side = tuple(self._here(log.side[name]) for name in history.side)
        self._ages = self._here(2 ** np.arange(AGE_BUCKETS - 1))

    def lengths(self, events: Int64) -> Int64:
        """Return the number of events in the history before each event."""
        log = self.log
        begin = log.offsets[np.searchsorted(log.offsets, events, side="right") - 1]
        lengths: Int64 = np.minimum(events - begin, self._history.max_length)
        return lengths

    def width(self, events: Int64) -> int:
        """Return a width that fits every history before `events`; few different widths occur."""
        longest = int(self.lengths(events).max())
        return min(self._history.max_length, max(1, -(-longest // _WIDTHS)) * _WIDTHS)

    def inputs(
        self, events: Int64 | Tensor, width: int | None = None, dropout: float = 0.0
    ) -> ModelInputs:
        """Return the history before each of `events`, int64 [B]. A user's first event has none.

        This pads histories to `width` events, by default to `max_length`. It leaves out each event
        but the newest with the probability `dropout`.
        """
        asked = torch.as_tensor(events, device=self.device)
        most = width or self._history.max_length
        begin = torch.maximum(self._begin[asked], asked - most)
        counts = asked - begin
        places = torch.arange(most, device=self.device)
        present = places < counts[:, None]
        if dropout:
            drawn = torch.rand(present.shape, device=self.device) >= dropout
            kept = present & (drawn | (places == counts[:, None] - 1))
            counts = kept.sum(dim=1)
            present = places < counts[:, None]
            places = (places + most * ~kept).sort(dim=1).values % most  # the kept ones first
        rows = torch.where(present, begin[:, None] + places, 0)
        ages = self._times[(asked - 1).clamp(min=0), None] - self._times[rows]
        history = PaddedEvents(
            offsets=functional.pad(counts.cumsum(0), (1, 0)),
            sids=self._leaf_sids[self._leaves[rows.flatten()]],
            age_buckets=torch.bucketize(ages.flatten() + 1, self._ages, right=True),
            side=tuple(ids[rows.flatten()] for ids in self._side),
        )
        return ModelInputs(len(asked), dense=(), categorical=(), bags=(), sequences=(history,))

    def targets(self, events: Int64 | Tensor) -> Tensor:
        """Return the SIDs of `events`, int64 [B, L]."""
        return self._leaf_sids[self._leaves[torch.as_tensor(events, device=self.device)]]

    def _here(self, values: AnyArray) -> Tensor:
        return torch.tensor(values, device=self.device)


def _sample(events: Int64, most: int | None) -> Int64:
    if most is None or len(events) <= most:
        return events
    return np.sort(np.random.default_rng(0).choice(events, most, replace=False))


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
