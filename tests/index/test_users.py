"""User rows: what a request's attributes become, and what is refused.

tests/server/test_wire_readers.py compares all of it with the plain encoder on odd bytes.
"""

import tracemalloc
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.errors import RequestError
from grace.index.matchers.node_matchers import value_hash
from grace.index.targeting.schema import TargetingSchema, TargetSet
from grace.index.users.user_rows import UserEncoder
from grace.index.users.values import InternedValues
from grace.proto.retrieval_pb2 import RetrieveRequest, Values
from support.plain_users import assert_same_rows, plain_rows
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
def test_a_batch_is_read_as_the_plain_encoder_reads_each_request(seed: int) -> None:
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
    requests = []
    for message, fault in zip(messages, got.faults, strict=True):
        requests.append(RetrieveRequest.FromString(message))
        try:
            plain_rows(encoder, requests[-1:], now)
            assert fault is None
        except RequestError as error:
            requests[-1] = RetrieveRequest()
            assert str(fault) == str(error)
    requests += [RetrieveRequest()] * (7 - len(requests))
    assert_same_rows(got.rows, plain_rows(encoder, requests, now))
