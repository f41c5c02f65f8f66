"""A batch's inputs as row numbers of tables. C++ makes them from requests.

One table holds all tables of a kind, and every id is the number of a row there. So a device looks
up all inputs of a kind at once. Every shape depends on the batch size alone, except that of the
bags' ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grace.configs.errors import ConfigError
from grace.model.definition.inputs import AGE_BUCKETS, JaggedIds, ModelInputs, SequenceEvents
from grace.model.definition.spec import ModelSpec

MOST_ROWS = 2**31 - 1
"""int32 numbers the rows of all tables of a kind."""


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
    """Return the rows of each sequence of an InterFormer, and the row of zeros after all others."""
    row, place, found = 0, 0, []
    length, widest = len(spec.vocab_sizes), max(spec.vocab_sizes)
    for sequence in spec.sequences.values():
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
    _require_numbered(row)
    return tuple(found), row


def squash(numbers: npt.NDArray[np.float32]) -> None:
    """Replace each number by sign(x) log(1 + |x|)."""
    np.copysign(np.log1p(np.abs(numbers)), numbers, out=numbers)


def table_begins(sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the first row of each table, if tables of these sizes follow each other."""
    _require_numbered(sum(sizes))
    return np.cumsum([0, *sizes], dtype=np.int64)[: len(sizes)]


def _require_numbered(rows: int) -> None:
    if rows > MOST_ROWS:
        raise ConfigError(
            f"inputs: tables of one kind have {rows} rows together, at most {MOST_ROWS}: take a "
            "model of smaller tables"
        )


def model_inputs_of(spec: ModelSpec, lookups: FeatureLookups) -> ModelInputs:
    """Return the inputs that these rows stand for: every id is again a row of its input's table."""
    sizes = [each.size for each in spec.dense.values()]
    begins = table_begins([each.cardinality for each in spec.categorical.values()])
    return ModelInputs(
        batch=len(lookups.events),
        dense=tuple(lookups.dense.split_with_sizes(sizes, dim=1)) if sizes else (),
        categorical=tuple((lookups.categorical - torch.from_numpy(begins)).unbind(dim=1)),
        bags=_bags_of(spec, lookups),
        sequences=_sequences_of(spec, lookups.events),
    )


def _bags_of(spec: ModelSpec, lookups: FeatureLookups) -> tuple[JaggedIds, ...]:
    begins = table_begins([each.hash_rows for each in spec.bags.values()]).tolist()
    lengths = lookups.bag_offsets.diff().view(len(lookups.events), len(begins))
    bag_of_each = torch.arange(len(begins)).repeat(len(lengths))
    bag_of_each = bag_of_each.repeat_interleave(lengths.flatten())
    return tuple(
        JaggedIds(_offsets(lengths[:, bag]), lookups.bag_rows[bag_of_each == bag].long() - begin)
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
    return tuple(_sequence_of(rows, events[:, rows.places].long(), zeros) for rows in layout)


def _sequence_of(rows: EventRows, events: Tensor, zeros: int) -> SequenceEvents:
    live = events[:, :, 0] != zeros
    age, _, *ids = events[live].unbind(dim=1)
    tokens, sides = ids[: len(rows.tokens)], ids[len(rows.tokens) :]
    return SequenceEvents(
        offsets=_offsets(live.sum(dim=1)),
        sids=torch.stack(tokens, dim=1) - torch.tensor(rows.tokens),
        age_buckets=age - rows.age,
        side=tuple(each - begin for each, begin in zip(sides, rows.side, strict=False)),
    )


def _offsets(lengths: Tensor) -> Tensor:
    return torch.cat([lengths.new_zeros(1, dtype=torch.int64), lengths.cumsum(0)])
