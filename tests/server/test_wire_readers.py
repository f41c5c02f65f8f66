"""C++ and protobuf read the same requests, and make the same of them.

FUZZ_SECONDS and FUZZ_SEED ask for more, and for others; `make soak` takes minutes.
"""

import os
from collections import Counter
from dataclasses import dataclass
from random import Random
from time import perf_counter

import numpy as np
import pytest
import torch

from grace.configs.errors import RequestError
from grace.configs.serving import LimitsConfig
from grace.index.targeting.schema import Attribute, TargetingSchema, TargetSet
from grace.index.users.user_rows import UserEncoder
from grace.index.users.values import InternedValues
from grace.index.users.wire_user import WireUser
from grace.model.definition.input_encoding import EncodedRequest, InputEncoder
from grace.model.definition.inputs import RequestFeatures
from grace.model.definition.spec import ModelSpec
from grace.model.engine.feature_lookups import LookupEncoder
from grace.model.engine.native_lookups import NativeLookups
from grace.model.engine.wire_features import WireFeatures
from grace.proto.retrieval_pb2 import Features, RetrieveRequest
from grace.server.errors import InvalidRequest
from grace.server.messages import Retrieval
from grace.server.stages import requests
from grace.server.stages.requests import read_request
from support.encoder_cases import INTERFORMER
from support.hostile_wire import HostileWire
from support.pipeline_cases import GENERATION
from support.wire_cases import random_spec

SECONDS = float(os.environ.get("FUZZ_SECONDS", "3"))
SOAK_SECONDS = float(os.environ.get("FUZZ_SECONDS", "120"))
SEED = int(os.environ.get("FUZZ_SEED", "7"))
LIMITS = LimitsConfig(
    names=9, values_per_name=70, value_bytes=128, user_values=14, events=40, exclude_ads=2
)
SCHEMA = TargetingSchema(
    (
        Attribute("country", ("US", "NO", "é")),
        Attribute("gender", ("f", "m", "?"), missing="?"),
    ),
    (TargetSet("location", 256, 4, 3), TargetSet("audience", 64, 2, 64)),
    hash_seed=7,
)
ENCODER = UserEncoder(
    SCHEMA, (InternedValues.of(["US", "x", "f"]), InternedValues.of(["NO", "a\0b"]))
)


@dataclass(frozen=True)
class Readers:
    """Of one model's features."""

    native: NativeLookups
    plain: InputEncoder
    lookups: LookupEncoder
    nothing: EncodedRequest

    @staticmethod
    def of(spec: ModelSpec) -> "Readers":
        plain = InputEncoder(spec)
        nothing = plain.encode(RequestFeatures())
        return Readers(NativeLookups(spec), plain, LookupEncoder(spec), nothing)


def read(message: bytes) -> Retrieval | tuple[str, str]:
    """What came of it, or why nothing did."""
    try:
        return read_request(message, LIMITS, GENERATION)
    except InvalidRequest as error:
        return error.reason, error.text


def read_by_protobuf(message: bytes) -> Retrieval | tuple[str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests, "split_features", lambda message, limits: None)
        return read(message)


def assert_same_retrieval(got: Retrieval, expected: Retrieval, message: bytes) -> None:
    whole = RetrieveRequest.FromString(message)
    whole.DiscardUnknownFields()
    for one in (got, expected):
        features = Features.FromString(one.features.content)
        features.DiscardUnknownFields()
        assert features == whole.features
        assert one.user == {name: list(given.values) for name, given in whole.user.items()}
    for name in ("request_id", "max_ads", "profile", "priority", "include_sids"):
        assert getattr(got, name) == getattr(expected, name)
    assert got.exclude_ads.tolist() == expected.exclude_ads.tolist()


def assert_same_look_ups(readers: Readers, features: WireFeatures) -> bool:
    """Whether C++ has understood them."""
    try:
        plain = readers.plain.encode(features.read())
    except RequestError:
        plain = None
    got = readers.native.read([features], 2)
    (understood,), (ignored,) = got.understood, got.ignored
    if understood:
        assert plain is not None
        assert ignored == plain.ignored
    row = plain if understood and plain is not None else readers.nothing
    expected = readers.lookups.batch([row], 2)
    for one, other in zip(got.inputs.tensors(), expected.tensors(), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    return understood


def assert_same_rows(user: WireUser) -> bool:
    """Whether C++ has understood it."""
    try:
        plain = ENCODER.encode([user.read(), {}])
    except RequestError:
        plain = None
    got = ENCODER.direct([user], 2)
    assert got is not None
    (understood,) = got.understood
    if understood:
        assert plain is not None
    expected = plain if understood and plain is not None else ENCODER.encode([{}, {}])
    assert got.rows.ignored == expected.ignored
    np.testing.assert_array_equal(got.rows.bitmask, expected.bitmask)
    for one, other in zip(got.rows.sets, expected.sets, strict=True):
        for name in ("offsets", "hashes", "value_offsets", "value_ids"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    return understood


def fuzz(seconds: float, seed: int) -> Counter[str]:
    """How often what happened."""
    random, seen = Random(seed), Counter[str]()
    end = perf_counter() + seconds
    while perf_counter() < end:
        spec = random.choice((INTERFORMER, random_spec(random)))
        readers, wire = Readers.of(spec), HostileWire(random, spec, SCHEMA)
        for _ in range(63):
            message = wire.request()
            got, expected = read(message), read_by_protobuf(message)
            if isinstance(got, Retrieval) and isinstance(expected, Retrieval):
                assert_same_retrieval(got, expected, message)
                seen["features understood"] += assert_same_look_ups(readers, got.features)
                seen["users understood"] += assert_same_rows(got.user)
                seen["taken"] += 1
            else:
                assert got == expected, message.hex()
                seen[got[0] if isinstance(got, tuple) else ""] += 1
    return seen


def assert_read_alike(seconds: float) -> None:
    seen = fuzz(seconds, SEED)
    least = sum(seen.values()) / 50
    for outcome in (
        *("taken", "features understood", "users understood"),
        *("malformed", "invalid_field"),
    ):
        assert seen[outcome] > least, seen


def test_hostile_bytes_are_read_alike() -> None:
    assert_read_alike(SECONDS)


@pytest.mark.soak
def test_hostile_bytes_are_read_alike_for_minutes() -> None:
    assert_read_alike(SOAK_SECONDS)
