"""Features read from bytes: batches, threads, and numbers that trained models depend on.

tests/server/test_wire_readers.py compares what is read and refused with the plain reader.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grace.configs.errors import ConfigError, RequestError
from grace.model.definition.causal_spec import CausalModelSpec
from grace.model.definition.inputs import ModelInputs
from grace.model.definition.spec import BagInput, ModelSpec, SequenceInput
from grace.model.engine.feature_reader import FeatureReader, read_inputs
from grace.proto.retrieval_pb2 import Events, Features, Ids, RetrieveRequest
from support.causal_cases import PROMPT, causal_spec, random_causal_spec
from support.encoder_cases import INTERFORMER, random_features
from support.plain_inputs import (
    assert_same_inputs,
    encode_inputs,
    features_message,
    named_tensors,
    plain_bucket,
)
from support.strict_wire import REQUEST
from support.wire_cases import WireWriter, feature_values


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


PREFIX, SUFFIX = [40, 2], [9]
EVENTS = [[41, 26, 60, 28, 42, 43], [41, 20, 3, 27, 42, 43], [41, 21, 5, 37, 42, 43]]
SIDS = [6, 1, 1, 0, 0, 0, 1, 4, 10]


def prompt_of(
    spec: CausalModelSpec, ids: Sequence[int] = (), sids: Sequence[int] = ()
) -> list[int]:
    """Return the prompt of a request with these tokens and this history."""
    request = Features(tokens={"prompt": Ids(ids=ids)}, sequences={"clicks": Events(sids=sids)})
    (prompts,) = inputs_of(request, spec=spec).bags
    return prompts.values.tolist()


def test_a_prompt_is_its_own_tokens_or_the_newest_events_between_prefix_and_suffix() -> None:
    spec, ids = causal_spec(), [60, 0, 60]
    assert prompt_of(spec) == [*PREFIX, *SUFFIX]
    assert prompt_of(spec, sids=SIDS[:3]) == [*PREFIX, *EVENTS[0], *SUFFIX]
    assert prompt_of(spec, sids=SIDS) == [*PREFIX, *EVENTS[1], *EVENTS[2], *SUFFIX]
    assert prompt_of(spec, ids=ids) == ids
    assert prompt_of(spec, ids=[7] * 17) == [7] * 17
    few = replace(spec, inputs={"clicks": SequenceInput(max_length=1)})
    assert prompt_of(few, sids=SIDS) == [*PREFIX, *EVENTS[2], *SUFFIX]
    bare = causal_spec(inputs={}, prompt=replace(PROMPT, history=None))
    assert prompt_of(bare, sids=SIDS) == [*PREFIX, *SUFFIX]


def test_prompts_of_random_models_are_read_or_refused_alike_on_any_number_of_threads() -> None:
    random, faults = Random(5), list[str]()
    for number in range(40):
        spec = random_causal_spec(random)
        values = [{"features": feature_values(random, spec, number % 2 / 3)} for _ in range(23)]
        messages = [WireWriter(random).message(each, REQUEST) for each in values]
        requests = [RetrieveRequest.FromString(message).features for message in messages]
        read = FeatureReader(spec, threads=1 + number % 3).read(messages, 24)
        for at, fault in enumerate(read.faults):
            if fault is not None:
                with pytest.raises(RequestError, match=re.escape(str(fault))):
                    encode_inputs(spec, [requests[at]])
                requests[at] = Features()
                faults.append(str(fault))
        assert_same_inputs(spec, read.inputs, encode_inputs(spec, requests, 24))
    for words in ("ids, the model reads at most", "is not within 0 to", "send one of them"):
        assert sum(words in fault for fault in faults) > 3, words


def test_a_model_whose_prompts_cannot_be_made_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^inputs\.prompt: requests send prompts by this name"):
        causal_spec(inputs={"prompt": SequenceInput(9)}, prompt=replace(PROMPT, history="prompt"))
    with pytest.raises(ConfigError, match=r"^prompt\.max_tokens: 8, but no event of the history"):
        causal_spec(prompt=replace(PROMPT, max_tokens=8))


POWERS = [max(0, 2**power - low) for power in range(44) for low in (2, 1)]


@example(POWERS)
@settings(max_examples=30)
@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=9))
def test_age_buckets_are_whole_logarithms_of_the_time_to_the_newest_event(ages: list[int]) -> None:
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
