"""The plain reader of features, from messages to model inputs: C++ is compared with it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from grace.configs.errors import RequestError
from grace.model.definition.inputs import JaggedIds, ModelInputs, SequenceEvents, age_buckets
from grace.model.definition.spec import ModelSpec, SequenceInput
from grace.model.engine.feature_reader import FeatureLookups, model_inputs_of
from grace.proto.retrieval_pb2 import Events, Features, Ids, Numbers, RetrieveRequest

NO_AGE = -1
"""Of an event whose request gave no times."""

_FIELDS = {"dense": "dense", "categorical": "categorical", "bag": "bags", "sequence": "sequences"}
"""Where a request has the inputs of each kind."""


@dataclass(frozen=True, slots=True)
class EncodedEvents:
    """The tokens of each event, its time before the newest or NO_AGE, and its id in each side."""

    sids: list[list[int]]
    ages_ms: list[int]
    side: list[list[int]]  # of each side, those of all events


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """One request's inputs, checked, of each kind in declared order; `ignored` the model lacks."""

    dense: list[list[float]]
    categorical: list[int]
    bags: list[list[int]]
    sequences: list[EncodedEvents]
    ignored: tuple[str, ...]


def encode_inputs(
    spec: ModelSpec, requests: Sequence[Features], batch: int | None = None
) -> ModelInputs:
    """Return the given requests as one batch, which empty requests fill up to `batch`.

    Raises RequestError, which names the field, if the model cannot read a request.
    """
    encoder = InputEncoder(spec)
    encoded = [encoder.encode(request) for request in requests]
    return encoder.batch(encoded, len(requests) if batch is None else batch)


@dataclass(frozen=True)
class InputEncoder:
    spec: ModelSpec

    def encode(self, request: Features) -> EncodedRequest:
        """Raises RequestError, naming the field."""
        dense = []
        for name, numbers in self.spec.dense.items():
            given = np.array(request.dense.get(name, Numbers()).values, np.float32)
            where = f"features.dense.{name}.values"
            for number in given[~np.isfinite(given)]:
                raise RequestError(where, f"{number} is not finite")
            if len(given) not in (0, numbers.size):
                fault = f"{len(given)} values, the model takes {numbers.size}"
                raise RequestError(where, fault)
            default = numbers.default or (0.0,) * numbers.size
            dense.append(given.tolist() or list(default))
        categorical = []
        for name, one in self.spec.categorical.items():
            ids = list(request.categorical.get(name, Ids()).ids) or [one.default]
            where = f"features.categorical.{name}.ids"
            if len(ids) != 1:
                raise RequestError(where, f"{len(ids)} ids, the model takes one")
            _require_below((one.cardinality,), [ids], where)
            categorical += ids
        return EncodedRequest(
            dense=dense,
            categorical=categorical,
            bags=[
                list(request.bags.get(name, Ids()).ids) or list(bag.default)
                for name, bag in self.spec.bags.items()
            ],
            sequences=[
                self._events(declared, request.sequences.get(name, Events()), name)
                for name, declared in self.spec.sequences.items()
            ],
            ignored=tuple(sorted(self._unknown(request))),
        )

    def batch(self, requests: Sequence[EncodedRequest], size: int) -> ModelInputs:
        """Empty requests, all defaults, fill the batch up to `size`."""
        rows = [*requests, *[self.encode(Features())] * (size - len(requests))]
        bags = zip(self.spec.bags.values(), zip(*(r.bags for r in rows), strict=True), strict=True)
        length = self.spec.sid_length
        return ModelInputs(
            batch=size,
            dense=tuple(torch.tensor(x) for x in zip(*(r.dense for r in rows), strict=True)),
            categorical=tuple(
                torch.tensor(ids) for ids in zip(*(r.categorical for r in rows), strict=True)
            ),
            bags=tuple(
                JaggedIds(_offsets(ids), _integers(bag_row(x, bag.hash_rows) for x in chain(*ids)))
                for bag, ids in bags
            ),
            sequences=tuple(
                _join(events, length) for events in zip(*(r.sequences for r in rows), strict=True)
            ),
        )

    def _events(self, spec: SequenceInput, events: Events, name: str) -> EncodedEvents:
        where, length = f"features.sequences.{name}", self.spec.sid_length
        tokens, times = list(events.sids), list(events.timestamps_ms)
        if len(tokens) % length:
            raise RequestError(f"{where}.sids", f"{len(tokens)} tokens, not a multiple of {length}")
        sids = [tokens[at : at + length] for at in range(0, len(tokens), length)]
        _require_below(self.spec.vocab_sizes, sids, f"{where}.sids")
        _require_per_event(times, len(sids), f"{where}.timestamps_ms")
        if min(times, default=0) < 0:
            raise RequestError(f"{where}.timestamps_ms", f"{min(times)} is negative")
        recent = slice(max(0, len(sids) - spec.max_length), None)
        side = []
        for side_name, cardinality in spec.side.items():
            ids = list(events.side.get(side_name, Ids()).ids)
            _require_per_event(ids, len(sids), f"{where}.side.{side_name}.ids")
            one_each = [[each] for each in ids]
            _require_below((cardinality,), one_each, f"{where}.side.{side_name}.ids")
            side.append((ids or [cardinality] * len(sids))[recent])
        times = times[recent]
        ages = [max(times) - each for each in times] or [NO_AGE] * len(sids[recent])
        return EncodedEvents(sids[recent], ages, side)

    def _unknown(self, request: Features) -> Iterator[str]:
        for kind in _FIELDS.values():
            for name in sorted(getattr(request, kind)):
                declared = self.spec.inputs.get(name)
                if declared is None:
                    yield f"{kind}.{name}"
                elif (right := _FIELDS[declared.kind]) != kind:
                    raise RequestError(
                        f"features.{kind}.{name}", f"the model reads it as features.{right}.{name}"
                    )
        for name, events in request.sequences.items():
            sequence = self.spec.inputs.get(name)
            if isinstance(sequence, SequenceInput):
                for side in set(events.side) - sequence.side.keys():
                    yield f"sequences.{name}.side.{side}"


