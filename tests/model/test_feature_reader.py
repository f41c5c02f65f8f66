"""Features read from bytes: batches, threads, and numbers that trained models depend on.

tests/server/test_wire_readers.py compares what is read and refused with the plain reader.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grace.configs.errors import ConfigError
from grace.model.definition.inputs import AGE_BUCKETS, ModelInputs, age_buckets
from grace.model.definition.spec import BagInput, ModelSpec, SequenceInput
from grace.model.engine.feature_reader import FeatureReader, read_inputs
from grace.proto.retrieval_pb2 import Events, Features, Ids
from support.encoder_cases import INTERFORMER, random_features
from support.plain_inputs import assert_same_inputs, encode_inputs, features_message, named_tensors


def bags(**given: Sequence[int]) -> Features:
    return Features(bags={name: Ids(ids=ids) for name, ids in given.items()})


def inputs_of(*requests: Features, spec: ModelSpec = INTERFORMER) -> ModelInputs:
    return read_inputs(spec, [features_message(each) for each in requests], len(requests))


def test_any_number_of_names_the_model_lacks_is_listed() -> None:
    names = {f"{'x' * 100}{number}": [1] for number in range(3000)}
    messages = [features_message(each) for each in (bags(**names), bags(mood=[]), bags())]
    got = FeatureReader(INTERFORMER).read(messages, 3)
    assert got.ignored == (tuple(sorted(f"bags.{name}" for name in names)), ("bags.mood",), ())


def test_a_batch_is_read_alike_on_any_number_of_threads_and_a_fault_empties_its_row_alone() -> None:
    rng = np.random.default_rng(3)
    requests = [random_features(INTERFORMER, rng) for _ in range(57)]
    strange, faulty = bags(mood=[1], place=[]), bags(mood=[1])
    faulty.dense["hour"].values.extend([1, 2])
    messages = list(map(features_message, [*requests[:5], faulty, strange, *requests[8:]]))
    messages.insert(7, b"\xff")
    one, three = (FeatureReader(INTERFORMER, threads).read(messages, 64) for threads in (1, 3))
    tensors = [[tensor for _, tensor in named_tensors(each.inputs)] for each in (one, three)]
    assert all(map(torch.equal, *tensors))
    assert list(map(str, three.faults)) == list(map(str, one.faults))
    assert three.ignored == one.ignored
    assert three.ignored[6] == ("bags.mood", "bags.place")
    requests[5:8] = [Features()] * 3
    assert_same_inputs(INTERFORMER, three.inputs, encode_inputs(INTERFORMER, requests, 64))
    assert [at for at, fault in enumerate(three.faults) if fault is not None] == [5, 7]


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
    clicks = Events(sids=[0] * 3 * len(ages), timestamps_ms=times)
    (events,) = inputs_of(Features(sequences={"clicks": clicks}), spec=spec).sequences
    assert events.age_buckets.tolist() == [plain_bucket(age - min(ages)) for age in ages]


def test_bag_rows_never_change() -> None:
    """Trained tables depend on the rows, which are SplitMix64 modulo their number."""
    spec = replace(INTERFORMER, inputs={"pages": BagInput(1_000_000)})
    (bag,) = inputs_of(bags(pages=[0, 1, -1, 2**62]), spec=spec).bags
    assert bag.values.tolist() == [607535, 822465, 443936, 772075]


def test_the_rows_of_all_bags_have_numbers_of_32_bits() -> None:
    request = features_message(bags(ads=[11]))
    most = replace(INTERFORMER, inputs={"pages": BagInput(2**31 - 8), "ads": BagInput(7)})
    (row,) = FeatureReader(most).read([request], 1).inputs.bag_rows
    assert 2**31 - 8 <= int(row) < 2**31 - 1
    more = replace(INTERFORMER, inputs={"pages": BagInput(2**31 - 8), "ads": BagInput(8)})
    with pytest.raises(ConfigError, match="2147483648 rows together, at most 2147483647: take"):
        FeatureReader(more)
