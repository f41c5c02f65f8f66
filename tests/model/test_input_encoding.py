"""Requests to inputs: what is refused, what stands in for what is missing, what a batch holds."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.errors import RequestError
from grace.model.definition.features_json import features_of_json
from grace.model.definition.inputs import AGE_BUCKETS, age_buckets
from support.encoder_cases import INTERFORMER, T5, random_features
from support.plain_inputs import (
    EventSequence,
    InputEncoder,
    RequestFeatures,
    bag_rows,
    encode_inputs,
)

INT64 = st.integers(-(2**63), 2**63 - 1)


def clicks(sids: Any = (), times: Any = (), **side: Any) -> RequestFeatures:
    return RequestFeatures(sequences={"clicks": EventSequence(sids, times, side)})


FAULTS = {
    "hour.values: 2 values, the model takes 1": RequestFeatures(dense={"hour": [1, 2]}),
    "hour.values: nan is not finite": RequestFeatures(dense={"hour": [math.nan]}),
    "rates.values: 1e+39 is not finite": RequestFeatures(dense={"rates": [0, 1e39, math.inf]}),
    "hour.values: expected a list of numbers, got '7'": RequestFeatures(dense={"hour": "7"}),  # type: ignore[dict-item]
    "hour.values: expected a list of numbers, got ['7']": RequestFeatures(dense={"hour": ["7"]}),  # type: ignore[list-item]
    "device.ids: 2 ids, the model takes one": RequestFeatures(categorical={"device": [1, 2]}),
    "device.ids: 4 is not one of 0 to 3": RequestFeatures(categorical={"device": [4]}),
    "device.ids: -1 is not one of 0 to 3": RequestFeatures(categorical={"device": [-1]}),
    "device.ids: '1' is not a 64-bit integer": RequestFeatures(categorical={"device": ["1"]}),  # type: ignore[list-item]
    "pages.ids: 9223372036854775808 is not a 64-bit": RequestFeatures(bags={"pages": [3, 2**63]}),
    "pages.ids: 1.0 is not a 64-bit integer": RequestFeatures(bags={"pages": [1.0]}),  # type: ignore[list-item]
    "pages.ids: expected a list of integers, got b'12345678'": RequestFeatures(
        bags={"pages": b"12345678"}
    ),
    "clicks.sids: 7 tokens, not a multiple of 3": clicks([1] * 7),
    "clicks.sids: token 5 at position 1 of a SID is not one of 0 to 4": clicks([6, 4, 10, 0, 5, 0]),
    "clicks.sids: token -1 at position 0": clicks([-1, 0, 0]),
    "clicks.timestamps_ms: number of values: 1, of events: 2": clicks([0] * 6, [5]),
    "clicks.timestamps_ms: -5 is negative": clicks([0] * 6, [1, -5]),
    "clicks.side.action.ids: number of values: 3, of events: 2": clicks([0] * 6, action=[1, 1, 1]),
    "clicks.side.action.ids: 3 is not one of 0 to 2": clicks([0] * 6, action=[1, 3]),
    "features.bags.hour: the model reads it as features.dense.hour": RequestFeatures(
        bags={"hour": [1]}
    ),
}


@pytest.mark.parametrize(("message", "request_"), FAULTS.items(), ids=FAULTS)
def test_a_fault_is_told_with_its_field(message: str, request_: RequestFeatures) -> None:
    with pytest.raises(RequestError) as caught:
        encode_inputs(INTERFORMER, [RequestFeatures(), request_])
    assert str(caught.value).startswith("features.")
    assert message in str(caught.value)


def test_events_that_are_not_used_are_checked_too() -> None:
    with pytest.raises(RequestError, match="token 99"):
        encode_inputs(INTERFORMER, [clicks([99, 0, 0] + [1] * 27)])


def test_what_is_missing_takes_its_default() -> None:
    declared = RequestFeatures(
        dense={"hour": [12.0], "rates": [0.0, 0.0, 0.0]},
        categorical={"device": [1]},
        bags={"topics": [5, 6], "pages": []},
    )
    empty_lists = RequestFeatures(
        dense={"hour": [], "rates": []}, categorical={"device": []}, bags={"topics": []}
    )
    inputs = encode_inputs(INTERFORMER, [RequestFeatures(), declared, empty_lists]).inputs
    hour, rates = inputs.dense
    assert hour.tolist() == [[12.0]] * 3
    assert rates.tolist() == [[0.0] * 3] * 3
    assert inputs.categorical[0].tolist() == [1, 1, 1]
    pages, topics = inputs.bags
    assert pages.offsets.tolist() == [0, 0, 0, 0]
    assert topics.offsets.tolist() == [0, 2, 4, 6]
    assert topics.values.tolist() == bag_rows(np.array([5, 6] * 3), 17).tolist()
    assert [s.offsets.tolist() for s in inputs.sequences] == [[0, 0, 0, 0]] * 2


def test_a_missing_side_has_an_id_of_its_own() -> None:
    (events, _) = encode_inputs(INTERFORMER, [clicks([0] * 6, action=[2, 0])]).inputs.sequences
    action, surface = events.side
    assert action.tolist() == [2, 0]
    assert surface.tolist() == [6, 6]


def test_names_the_model_lacks_are_listed_and_change_nothing() -> None:
    known = random_features(INTERFORMER, np.random.default_rng(1))
    more = replace(
        known,
        dense={**known.dense, "mood": [1.0]},
        bags={**known.bags, "shoes": [1]},
        sequences={
            **known.sequences,
            "views": EventSequence([1]),
            "buys": replace(known.sequences["buys"], side={"price": [1]}),
        },
    )
    encoded = encode_inputs(INTERFORMER, [known, more])
    expected = ("bags.shoes", "dense.mood", "sequences.buys.side.price", "sequences.views")
    assert encoded.ignored == ((), expected)
    alone = encode_inputs(INTERFORMER, [known, known]).inputs
    assert encoded.inputs.sequences[1].sids.equal(alone.sequences[1].sids)


def test_the_most_recent_events_are_kept_oldest_first() -> None:
    sids = [value for i in range(11) for value in (i % 7, i % 5, i)]
    times = [10**12] * 2 + [2**i for i in range(9)]
    request = clicks(sids, times, action=[i % 3 for i in range(11)])
    events = encode_inputs(INTERFORMER, [request, request]).inputs.sequences[0]
    assert events.offsets.tolist() == [0, 9, 18]
    assert events.sids[9:, 2].tolist() == list(range(2, 11))
    assert events.side[0][9:].tolist() == [i % 3 for i in range(2, 11)]
    newest = 2**8
    assert events.age_buckets[9:].tolist() == [plain_bucket(newest - t) for t in times[2:]]


def test_times_in_any_order_age_towards_the_newest() -> None:
    request = clicks([0] * 9, [5, 1005, 4])
    events = encode_inputs(INTERFORMER, [request]).inputs.sequences[0]
    assert events.age_buckets.tolist() == [plain_bucket(1000), plain_bucket(0), plain_bucket(1001)]


def test_no_time_is_not_age_zero() -> None:
    for times, bucket in (((), 0), ([7, 7], 1)):
        events = encode_inputs(INTERFORMER, [clicks([0] * 6, times)]).inputs.sequences[0]
        assert events.age_buckets.tolist() == [bucket] * 2


def plain_bucket(age: int) -> int:
    """1 + floor(log2(1 + age)) is how many bits 1 + age has."""
    return min((1 + age).bit_length(), AGE_BUCKETS - 1)


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1))
def test_age_buckets_are_whole_logarithms(ages: list[int]) -> None:
    assert age_buckets(np.array(ages)).tolist() == [plain_bucket(age) for age in ages]


@pytest.mark.parametrize("power", range(44))
def test_age_buckets_begin_at_powers_of_two(power: int) -> None:
    ages = np.array([2**power - 2, 2**power - 1]).clip(0)
    assert age_buckets(ages).tolist() == [plain_bucket(int(age)) for age in ages]


def plain_row(value: int, rows: int) -> int:
    """SplitMix64 as its author wrote it, on Python's integers."""
    z = (value + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return (z ^ (z >> 31)) % rows


@given(st.lists(INT64, min_size=1), st.integers(1, 2**40))
def test_bag_rows_are_splitmix64(ids: list[int], rows: int) -> None:
    expected = [plain_row(value % 2**64, rows) for value in ids]
    assert bag_rows(np.array(ids), rows).tolist() == expected


def test_bag_rows_never_change() -> None:
    """Trained tables depend on them. 16294208416658607535 is SplitMix64's first output, seed 0."""
    assert plain_row(0, 2**64) == 16294208416658607535
    assert bag_rows(np.array([0, 1, -1, 2**62]), 1_000_000).tolist() == [
        607535,
        822465,
        443936,
        772075,
    ]


def test_a_batch_is_filled_with_empty_requests() -> None:
    request = random_features(INTERFORMER, np.random.default_rng(5))
    padded = encode_inputs(INTERFORMER, [request], batch=4)
    plain = encode_inputs(INTERFORMER, [request, *[RequestFeatures()] * 3])
    assert padded.inputs.batch == 4
    assert padded.ignored == ((),)
    for a, b in zip(padded.inputs.bags, plain.inputs.bags, strict=True):
        assert a.offsets.equal(b.offsets)
        assert a.values.equal(b.values)
    for events in padded.inputs.sequences:
        assert events.offsets[1:].eq(events.offsets[1]).all()


@pytest.mark.parametrize(("requests", "batch"), [(0, None), (0, 0), (3, 2)])
def test_a_batch_that_cannot_hold_its_requests_is_our_mistake(
    requests: int, batch: int | None
) -> None:
    with pytest.raises(ValueError, match=f"cannot hold {requests} requests"):
        encode_inputs(T5, [RequestFeatures()] * requests, batch)


def test_arrays_and_lists_encode_alike() -> None:
    request = random_features(INTERFORMER, np.random.default_rng(7))
    events = request.sequences["clicks"]
    arrays = replace(
        request,
        bags={name: np.array(ids) for name, ids in request.bags.items()},
        sequences={
            **request.sequences,
            "clicks": EventSequence(
                np.array(events.sids),
                np.array(events.timestamps_ms),
                {name: np.array(ids) for name, ids in events.side.items()},
            ),
        },
    )
    encoder = InputEncoder(INTERFORMER)
    a, b = encoder.encode(request), encoder.encode(arrays)
    assert [x.tolist() for x in a.bags] == [x.tolist() for x in b.bags]
    assert a.sequences[0].sids.tolist() == b.sequences[0].sids.tolist()
    assert a.sequences[0].ages_ms.tolist() == b.sequences[0].ages_ms.tolist()


# JSON.

DOCUMENT = """
{"dense": {"hour": {"values": [13]}}, "categorical": {"device": {"ids": ["17"]}},
 "bags": {"pages": {"ids": ["-9223372036854775808", 7]}},
 "sequences": {"clicks": {"sids": [12, 400, 7, 31, 12, 8, 99, 1], "timestamps_ms": ["0", "0"],
                          "side": {"action": {"ids": ["2", "1"]}}}}}
"""


def test_the_json_form_reads_as_written() -> None:
    assert features_of_json(json.loads(DOCUMENT)) == RequestFeatures(
        dense={"hour": [13.0]},
        categorical={"device": [17]},
        bags={"pages": [-(2**63), 7]},
        sequences={
            "clicks": EventSequence([12, 400, 7, 31, 12, 8, 99, 1], [0, 0], {"action": [2, 1]})
        },
    )


def test_no_features_are_no_features() -> None:
    assert features_of_json({}) == RequestFeatures()
    assert features_of_json({"sequences": {"clicks": {}}}) == clicks([], [])


JSON_FAULTS: dict[str, Any] = {
    "features: unknown key 'denze'; known: dense, categorical, bags, sequences": {"denze": {}},
    "features: expected an object, got list": [],
    "features.dense: expected an object, got list": {"dense": []},
    "features.dense.hour: expected an object, got int": {"dense": {"hour": 13}},
    "features.dense.hour: unknown key 'ids'; known: values": {"dense": {"hour": {"ids": [1]}}},
    "features.dense.hour.values: '13' is not a number": {"dense": {"hour": {"values": ["13"]}}},
    "features.dense.hour.values: True is not a number": {"dense": {"hour": {"values": [True]}}},
    "features.dense.hour.values: a number is too large": {"dense": {"hour": {"values": [10**400]}}},
    "features.bags.pages.ids: expected a list, got str": {"bags": {"pages": {"ids": "12"}}},
    "features.bags.pages.ids: 1.5 is not an integer": {"bags": {"pages": {"ids": [1.5]}}},
    "features.bags.pages.ids: True is not an integer": {"bags": {"pages": {"ids": [True]}}},
    "features.bags.pages.ids: ' 1' is not an integer": {"bags": {"pages": {"ids": [" 1"]}}},
    "features.bags.pages.ids: '١' is not an integer": {"bags": {"pages": {"ids": ["١"]}}},
    "features.sequences.clicks.side.action.ids: None is not an integer": {
        "sequences": {"clicks": {"side": {"action": {"ids": [None]}}}}
    },
}


@pytest.mark.parametrize(("message", "document"), JSON_FAULTS.items(), ids=JSON_FAULTS)
def test_a_fault_of_the_json_is_told_with_its_field(message: str, document: Any) -> None:
    with pytest.raises(RequestError) as caught:
        features_of_json(document)
    assert str(caught.value) == message
