"""Requests as callers send them, with every declared feature at its longest."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from index.users import UserAttributes
from model.spec import BagInput, CategoricalInput, DenseInput, ModelSpec, SequenceInput

__all__ = ["full_request", "full_requests"]

IDS_PER_BAG = 20
MAX_ADS = 500

_DAY_MS = 86_400_000


def full_requests(
    spec: ModelSpec, users: Iterable[UserAttributes], seed: int
) -> list[dict[str, Any]]:
    """One per user, in the JSON form of the Retrieve API."""
    rng = np.random.default_rng(seed)
    return [full_request(spec, f"r{number:05}", user, rng) for number, user in enumerate(users)]


def full_request(
    spec: ModelSpec, request_id: str, user: Mapping[str, Sequence[str]], rng: np.random.Generator
) -> dict[str, Any]:
    features: dict[str, dict[str, Any]] = {
        "dense": {},
        "categorical": {},
        "bags": {},
        "sequences": {},
    }
    for name, value in spec.inputs.items():
        if isinstance(value, DenseInput):
            numbers = rng.uniform(0.0, 100.0, value.size).round(3)
            features["dense"][name] = {"values": numbers.tolist()}
        elif isinstance(value, CategoricalInput):
            features["categorical"][name] = {"ids": [str(rng.integers(value.cardinality))]}
        elif isinstance(value, BagInput):
            ids = rng.integers(1 << 62, size=IDS_PER_BAG)
            features["bags"][name] = {"ids": [str(each) for each in ids]}
        else:
            features["sequences"][name] = _events(spec, value, rng)
    return {
        "request_id": request_id,
        "sid_space": spec.sid_space,
        "user": {name: {"values": list(values)} for name, values in user.items()},
        "features": features,
        "max_ads": MAX_ADS,
    }


def _events(spec: ModelSpec, value: SequenceInput, rng: np.random.Generator) -> dict[str, Any]:
    events = value.max_length
    sids = rng.integers(spec.vocab_sizes, size=(events, spec.sid_length))
    times = np.sort(rng.integers(90 * _DAY_MS, size=events))
    return {
        "sids": sids.flatten().tolist(),
        "timestamps_ms": [str(time) for time in times],
        "side": {
            name: {"ids": [str(each) for each in rng.integers(cardinality, size=events)]}
            for name, cardinality in value.side.items()
        },
    }
