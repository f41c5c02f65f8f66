"""The plain reader of features, from Python values to model inputs: C++ is compared with it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from grace.configs.errors import RequestError
from grace.model.definition.inputs import (
    JaggedIds,
    ModelInputs,
    SequenceEvents,
    age_buckets,
)
from grace.model.definition.spec import (
    CategoricalInput,
    DenseInput,
    ModelSpec,
    SequenceInput,
)
from grace.model.engine.feature_lookups import FeatureLookups, model_inputs_of
from grace.proto.retrieval_pb2 import RetrieveRequest
from support.named_tensors import named_tensors

Int64 = npt.NDArray[np.int64]
Integers: TypeAlias = Sequence[int] | Int64
Float32 = npt.NDArray[np.float32]

NO_AGE = -1
"""Of an event whose request gave no times."""

_LAST_TIME = np.uint64(2**63 - 1)

_FIELDS = {"dense": "dense", "categorical": "categorical", "bag": "bags", "sequence": "sequences"}
"""Where a request has the inputs of each kind."""


@dataclass(frozen=True, slots=True)
class EventSequence:
    """One user's events, oldest first. `sids` is flat: sid_length tokens per event.

    The order is the one given: times do not reorder events.
    """

    sids: Integers
    timestamps_ms: Integers = ()  # one per event, or none at all
    side: Mapping[str, Integers] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RequestFeatures:
    """The features of one request as plain values; what is absent takes its declared default."""

    dense: Mapping[str, Sequence[float]] = field(default_factory=dict)
    categorical: Mapping[str, Integers] = field(default_factory=dict)
    bags: Mapping[str, Integers] = field(default_factory=dict)
    sequences: Mapping[str, EventSequence] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EncodedEvents:
    """
    sids     int64 [n, L]
    ages_ms  int64 [n]      to the newest event; NO_AGE if the request gave no times
    side     int64 [n] each
    """

    sids: Int64
    ages_ms: Int64
    side: tuple[Int64, ...]


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """One request's inputs, checked, of each kind in declared order; `ignored` the model lacks."""

    dense: tuple[Float32, ...]
    categorical: tuple[int, ...]
    bags: tuple[Int64, ...]
    sequences: tuple[EncodedEvents, ...]
    ignored: tuple[str, ...]


def encode_inputs(
    spec: ModelSpec, requests: Sequence[RequestFeatures], batch: int | None = None
) -> ModelInputs:
    """Return the given requests as one batch, which empty requests fill up to `batch`.

    Raises RequestError, which names the field, if the model cannot read a request.
    """
    encoder = InputEncoder(spec)
    encoded = [encoder.encode(request) for request in requests]
    return encoder.batch(encoded, len(requests) if batch is None else batch)


@dataclass(frozen=True)
class InputEncoder:
    """A server encodes each request as it comes, so that a faulty one never fails a batch."""

    spec: ModelSpec

    def encode(self, request: RequestFeatures) -> EncodedRequest:
        """Raises RequestError, naming the field."""
        return EncodedRequest(
            dense=tuple(
                _dense(declared, request.dense.get(name, ()), f"features.dense.{name}.values")
                for name, declared in self.spec.dense.items()
            ),
            categorical=tuple(
                _categorical(
                    declared, request.categorical.get(name, ()), f"features.categorical.{name}.ids"
                )
                for name, declared in self.spec.categorical.items()
            ),
            bags=tuple(
                integers(request.bags[name] if len(request.bags.get(name, ())) else bag.default)
                for name, bag in self.spec.bags.items()
            ),
            sequences=tuple(
                self._events(declared, request.sequences.get(name, _NO_EVENTS), name)
                for name, declared in self.spec.sequences.items()
            ),
            ignored=tuple(sorted(self._unknown(request))),
        )

    def batch(self, requests: Sequence[EncodedRequest], size: int) -> ModelInputs:
        """Empty requests, all defaults, fill the batch up to `size`."""
        empty = self.encode(RequestFeatures())
        rows = [*requests, *[empty] * (size - len(requests))]
        bags = zip(self.spec.bags.values(), zip(*(r.bags for r in rows), strict=True), strict=True)
        return ModelInputs(
            batch=size,
            dense=tuple(
                torch.from_numpy(np.stack(column))
                for column in zip(*(r.dense for r in rows), strict=True)
            ),
            categorical=tuple(
                torch.tensor(column) for column in zip(*(r.categorical for r in rows), strict=True)
            ),
            bags=tuple(
                JaggedIds(
                    _offsets(column),
                    torch.from_numpy(bag_rows(np.concatenate(column), bag.hash_rows)),
                )
                for bag, column in bags
            ),
            sequences=tuple(
                _join(column) for column in zip(*(r.sequences for r in rows), strict=True)
            ),
        )

    def _events(self, spec: SequenceInput, events: EventSequence, name: str) -> EncodedEvents:
        field, length = f"features.sequences.{name}", self.spec.sid_length
        tokens = integers(events.sids)
        if len(tokens) % length:
            raise RequestError(f"{field}.sids", f"{len(tokens)} tokens, not a multiple of {length}")
        sids = tokens.reshape(-1, length)
        integers_below(self.spec.vocab_sizes, sids, f"{field}.sids")
        times = _per_event(events.timestamps_ms, len(sids), f"{field}.timestamps_ms")
        # Seen as unsigned, a negative number is larger than any time.
        if times.view(np.uint64).max(initial=0) > _LAST_TIME:
            raise RequestError(f"{field}.timestamps_ms", f"{times.min()} is negative")
        recent = slice(max(0, len(sids) - spec.max_length), None)
        sids, times = sids[recent], times[recent]
        side = []
        for side_name, cardinality in spec.side.items():
            where = f"{field}.side.{side_name}.ids"
            ids = _per_event(events.side.get(side_name, ()), len(tokens) // length, where)
            integers_below((cardinality,), ids[:, None], where)
            side.append(ids[recent] if len(ids) else np.full(len(sids), cardinality))
        ages = times.max() - times if len(times) else np.full(len(sids), NO_AGE)
        return EncodedEvents(sids, ages, tuple(side))

    def _unknown(self, request: RequestFeatures) -> Iterable[str]:
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
                for side in events.side.keys() - sequence.side.keys():
                    yield f"sequences.{name}.side.{side}"


_NO_EVENTS = EventSequence(())


def bag_rows(ids: Int64, hash_rows: int | npt.NDArray[np.uint64]) -> Int64:
    """The table row of each id: SplitMix64's finaliser, modulo the number of rows, which may be
    another for each."""
    mixed = ids.view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed % np.uint64(hash_rows)).view(np.int64)


