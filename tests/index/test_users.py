"""User rows: what a request's attributes become, and what is refused.

tests/server/test_wire_readers.py compares all of it with the plain encoder on odd bytes.
"""

import tracemalloc
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.errors import RequestError
from grace.index.matchers.node_matchers import value_hash
from grace.index.targeting.schema import TargetingSchema, TargetSet
from grace.index.users.user_rows import UserAttributes, UserEncoder
from grace.index.users.values import InternedValues
from grace.proto.retrieval_pb2 import RetrieveRequest, Values
from support.plain_requests import plain_user
from support.plain_users import assert_same_rows, plain_rows
from support.strategies import Case, cases, examples, set_values
from support.strict_wire import REQUEST
from support.wire_cases import WireWriter

ODD = ("", "é", "中" * 20, "é" * 64, "x" * 17, "x" * 128, "y" * 129, "*")


def test_memory_grows_with_the_values_sent_and_not_with_the_values_allowed() -> None:
    sets = tuple(TargetSet(f"s{number}", 64, 1, 1 << 16) for number in range(9))
    encoder = UserEncoder(TargetingSchema((), sets, 7), (InternedValues.of(["a"]),) * 9)
    message = RetrieveRequest(user={"s3": Values(values=["a", "b"])}).SerializeToString()
    encoder.read([message], 16)
    tracemalloc.start()
    rows = encoder.read([message] * 16, 16).rows
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows.asked[4].offsets.tolist() == list(range(0, 34, 2))
    assert peak < 100_000


@pytest.mark.parametrize("seed", [7, 2**64 - 1])
def test_values_of_every_length_are_found_and_have_their_hashes(seed: int) -> None:
    values = [chr(97 + length % 26) * length for length in range(1300)]
    schema = TargetingSchema((), (TargetSet("location", 256, 4, 1300),), seed)
    encoder = UserEncoder(schema, (InternedValues.of(values[::2]),))
    location = encoder.encode([{"location": values}]).asked[1]
    assert location.value_ids.tolist() == list(range(650))
    assert location.hashes.tolist() == [value_hash(value, seed) for value in sorted(values[::2])]
    assert location.offsets.tolist() == [0, 1300]


@examples(35)
@given(case=cases(), seed=st.integers(0, 2**32))
def test_a_batch_is_read_as_the_plain_encoder_reads_each_user(case: Case, seed: int) -> None:
    """A user with a fault has the row of an empty one, and the others are as without it."""
    random = Random(seed)
    sets = [
        replace(each, max_request_values=random.choice((1, 3, 64))) for each in case.schema.sets
    ]
    interned = (InternedValues.of(set_values(each)[::2]) for each in sets)
    encoder = UserEncoder(replace(case.schema, sets=tuple(sets)), tuple(interned))
    users_sent = [
        {
            name: {"values": [*values, *random.choices(ODD, k=random.randrange(2))]}
            for name, values in user.items()
        }
        for user in case.users
    ]
    messages = [WireWriter(random).message({"user": user}, REQUEST) for user in users_sent]
    got = encoder.read(messages, 7)
    users = []
    for message, fault in zip(messages, got.faults, strict=True):
        users.append(plain_user(message))
        try:
            plain_rows(encoder, users[-1:])
            assert fault is None
        except RequestError as error:
            users[-1] = {}
            assert str(fault) == str(error)
    empty: list[UserAttributes] = [{}] * (7 - len(users))
    assert_same_rows(got.rows, plain_rows(encoder, [*users, *empty]))
