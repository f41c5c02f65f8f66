"""Features read from bytes: which are refused, and which rows the others become.

tests/server/test_wire_readers.py compares both readers on odd bytes.
"""

import math
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grace.configs.errors import ConfigError, RequestError
from grace.model.definition.inputs import (
    AGE_BUCKETS,
    ModelInputs,
    age_buckets,
)
from grace.model.definition.spec import BagInput, ModelSpec, SequenceInput
from grace.model.engine.feature_reader import FeatureReader, read_inputs
from support.encoder_cases import INTERFORMER, random_features
from support.plain_inputs import (
    EventSequence,
    InputEncoder,
    RequestFeatures,
    assert_same_inputs,
    features_message,
)
from support.plain_requests import plain_features
from support.strategies import examples
from support.strict_wire import REQUEST, MalformedError, UnknownFieldError, decode
from support.wire_cases import WireWriter, feature_values, random_spec


def clicks(sids: Any = (), times: Any = (), **side: Any) -> RequestFeatures:
    return RequestFeatures(sequences={"clicks": EventSequence(sids, times, side)})


def inputs_of(*requests: RequestFeatures, spec: ModelSpec = INTERFORMER) -> ModelInputs:
    return read_inputs(spec, [features_message(each) for each in requests], len(requests))


FAULTS = {
    "hour.values: 2 values, the model takes 1": RequestFeatures(dense={"hour": [1, 2]}),
    "hour.values: nan is not finite": RequestFeatures(dense={"hour": [math.nan]}),
    "rates.values: -inf is not finite": RequestFeatures(dense={"rates": [0, -math.inf, math.inf]}),
    "device.ids: 2 ids, the model takes one": RequestFeatures(categorical={"device": [1, 2]}),
    "device.ids: 4 is not one of 0 to 3": RequestFeatures(categorical={"device": [4]}),
    "device.ids: -1 is not one of 0 to 3": RequestFeatures(categorical={"device": [-1]}),
    "clicks.sids: 7 tokens, not a multiple of 3": clicks([1] * 7),
    "clicks.sids: token 5 at position 1 of a SID is not one of 0 to 4": clicks([6, 4, 10, 0, 5, 0]),
    "clicks.sids: token 4294967295 at position 0": clicks([2**32 - 1, 0, 0]),
    "clicks.sids: token 99 at position 0": clicks([99, 0, 0] + [1] * 27),  # an event not used
    "clicks.timestamps_ms: number of values: 1, of events: 2": clicks([0] * 6, [5]),
    "clicks.timestamps_ms: -5 is negative": clicks([0] * 6, [1, -5]),
    "clicks.side.action.ids: number of values: 3, of events: 2": clicks([0] * 6, action=[1, 1, 1]),
    "clicks.side.action.ids: 3 is not one of 0 to 2": clicks([0] * 6, action=[1, 3]),
    "features.bags.hour: the model reads it as features.dense.hour": RequestFeatures(
        bags={"hour": [1]}
    ),
}


@pytest.mark.parametrize(("message", "request_"), FAULTS.items(), ids=FAULTS)
def test_a_fault_is_reported_with_its_field(message: str, request_: RequestFeatures) -> None:
    with pytest.raises(RequestError) as caught:
        inputs_of(RequestFeatures(), request_)
    assert str(caught.value).startswith("features.")
    assert message in str(caught.value)


def test_any_number_of_names_the_model_lacks_is_listed() -> None:
    names = {f"{'x' * 100}{number}": [1] for number in range(3000)}
    bags: list[dict[str, list[int]]] = [names, {"mood": []}, {}]
    messages = [features_message(RequestFeatures(bags=each)) for each in bags]
    got = FeatureReader(INTERFORMER).read(messages, 3)
    assert got.ignored == (tuple(sorted(f"bags.{name}" for name in names)), ("bags.mood",), ())


