"""The plain encoder of look-ups, value by value, with which tests compare the product's C++."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grace.model.definition.inputs import age_buckets
from grace.model.definition.spec import ModelSpec
from grace.model.engine.feature_lookups import (
    EventRows,
    FeatureLookups,
    event_rows_of,
    table_begins,
)
from support.plain_inputs import EncodedEvents, EncodedRequest, InputEncoder, bag_rows


@dataclass(frozen=True)
class LookupEncoder:
    spec: ModelSpec

    def batch(self, requests: Sequence[EncodedRequest], size: int) -> FeatureLookups:
        """In the CPU's memory; empty requests, all defaults, fill the batch up to `size`."""
        spec, rows = self.spec, InputEncoder(self.spec).filled_up(requests, size)
        tables = table_begins([x.cardinality for x in spec.categorical.values()])
        hash_rows = [x.hash_rows for x in spec.bags.values()]
        bags = [
            bag_rows(ids, count) + begin
            for row in rows
            for ids, count, begin in zip(row.bags, hash_rows, table_begins(hash_rows), strict=True)
        ]
        return FeatureLookups(
            dense=_tensor([x for row in rows for x in row.dense], np.float32).view(size, -1),
            categorical=_tensor([np.add(row.categorical, tables) for row in rows]).view(size, -1),
            bag_offsets=_tensor([np.cumsum([0, *map(len, bags)])]),
            bag_rows=_tensor(bags),
            events=torch.stack([self._events(row) for row in rows]),
        )

    def _events(self, row: EncodedRequest) -> Tensor:
        """-> [places, ids]"""
        spec, t5 = self.spec, self.spec.encoder.t5
        if t5 is not None:
            (history,) = row.sequences
            end = () if t5.eos_token is None else (t5.eos_token,)
            tokens = (history.sids + np.array(t5.token_offsets)).reshape(-1)
            padding = [t5.num_tokens] * spec.context_tokens
            used = [*t5.prefix_tokens, *tokens, *end, *padding][: spec.context_tokens]
            return _tensor([used]).view(-1, 1)
        layout, zeros = event_rows_of(spec)
        ids = 2 + spec.sid_length + max((len(each.side) for each in layout), default=0)
        places = layout[-1].places.stop if layout else 0
        events = torch.full((places, ids), zeros, dtype=torch.int32)
        for rows, given in zip(layout, row.sequences, strict=True):
            for event, place in enumerate(range(*rows.places.indices(places))[: len(given.sids)]):
                numbers = list(_event(rows, given, event))
                events[place, : len(numbers)] = torch.tensor(numbers)
        return events


def _event(rows: EventRows, given: EncodedEvents, event: int) -> Iterable[int]:
    """Yield ids in the order in which `grace.model.definition.features` adds them."""
    yield rows.age + int(age_buckets(given.ages_ms)[event])
    yield rows.position + len(given.sids) - 1 - event
    yield from given.sids[event] + rows.tokens
    yield from (ids[event] + begin for ids, begin in zip(given.side, rows.side, strict=True))


def _tensor(parts: Sequence[object], dtype: type = np.int32) -> Tensor:
    return torch.from_numpy(np.concatenate([np.empty(0), *parts]).astype(dtype))
