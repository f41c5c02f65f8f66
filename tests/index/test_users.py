"""User rows: what a request's attributes become, and what is refused.

test_exact.py compares the ads that rows get with the oracle, and
tests/server/test_wire_readers.py has requests in odd bytes.
"""

import tracemalloc
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st

from grace.index.matchers.node_matchers import value_hash
from grace.index.targeting.schema import Attribute, Property, Range, TargetingSchema, TargetSet
from grace.index.users.user_rows import UserEncoder
from grace.index.users.values import InternedValues
from grace.proto.retrieval_pb2 import RetrieveRequest, Values
from support.arrays import assert_same_arrays
from support.strategies import examples, random_schema, set_values
from support.strict_wire import REQUEST
from support.wire_cases import WireWriter, asked_values

ODD = ("", "é", "中" * 20, "é" * 64, "x" * 17, "x" * 128, "y" * 129, "*")


def test_memory_grows_with_the_values_sent_and_not_with_the_values_allowed() -> None:
    sets = tuple(TargetSet(f"s{number}", 64, 1, 1 << 16) for number in range(9))
    encoder = UserEncoder(TargetingSchema((), sets, 7), (InternedValues.of(["a"]),) * 9)
    message = RetrieveRequest(user={"s3": Values(values=["a", "b"])}).SerializeToString()
    encoder.read([message], 16, now=0)
    tracemalloc.start()
    rows = encoder.read([message] * 16, 16, now=0).rows
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows.asked[4].value_offsets.tolist() == list(range(17))
    assert peak < 100_000


@pytest.mark.parametrize("seed", [7, 2**64 - 1])
def test_values_of_every_length_are_found_and_have_their_hashes(seed: int) -> None:
    values = [chr(97 + length % 26) * length for length in range(1300)]
    schema = TargetingSchema((), (TargetSet("location", 256, 4, 1300),), seed)
    encoder = UserEncoder(schema, (InternedValues.of(values[::2]),))
    location = encoder.encode([{"location": values}]).asked[1]
    assert location.value_ids.tolist() == list(range(650))
    assert location.hashes.tolist() == [value_hash(value, seed) for value in sorted(values[::2])]
    assert location.value_offsets.tolist() == [0, 650]


def random_encoder(random: Random) -> UserEncoder:
    """A schema of every kind of name, and values of which some are asked."""
    rng = np.random.default_rng(random.randrange(2**32))
    schema = random_schema(rng)
    limited = (replace(x, max_request_values=random.choice((1, 3, 64))) for x in schema.sets)
    schema = replace(schema, sets=tuple(limited))
    values = [
        *(set_values(each)[::2] for each in schema.sets),
        *(random.sample(("x", *ODD[:-1]), 4) for _ in schema.properties),
    ]
    return UserEncoder(schema, tuple(map(InternedValues.of, values)))


@examples(70)
@given(seed=st.integers(0, 2**32))
def test_a_batch_has_the_rows_of_its_requests_as_protobuf_writes_them(seed: int) -> None:
    """A request with a fault has the row of an empty one, and the others are as without it."""
    random = Random(seed)
    encoder = random_encoder(random)
    now = random.choice((0, random.randrange(2**41)))
    of_sets = [value for each in encoder.schema.sets for value in set_values(each)[:9]]
    asked = [
        asked_values(random, encoder.schema, ("x", *ODD[:-1], *of_sets, *ODD[-1:][: number % 2]))
        for number in range(random.randrange(8))
    ]
    messages = [WireWriter(random).message(each, REQUEST) for each in asked]
    got = encoder.read(messages, 7, now=now)
    empty, plain = RetrieveRequest(at=now).SerializeToString(), []
    for message, fault in zip(messages, got.faults, strict=True):
        request = RetrieveRequest.FromString(message)
        request.at = request.at or now
        plain.append(request.SerializeToString())
        (alone,) = encoder.read(plain[-1:], 1, now=0).faults
        assert str(fault) == str(alone)
        if fault is not None:
            plain[-1] = empty
    expected = encoder.read(plain + [empty] * (7 - len(plain)), 7, now=0)
    assert expected.faults == (None,) * 7
    assert got.rows.ignored == expected.rows.ignored
    assert_same_arrays(got.rows.asked, expected.rows.asked)


def test_before_1970_it_is_wednesday_evening() -> None:
    hour = Attribute("hour", tuple(map(str, range(168))), clock="hour_of_week")
    encoder = UserEncoder(TargetingSchema((hour,), (), 7), ())
    (bits,) = encoder.encode([RetrieveRequest(at=1, utc_offset_minutes=-30)]).asked[0]
    found = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
    assert found.tolist() == [2 * 24 + 23]


SCHEMA = TargetingSchema(
    (Attribute("country", ("NO", "US")),),
    (TargetSet("place", 64, 2, 3),),
    7,
    ranges=(Range("age"),),
    properties=(Property("category"),),
)
ENCODER = UserEncoder(SCHEMA, (InternedValues.of(["a"]), InternedValues.of(["news"])))
RESERVED = "'*' is reserved; name values, or send none"
FEWER = "at most 3 are allowed (max_request_values in the targeting schema); send fewer"
FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"user": {"age": {"values": ["7"]}}}, "user.age.values: age is a range; send user.age.number"),
    ({"user": {"age": {"number": "Infinity"}}}, "user.age.number: inf is not finite"),
    (
        {"user": {"country": {"number": 7}}},
        "user.country.number: country takes values; send user.country.values",
    ),
    ({"user": {"country": {"values": ["US", "*"]}}}, f"user.country.values: {RESERVED}"),
    ({"user": {"place": {"values": [*"abcd"]}}}, f"user.place.values: 4 distinct values, {FEWER}"),
    ({"user": {"mood": {"values": ["*"]}}}, f"user.mood.values: {RESERVED}"),
    ({"filters": {"category": {"any_of": ["*"]}}}, f"filters.category.any_of: {RESERVED}"),
    ({"filters": {"mood": {"none_of": ["*"]}}}, f"filters.mood.none_of: {RESERVED}"),
    (
        {"user": {"a": {"values": ["*"]}, "place": {"values": ["*"]}, "country": {"number": 7}}},
        "user.country.number: country takes values; send user.country.values",
    ),
]


@pytest.mark.parametrize(("asked", "fault"), FAULTS, ids=str)
def test_a_fault_is_the_first_in_the_schema_s_order(asked: dict[str, Any], fault: str) -> None:
    message = ParseDict(asked, RetrieveRequest()).SerializeToString()
    (found,) = ENCODER.read([message], 1, now=0).faults
    assert str(found) == fault


def test_names_that_the_schema_does_not_have_are_ignored_by_name() -> None:
    asked = {"user": {"mood": {}, "place": {"values": [*"abcabc"]}}, "filters": {"country": {}}}
    message = ParseDict(asked, RetrieveRequest()).SerializeToString()
    read = ENCODER.read([message], 1, now=0)
    assert (read.faults, read.rows.ignored) == ((None,), (("filters.country", "mood"),))