def bag_row(bag_id: int, hash_rows: int) -> int:
    """The table row of an id: SplitMix64's finaliser, modulo the number of rows."""
    last = (1 << 64) - 1
    mixed = bag_id + 0x9E3779B97F4A7C15 & last
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & last
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & last
    return (mixed ^ mixed >> 31) % hash_rows


def _require_below(bounds: Sequence[int], rows: Sequence[Sequence[int]], where: str) -> None:
    """Column c of the rows holds 0 to bounds[c] - 1."""
    for place, bound in enumerate(bounds):
        for value in (row[place] for row in rows if not 0 <= row[place] < bound):
            what = f"token {value} at position {place} of a SID" if len(bounds) > 1 else value
            raise RequestError(where, f"{what} is not one of 0 to {bound - 1}")


def _require_per_event(values: Sequence[int], events: int, where: str) -> None:
    if len(values) not in (0, events):
        raise RequestError(
            where, f"number of values: {len(values)}, of events: {events}; send one for each event"
        )


def _integers(values: Iterable[int]) -> Tensor:
    return torch.tensor([*values], dtype=torch.int64)


def _offsets(rows: Sequence[Sequence[object]]) -> Tensor:
    return torch.from_numpy(np.cumsum([0, *map(len, rows)], dtype=np.int64))


def _join(rows: Sequence[EncodedEvents], sid_length: int) -> SequenceEvents:
    ages = _integers(chain.from_iterable(events.ages_ms for events in rows))
    sids = chain.from_iterable(chain.from_iterable(events.sids for events in rows))
    return SequenceEvents(
        offsets=_offsets([events.sids for events in rows]),
        sids=_integers(sids).view(-1, sid_length),
        age_buckets=torch.from_numpy(age_buckets(ages.numpy())),
        side=tuple(
            _integers(chain.from_iterable(ids))
            for ids in zip(*(events.side for events in rows), strict=True)
        ),
    )


def named_tensors(value: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of a value with its name, also inside dataclasses and tuples."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from named_tensors(item, f"{name}[{i}]")
    elif is_dataclass(value):
        for each in fields(value):
            inner = f"{name}.{each.name}" if name else each.name
            yield from named_tensors(getattr(value, each.name), inner)


def assert_same_inputs(spec: ModelSpec, got: FeatureLookups, expected: ModelInputs) -> None:
    """Require that the rows of a batch stand for these inputs."""
    if spec.encoder.t5 is not None:  # whose features are its tokens alone
        (events,) = expected.sequences
        no_ages = torch.zeros_like(events.age_buckets)
        expected = replace(expected, sequences=(replace(events, age_buckets=no_ages),))
    one, other = dict(named_tensors(model_inputs_of(spec, got))), dict(named_tensors(expected))
    assert one.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def features_message(features: Features) -> bytes:
    return RetrieveRequest(features=features).SerializeToString()