def test_no_result_depends_on_the_number_of_threads() -> None:
    rng = np.random.default_rng(3)
    messages = [features_message(random_features(INTERFORMER, rng)) for _ in range(57)]
    faulty = features_message(RequestFeatures(bags={"mood": [1]}, dense={"hour": [1, 2]}))
    strange = features_message(RequestFeatures(bags={"mood": [1], "place": []}))
    messages[5:8] = [faulty, strange, b"\xff"]
    one, three = (FeatureReader(INTERFORMER, threads).read(messages, 64) for threads in (1, 3))
    assert all(map(torch.equal, three.inputs.tensors(), one.inputs.tensors()))
    assert list(map(str, three.faults)) == list(map(str, one.faults))
    assert three.ignored == one.ignored
    assert three.ignored[6] == ("bags.mood", "bags.place")


def plain_bucket(age: int) -> int:
    """1 + floor(log2(1 + age)) is how many bits 1 + age has."""
    return min((1 + age).bit_length(), AGE_BUCKETS - 1)


POWERS = [max(0, 2**power - low) for power in range(44) for low in (2, 1)]


@example(POWERS)
@settings(max_examples=30)
@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=9))
def test_age_buckets_are_whole_logarithms_of_the_time_to_the_newest_event(ages: list[int]) -> None:
    assert age_buckets(np.array(ages)).tolist() == [plain_bucket(age) for age in ages]
    newest = max(ages)
    spec = replace(INTERFORMER, inputs={"clicks": SequenceInput(max_length=len(ages))})
    times = [newest - age for age in ages]
    (events,) = inputs_of(clicks([0] * 3 * len(ages), times), spec=spec).sequences
    assert events.age_buckets.tolist() == [plain_bucket(age - min(ages)) for age in ages]


def test_bag_rows_never_change() -> None:
    """Trained tables depend on the rows, which are SplitMix64 modulo their number."""
    spec = replace(INTERFORMER, inputs={"pages": BagInput(1_000_000)})
    (bag,) = inputs_of(RequestFeatures(bags={"pages": [0, 1, -1, 2**62]}), spec=spec).bags
    assert bag.values.tolist() == [607535, 822465, 443936, 772075]


def test_the_rows_of_all_bags_have_numbers_of_32_bits() -> None:
    request = features_message(RequestFeatures(bags={"ads": [11]}))
    most = replace(INTERFORMER, inputs={"pages": BagInput(2**31 - 8), "ads": BagInput(7)})
    (row,) = FeatureReader(most).read([request], 1).inputs.bag_rows
    assert 2**31 - 8 <= int(row) < 2**31 - 1
    more = replace(INTERFORMER, inputs={"pages": BagInput(2**31 - 8), "ads": BagInput(8)})
    with pytest.raises(ConfigError, match="2147483648 rows together, at most 2147483647: take"):
        FeatureReader(more)


@examples(30)
@given(st.integers(0, 2**32))
def test_a_batch_is_read_as_the_plain_way_reads_each_request(seed: int) -> None:
    """A request with a fault has the row of an empty one, and the others are as without it."""
    random = Random(seed)
    spec = random_spec(random)
    plain = InputEncoder(spec)
    flaws = random.choice((0.0, 0.0, 0.02))
    given = [feature_values(random, spec, wrong=10 * flaws) for _ in range(random.randint(0, 5))]
    writer = WireWriter(random, flaws)
    messages = [writer.message({"features": each}, REQUEST) for each in given]
    messages = [each for each in messages if flaws == 0.0 or is_well_formed(each)]
    got = FeatureReader(spec).read(messages, 5)
    rows = []
    for message, fault, ignored in zip(messages, got.faults, got.ignored, strict=True):
        try:
            rows.append(plain.encode(plain_features(message)))
            assert fault is None
        except RequestError as error:
            rows.append(plain.encode(RequestFeatures()))
            assert str(fault) == str(error)
        assert ignored == rows[-1].ignored
    assert_same_inputs(spec, got.inputs, plain.batch(rows, 5))


def is_well_formed(message: bytes) -> bool:
    try:
        decode(message, REQUEST)
    except (MalformedError, UnknownFieldError):
        return False
    return True


def test_a_batch_that_cannot_hold_its_requests_is_our_mistake() -> None:
    with pytest.raises(ValueError, match="a batch of 2 cannot hold 3 requests"):
        FeatureReader(INTERFORMER).read([b""] * 3, 2)
