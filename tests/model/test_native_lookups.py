"""Features straight from wire bytes: as the plain way reads them, or not at all."""

from collections.abc import Sequence
from dataclasses import astuple
from random import Random

import numpy as np
import pytest
import torch
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.errors import RequestError
from grace.model.definition.spec import ModelSpec
from grace.model.engine.feature_lookups import FeatureLookups
from grace.model.engine.native_lookups import DirectInputs, NativeLookups
from grace.model.engine.wire_features import FeatureLimits, WireFeatures, split_features
from grace.proto.retrieval_pb2 import Features, RetrieveRequest
from support.encoder_cases import INTERFORMER, T5, random_features
from support.plain_inputs import EncodedRequest, InputEncoder, RequestFeatures
from support.plain_lookups import LookupEncoder
from support.wire_cases import field, random_spec, random_wire, varint, with_bytes_changed

LIMITS = FeatureLimits(names=256, name_bytes=1024, values=4096, events=16_384, sid_length=3)

SEEDS = st.integers(0, 2**32)


def message_of(features: RequestFeatures) -> Features:
    message = Features()
    for name, numbers in features.dense.items():
        message.dense[name].values.extend(numbers)
    for name, ids in features.categorical.items():
        message.categorical[name].ids.extend(ids)
    for name, ids in features.bags.items():
        message.bags[name].ids.extend(ids)
    for name, given_events in features.sequences.items():
        events = message.sequences[name]
        events.sids.extend(given_events.sids)
        events.timestamps_ms.extend(given_events.timestamps_ms)
        for side, ids in given_events.side.items():
            events.side[side].ids.extend(ids)
    return message


def plainly(spec: ModelSpec, features: WireFeatures) -> EncodedRequest | None:
    """None if the plain way refuses it."""
    try:
        return InputEncoder(spec).encode(features.read())
    except (RequestError, DecodeError):
        return None


