"""A batch's inputs as row numbers of tables: what the host makes for
`grace.model.engine.fast_features`.

Tables of one kind stand one behind the other, and every id is the number of a row there. So the
device looks up all inputs of a kind at once, and every shape but that of the bags' ids depends on
the batch size alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grace.model.definition.input_encoding import (
    EncodedEvents,
    EncodedRequest,
    InputEncoder,
    age_buckets,
    bag_rows,
)
from grace.model.definition.inputs import AGE_BUCKETS, inputs_of_kind
from grace.model.definition.spec import BagInput, CategoricalInput, ModelSpec, SequenceInput

__all__ = [
    "EventRows",
    "FeatureLookups",
    "LookupEncoder",
    "event_rows_of",
    "squashed",
    "table_begins",
]

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class FeatureLookups:
    """Of B requests, inputs of each kind in declared order.

    dense        float32 [B, numbers]         sign(x) log(1 + |x|)
    categorical  int32 [B, inputs]            rows of the categorical tables
    bag_offsets  int32 [B * bags + 1]         a request's bags are neighbours
    bag_rows     int32 [n]                    rows of the bags' tables
    events       int32 [B, places, ids]       rows of the events' tables, their sum is the event's
                                              state; each sequence has as many places as its longest
                                              and what is not there has the row of zeros, the last
    """

    dense: Tensor
    categorical: Tensor
    bag_offsets: Tensor
    bag_rows: Tensor
    events: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        """In the order in which they are given to the constructor."""
        return (self.dense, self.categorical, self.bag_offsets, self.bag_rows, self.events)


@dataclass(frozen=True, slots=True)
class EventRows:
    """Where a sequence's events are in a batch, and where the tables of its ids begin.

    tokens  of each SID position;   side  of each side input
    """

    places: slice
    tokens: tuple[int, ...]
    age: int
    position: int
    side: tuple[int, ...]


def event_rows_of(spec: ModelSpec) -> tuple[tuple[EventRows, ...], int]:
    """Each sequence's, and the row of zeros behind all of them, for an InterFormer."""
    row, place, found = 0, 0, []
    length, widest = len(spec.vocab_sizes), max(spec.vocab_sizes)
    for _, sequence in inputs_of_kind(spec, SequenceInput):
        tokens = tuple(row + widest * position for position in range(length))
        age = row + widest * length
        position = age + AGE_BUCKETS
        row = position + sequence.max_length
        side = []
        for cardinality in sequence.side.values():
            side.append(row)
            row += cardinality + 1
        places = slice(place, place + sequence.max_length)
        place = places.stop
        found.append(EventRows(places, tokens, age, position, tuple(side)))
    return tuple(found), row


