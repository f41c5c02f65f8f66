"""The plain encoder of look-ups, which the product's C++ is compared with."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from grace.model.definition.inputs import age_buckets
from grace.model.definition.spec import ModelSpec
from grace.model.engine.feature_lookups import (
    EventRows,
    FeatureLookups,
    event_rows_of,
    table_begins,
)
from support.plain_inputs import EncodedEvents, EncodedRequest, InputEncoder, bag_rows

Int32 = npt.NDArray[np.int32]


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
        return numbers.reshape(len(rows), -1)

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
        return table_begins([x.cardinality for x in self.spec.categorical.values()])

    @cached_property
    def _bag_tables(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Each table's rows, and where it begins."""
        sizes = [x.hash_rows for x in self.spec.bags.values()]
        return np.array(sizes, np.uint64), table_begins(sizes)

    @cached_property
    def _event_rows(self) -> tuple[tuple[EventRows, ...], int]:
        return event_rows_of(self.spec)


def _fill(events: Int32, sequence: EventRows, given: Sequence[EncodedEvents]) -> None:
    """Ids in the order in which `grace.model.definition.features` adds them."""
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