def assert_same_look_ups(got: FeatureLookups, expected: FeatureLookups) -> None:
    for one, other in zip(got.tensors(), expected.tensors(), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def assert_agreement(
    spec: ModelSpec, requests: Sequence[WireFeatures], size: int, got: DirectInputs
) -> None:
    """What was understood has the plain way's rows and unknown names; the rest is empty."""
    plain = [plainly(spec, request) for request in requests]
    empty = InputEncoder(spec).encode(RequestFeatures())
    rows = []
    for one, understood, ignored in zip(plain, got.understood, got.ignored, strict=True):
        if understood:
            assert one is not None
            assert ignored == one.ignored
        rows.append(one if understood and one is not None else empty)
    assert_same_look_ups(got.inputs, LookupEncoder(spec).batch(rows, size))


@pytest.mark.parametrize("spec", [INTERFORMER, T5], ids=["interformer", "t5"])
def test_what_protobuf_writes_is_understood(spec: ModelSpec) -> None:
    rng = np.random.default_rng(5)
    native = NativeLookups(spec)
    for count in (1, 3, 7):
        requests = [WireFeatures.of(message_of(random_features(spec, rng))) for _ in range(count)]
        got = native.read([WireFeatures(), *requests], 9)
        assert got.understood == (True,) * (count + 1)
        assert_agreement(spec, [WireFeatures(), *requests], 9, got)


@given(SEEDS)
def test_what_clients_may_write_is_understood_as_the_plain_way_reads_it(seed: int) -> None:
    random = Random(seed)
    spec = random_spec(random)
    requests = [WireFeatures(random_wire(random, spec)) for _ in range(random.randint(0, 5))]
    got = NativeLookups(spec).read(requests, 5)
    assert got.understood == tuple(plainly(spec, each) is not None for each in requests)
    assert_agreement(spec, requests, 5, got)


@given(SEEDS)
def test_what_the_plain_way_refuses_is_not_understood(seed: int) -> None:
    random = Random(seed)
    spec = random_spec(random)
    requests = [WireFeatures(random_wire(random, spec, flaws=0.4)) for _ in range(5)]
    assert_agreement(spec, requests, 7, NativeLookups(spec).read(requests, 7))


@given(SEEDS)
def test_changed_bytes_that_pass_the_check_are_read_as_the_plain_way_reads_them(seed: int) -> None:
    random = Random(seed)
    spec = random_spec(random)
    native = NativeLookups(spec)
    for _ in range(5):
        changed = with_bytes_changed(random, random_wire(random, spec, flaws=0.1))
        request = b"\x2a" + varint(len(changed)) + changed
        split = split_features(request, LIMITS)
        if split is None:
            continue
        assert split[0] == b""
        Features.FromString(changed)
        assert_agreement(spec, [split[1]], 2, native.read([split[1]], 2))


@given(SEEDS)
def test_a_request_without_its_features_and_they_are_the_request(seed: int) -> None:
    random = Random(seed)
    features = random_wire(random, INTERFORMER)
    before, after = RetrieveRequest(request_id="r"), RetrieveRequest(max_ads=7)
    after.user["country"].values.append("US")
    message = b"".join((
        *(before.SerializeToString(), b"\x2a", varint(len(features), more=random.choice((0, 2)))),
        *(features, after.SerializeToString()),
    ))  # fmt: skip
    split = split_features(message, LIMITS)
    assert split is not None
    head, found = split
    assert head == before.SerializeToString() + after.SerializeToString()
    assert found.read() == WireFeatures(features).read()


ODD = {
    "two messages of features": b"\x2a\x00\x2a\x00",
    "features that are a number": b"\x28\x07",
    "a group": b"\x2b\x2c",
    "an end too soon": b"\x2a\x07",
    "a length of more than 64 bits": b"\x2a" + b"\x80" * 10 + b"\x00",
    "a length of 2^32": b"\x2a\x80\x80\x80\x80\x10",
    "a field of number 16": b"\x82\x01\x00",
    "a field that Features lacks": b"\x2a\x02\x2a\x00",
    "an entry's field of number 3": b"\x2a\x04\x1a\x02\x1a\x00",
    "a name that is not ASCII": b"\x2a\x06\x1a\x04\x0a\x02\xc3\xa9",
    "a name that is no text": b"\x2a\x05\x1a\x03\x0a\x01\xff",
    "a value twice": b"\x2a\x06\x1a\x04\x12\x00\x12\x00",
    "a number of eleven bytes": b"\x2a\x11\x1a\x0f\x12\x0d\x0a\x0b" + b"\x80" * 10 + b"\x00",
    "a number of 65 bits": b"\x2a\x10\x1a\x0e\x12\x0c\x0a\x0a" + b"\x80" * 9 + b"\x02",
    "a packed list that ends within a number": b"\x2a\x07\x1a\x05\x12\x03\x0a\x01\x80",
    "a float of three bytes": b"\x2a\x09\x0a\x07\x12\x05\x0a\x03\x00\x00\x00",
    "a number that is not finite": b"\x2a\x0a\x0a\x08\x12\x06\x0a\x04\x00\x00\xc0\x7f",
}


def with_length_of(size: int, what: str) -> bytes:
    """Features whose hour is 1, with so many bytes for the length of one of their parts."""
    sizes = {name: size if name == what else 1 for name in LENGTHS}
    numbers = field(1, b"\x00\x00\x80\x3f", sizes["a packed list"])
    entry = field(1, b"hour", sizes["a name"]) + field(2, numbers, sizes["a value"])
    return field(5, field(1, entry, sizes["an entry"]), sizes["all features"])


LENGTHS = ("a packed list", "a name", "a value", "an entry", "all features")


@pytest.mark.parametrize("what", LENGTHS)
@pytest.mark.parametrize("size", range(1, 11))
def test_a_length_has_as_many_bytes_as_protobuf_takes(what: str, size: int) -> None:
    message = with_length_of(size, what)
    split = split_features(message, LIMITS)
    assert (split is not None) == (size <= 5)
    if split is None:
        with pytest.raises(DecodeError):
            RetrieveRequest.FromString(message)
    else:
        assert split[1].read().dense == {"hour": [1.0]}
        (understood,) = NativeLookups(INTERFORMER).read([split[1]], 1).understood
        assert understood


def test_a_length_of_too_many_bytes_is_not_understood_by_who_reads_it_next() -> None:
    content = with_length_of(6, "a name")[2:]
    with pytest.raises(DecodeError):
        Features.FromString(content)
    assert NativeLookups(INTERFORMER).read([WireFeatures(content)], 1).understood == (False,)


@pytest.mark.parametrize("message", ODD.values(), ids=ODD)
def test_what_is_odd_is_left_to_protobuf(message: bytes) -> None:
    assert split_features(message, LIMITS) is None


def limits_of(features: Features) -> FeatureLimits:
    """The least that let it through."""
    inner = [name for events in features.sequences.values() for name in events.side]
    names = [*features.dense, *features.categorical, *features.bags, *features.sequences, *inner]
    values = [len(x.values) for x in features.dense.values()]
    values += [len(x.ids) for x in (*features.categorical.values(), *features.bags.values())]
    events = [len(x.timestamps_ms) for x in features.sequences.values()]
    return FeatureLimits(len(names), max(map(len, names)), max(values), max(events), 3)


def test_every_limit_holds_to_the_last_one() -> None:
    features = message_of(random_features(INTERFORMER, np.random.default_rng(1)))
    message = RetrieveRequest(features=features).SerializeToString()
    least = limits_of(features)
    assert split_features(message, least) is not None
    for place in range(4):
        fields = list(astuple(least))
        fields[place] -= 1
        assert split_features(message, FeatureLimits(*fields)) is None


@pytest.mark.parametrize("list_name", ["sids", "timestamps_ms", "side"])
def test_each_list_of_a_sequence_has_the_limit_of_its_events(list_name: str) -> None:
    for count, passes in ((5, True), (6, False)):
        request = RetrieveRequest()
        events = request.features.sequences["clicks"]
        if list_name == "side":
            events.side["action"].ids.extend(range(count))
        else:
            getattr(events, list_name).extend(range(count * (3 if list_name == "sids" else 1)))
        limits = FeatureLimits(names=9, name_bytes=9, values=1, events=5, sid_length=3)
        assert (split_features(request.SerializeToString(), limits) is not None) == passes


def test_more_unknown_names_than_there_is_room_for_are_left_to_python() -> None:
    many = Features()
    for number in range(70):
        many.bags["x" * 1000 + str(number)].ids.append(1)
    one = Features()
    one.dense["mood"].values.append(1.0)
    got = NativeLookups(INTERFORMER).read([WireFeatures.of(many), WireFeatures.of(one)], 2)
    assert got.understood == (False, True)
    assert got.ignored == ((), ("dense.mood",))


@pytest.mark.parametrize("name", [b"\xff", b"\xed\xa0\x80", b"a\x00b"])
def test_an_unknown_name_that_could_not_be_listed_is_not_understood(name: bytes) -> None:
    side = field(4, field(1, b"clicks") + field(2, field(3, field(1, name))))
    requests = [WireFeatures(content) for content in (field(3, field(1, name)), side, b"")]
    got = NativeLookups(INTERFORMER).read(requests, 3)
    assert got.understood == (False, False, True)
    assert got.ignored == ((), (), ())


def test_a_batch_that_cannot_hold_its_requests_is_our_mistake() -> None:
    with pytest.raises(ValueError, match="a batch of 2 cannot hold 3 requests"):
        NativeLookups(INTERFORMER).read([WireFeatures()] * 3, 2)
