"""Requests as callers send them, with every declared feature at its longest."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from grace.index.users.user_rows import UserAttributes
from grace.model.definition.spec import (
    BagInput,
    CategoricalInput,
    DenseInput,
    ModelSpec,
    SequenceInput,
)
from grace.proto.retrieval_pb2 import Events, Features, RetrieveRequest

__all__ = ["full_request", "full_requests"]

IDS_PER_BAG = 20
MAX_ADS = 500

_DAY_MS = 86_400_000


def full_requests(
    spec: ModelSpec, users: Iterable[UserAttributes], seed: int
) -> list[RetrieveRequest]:
    """One per user."""
    rng = np.random.default_rng(seed)
    return [full_request(spec, f"r{number:05}", user, rng) for number, user in enumerate(users)]


def full_request(
    spec: ModelSpec, request_id: str, user: Mapping[str, Sequence[str]], rng: np.random.Generator
) -> RetrieveRequest:
    request = RetrieveRequest(
        request_id=request_id,
        sid_space=spec.sid_space,
        features=_features(spec, rng),
        max_ads=MAX_ADS,
    )
    for name, values in user.items():
        request.user[name].values.extend(values)
    return request


def _features(spec: ModelSpec, rng: np.random.Generator) -> Features:
    features = Features()
    for name, value in spec.inputs.items():
        if isinstance(value, DenseInput):
            numbers = rng.uniform(0.0, 100.0, value.size).round(3)
            features.dense[name].values.extend(numbers.tolist())
        elif isinstance(value, CategoricalInput):
            features.categorical[name].ids.append(int(rng.integers(value.cardinality)))
        elif isinstance(value, BagInput):
            features.bags[name].ids.extend(rng.integers(1 << 62, size=IDS_PER_BAG).tolist())
        else:
            features.sequences[name].CopyFrom(_events(spec, value, rng))
    return features


def _events(spec: ModelSpec, value: SequenceInput, rng: np.random.Generator) -> Events:
    events = value.max_length
    sids = rng.integers(spec.vocab_sizes, size=(events, spec.sid_length))
    times = np.sort(rng.integers(90 * _DAY_MS, size=events))
    message = Events(sids=sids.flatten().tolist(), timestamps_ms=times.tolist())
    for name, cardinality in value.side.items():
        message.side[name].ids.extend(rng.integers(cardinality, size=events).tolist())
    return message