@dataclass(frozen=True)
class LookupEncoder:
    spec: ModelSpec

    def batch(self, requests: Sequence[EncodedRequest], size: int) -> FeatureLookups:
        """In the CPU's memory; empty requests, all defaults, fill the batch up to `size`."""
        rows = self._inputs.filled_up(requests, size)
        lengths = np.array([[len(ids) for ids in row.bags] for row in rows], np.int64)
        return FeatureLookups(
            dense=torch.from_numpy(self._dense(rows)),
            categorical=torch.from_numpy(self._categorical(rows)),
            bag_offsets=torch.from_numpy(np.cumsum([0, *lengths.flat], dtype=np.int32)),
            bag_rows=torch.from_numpy(self._bag_rows(rows, lengths)),
            events=torch.from_numpy(self._events(rows)),
        )

    def _dense(self, rows: Sequence[EncodedRequest]) -> npt.NDArray[np.float32]:
        numbers = np.concatenate([np.empty(0, np.float32), *(x for row in rows for x in row.dense)])
        return squashed(numbers).reshape(len(rows), -1)

    def _categorical(self, rows: Sequence[EncodedRequest]) -> Int32:
        given = np.array([row.categorical for row in rows], np.int64).reshape(len(rows), -1)
        return (given + self._categorical_tables).astype(np.int32)

    def _bag_rows(self, rows: Sequence[EncodedRequest], lengths: npt.NDArray[np.integer]) -> Int32:
        hash_rows, tables = self._bag_tables
        ids = np.concatenate([np.empty(0, np.int64), *(ids for row in rows for ids in row.bags)])
        of_each = np.tile(np.arange(len(hash_rows)), len(rows)).repeat(lengths.reshape(-1))
        return (bag_rows(ids, hash_rows[of_each]) + tables[of_each]).astype(np.int32)

    def _events(self, rows: Sequence[EncodedRequest]) -> Int32:
        t5 = self.spec.encoder.t5
        if t5 is not None:
            return self._tokens(rows)
        layout, zeros = self._event_rows
        ids = 2 + self.spec.sid_length + max((len(each.side) for each in layout), default=0)
        places = layout[-1].places.stop if layout else 0
        events = np.full((len(rows), places, ids), zeros, np.int32)
        for number, sequence in enumerate(layout):
            _fill(events, sequence, [row.sequences[number] for row in rows])
        return events

    def _tokens(self, rows: Sequence[EncodedRequest]) -> Int32:
        """Prefix, history and end of sequence, packed."""
        t5 = self.spec.encoder.t5
        assert t5 is not None
        tokens = np.full((len(rows), self.spec.context_tokens, 1), t5.num_tokens, np.int32)
        offsets, first = np.array(t5.token_offsets, np.int64), len(t5.prefix_tokens)
        tokens[:, :first, 0] = t5.prefix_tokens
        for places, row in zip(tokens, rows, strict=True):
            (history,) = row.sequences
            end = first + history.sids.size
            places[first:end, 0] = (history.sids + offsets).reshape(-1)
            if t5.eos_token is not None:
                places[end, 0] = t5.eos_token
        return tokens

    @cached_property
    def _inputs(self) -> InputEncoder:
        return InputEncoder(self.spec)

    @cached_property
    def _categorical_tables(self) -> npt.NDArray[np.int64]:
        return table_begins([x.cardinality for _, x in inputs_of_kind(self.spec, CategoricalInput)])

    @cached_property
    def _bag_tables(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Each table's rows, and where it begins."""
        sizes = [x.hash_rows for _, x in inputs_of_kind(self.spec, BagInput)]
        return np.array(sizes, np.uint64), table_begins(sizes)

    @cached_property
    def _event_rows(self) -> tuple[tuple[EventRows, ...], int]:
        return event_rows_of(self.spec)


def squashed(numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """sign(x) log(1 + |x|)"""
    made: npt.NDArray[np.float32] = np.sign(numbers) * np.log1p(np.abs(numbers))
    return made


def table_begins(sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    """Where tables of so many rows begin, one behind the other."""
    return np.cumsum([0, *sizes], dtype=np.int64)[: len(sizes)]


def _fill(events: Int32, sequence: EventRows, given: Sequence[EncodedEvents]) -> None:
    """Ids in the order in which `grace.model.definition.feature_tables` adds them."""
    counts = np.array([len(each.sids) for each in given])
    requests = np.repeat(np.arange(len(given)), counts)
    places = np.arange(len(requests)) - np.repeat(np.cumsum(counts) - counts, counts)
    tokens = 2 + len(sequence.tokens)
    rows = np.empty((len(requests), tokens + len(sequence.side)), np.int32)
    rows[:, 0] = age_buckets(np.concatenate([each.ages_ms for each in given])) + sequence.age
    rows[:, 1] = counts[requests] - 1 - places + sequence.position
    rows[:, 2:tokens] = np.concatenate([each.sids for each in given]) + np.array(sequence.tokens)
    for number, table in enumerate(sequence.side):
        rows[:, tokens + number] = np.concatenate([each.side[number] for each in given]) + table
    events[requests, sequence.places.start + places, : rows.shape[1]] = rows