def integers(values: Integers) -> Int64:
    return np.array(values, np.int64)


def integers_below(bounds: Sequence[int], values: Int64, field: str) -> None:
    """Column c of `values` holds 0 to bounds[c] - 1.   [n, len(bounds)]"""
    for place, bound in enumerate(bounds):
        for value in values[:, place][(values[:, place] < 0) | (values[:, place] >= bound)]:
            what = f"token {value} at position {place} of a SID" if len(bounds) > 1 else value
            raise RequestError(field, f"{what} is not one of 0 to {bound - 1}")


def _dense(spec: DenseInput, values: Sequence[float], field: str) -> Float32:
    if not len(values):
        values = spec.default or (0.0,) * spec.size
    numbers = np.array(values, np.float32)
    for number in numbers[~np.isfinite(numbers)]:
        raise RequestError(field, f"{number} is not finite")
    if len(numbers) != spec.size:
        raise RequestError(field, f"{len(numbers)} values, the model takes {spec.size}")
    return numbers


def _categorical(spec: CategoricalInput, values: Integers, field: str) -> int:
    if len(values) == 0:
        return spec.default
    ids = integers(values)
    if len(ids) != 1:
        raise RequestError(field, f"{len(ids)} ids, the model takes one")
    (chosen,) = ids.tolist()
    if not 0 <= chosen < spec.cardinality:
        raise RequestError(field, f"{chosen} is not one of 0 to {spec.cardinality - 1}")
    return int(chosen)


def _per_event(values: Integers, events: int, field: str) -> Int64:
    """One for each event, or none at all."""
    numbers = integers(values)
    if len(numbers) not in (0, events):
        raise RequestError(
            field, f"number of values: {len(numbers)}, of events: {events}; send one for each event"
        )
    return numbers


def _offsets(rows: Sequence[npt.NDArray[np.generic]]) -> Tensor:
    return torch.from_numpy(np.cumsum([0, *map(len, rows)], dtype=np.int64))


def _join(rows: Sequence[EncodedEvents]) -> SequenceEvents:
    return SequenceEvents(
        offsets=_offsets([events.sids for events in rows]),
        sids=torch.from_numpy(np.concatenate([events.sids for events in rows])),
        age_buckets=torch.from_numpy(
            age_buckets(np.concatenate([events.ages_ms for events in rows]))
        ),
        side=tuple(
            torch.from_numpy(np.concatenate(column))
            for column in zip(*(events.side for events in rows), strict=True)
        ),
    )


def assert_same_inputs(spec: ModelSpec, got: FeatureLookups, expected: ModelInputs) -> None:
    """Require that the rows of a batch stand for these inputs."""
    if spec.encoder.t5 is not None:  # whose features are its tokens alone
        (events,) = expected.sequences
        no_ages = torch.zeros_like(events.age_buckets)
        expected = replace(expected, sequences=(replace(events, age_buckets=no_ages),))
    one, other = dict(named_tensors(model_inputs_of(spec, got))), dict(named_tensors(expected))
    assert one.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def features_message(features: RequestFeatures) -> bytes:
    """A grace.v1.RetrieveRequest of these features."""
    request = RetrieveRequest()
    message = request.features
    message.SetInParent()
    for name, numbers in features.dense.items():
        message.dense[name].values.extend(numbers)
    for name, ids in features.categorical.items():
        message.categorical[name].ids.extend(ids)
    for name, ids in features.bags.items():
        message.bags[name].ids.extend(ids)
    for name, given in features.sequences.items():
        events = message.sequences[name]
        events.sids.extend(given.sids)
        events.timestamps_ms.extend(given.timestamps_ms)
        for side, ids in given.side.items():
            events.side[side].ids.extend(ids)
    return request.SerializeToString()
