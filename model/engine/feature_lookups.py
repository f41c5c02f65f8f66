"""A batch's inputs as row numbers of tables, which C++ makes of requests.

The tables of one kind follow each other in one, and every id is the number of a row there. So a
device looks up all inputs of a kind at once, and every shape but that of the bags' ids depends on
the batch size alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grace.model.definition.inputs import (
    AGE_BUCKETS,
    JaggedIds,
    ModelInputs,
    SequenceEvents,
    inputs_of_kind,
)
from grace.model.definition.spec import (
    BagInput,
    CategoricalInput,
    DenseInput,
    ModelSpec,
    SequenceInput,
)


@dataclass(frozen=True, slots=True)
class FeatureLookups:
    """B requests, inputs of each kind in declared order.

    dense        float32 [B, numbers]         as sent, or `squashed`
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
        """In the order in which the constructor takes them."""
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
    """The rows of each sequence of an InterFormer, and the row of zeros after all of them."""
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


def squashed(lookups: FeatureLookups) -> FeatureLookups:
    """The same with sign(x) log(1 + |x|) of each number, in the CPU's memory."""
    numbers = lookups.dense.numpy()
    dense = np.sign(numbers) * np.log1p(np.abs(numbers))
    return replace(lookups, dense=torch.from_numpy(dense))


def table_begins(sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    """Where tables of these sizes begin if they follow each other."""
    return np.cumsum([0, *sizes], dtype=np.int64)[: len(sizes)]


def model_inputs_of(spec: ModelSpec, lookups: FeatureLookups) -> ModelInputs:
    """The inputs whose rows these are, their numbers as sent: each kind by its own tables again."""
    sizes = [value.size for _, value in inputs_of_kind(spec, DenseInput)]
    cardinalities = [value.cardinality for _, value in inputs_of_kind(spec, CategoricalInput)]
    categorical = lookups.categorical - torch.from_numpy(table_begins(cardinalities))
    return ModelInputs(
        batch=len(lookups.events),
        dense=tuple(lookups.dense.split_with_sizes(sizes, dim=1)) if sizes else (),
        categorical=tuple(categorical.unbind(dim=1)),
        bags=_bags_of(spec, lookups),
        sequences=_sequences_of(spec, lookups.events),
    )


def _bags_of(spec: ModelSpec, lookups: FeatureLookups) -> tuple[JaggedIds, ...]:
    begins = table_begins([value.hash_rows for _, value in inputs_of_kind(spec, BagInput)]).tolist()
    lengths = lookups.bag_offsets.diff().view(len(lookups.events), len(begins))
    bag_of_each = (
        torch.arange(len(begins)).repeat(len(lengths)).repeat_interleave(lengths.flatten())
    )
    return tuple(
        JaggedIds(
            _offsets(lengths[:, bag]), lookups.bag_rows[bag_of_each == bag].to(torch.int64) - begin
        )
        for bag, begin in enumerate(begins)
    )


def _sequences_of(spec: ModelSpec, events: Tensor) -> tuple[SequenceEvents, ...]:
    t5 = spec.encoder.t5
    if t5 is not None:
        ends = len(t5.prefix_tokens) + (t5.eos_token is not None)
        tokens = (events[:, :, 0] != t5.num_tokens).sum(dim=1) - ends
        places = torch.arange(events.shape[1]) - len(t5.prefix_tokens)
        history = events[:, :, 0][(places >= 0) & (places < tokens[:, None])]
        sids = history.view(-1, spec.sid_length) - torch.tensor(t5.token_offsets)
        no_ages = torch.zeros(len(sids), dtype=torch.int64)  # its features have no use for them
        return (SequenceEvents(_offsets(tokens // spec.sid_length), sids, no_ages, ()),)
    layout, zeros = event_rows_of(spec)
    found = []
    for rows in layout:
        own = events[:, rows.places].to(torch.int64)
        live = own[:, :, 0] != zeros
        age, _, *ids = own[live].unbind(dim=1)
        length = spec.sid_length
        found.append(
            SequenceEvents(
                _offsets(live.sum(dim=1)),
                torch.stack(ids[:length], dim=1) - torch.tensor(rows.tokens),
                age - rows.age,
                tuple(each - begin for each, begin in zip(ids[length:], rows.side, strict=False)),
            )
        )
    return tuple(found)


def _offsets(lengths: Tensor) -> Tensor:
    return torch.cat([lengths.new_zeros(1, dtype=torch.int64), lengths.cumsum(0)])
