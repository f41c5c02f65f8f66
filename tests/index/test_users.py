"""User rows: what a request's attributes become, and what is refused.

tests/server/test_wire_readers.py compares all of it with the plain encoder on odd bytes.
"""

import tracemalloc
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.errors import RequestError
from grace.index.matchers.bloom import value_hash
from grace.index.targeting.schema import Attribute, TargetingSchema, TargetSet
from grace.index.users.user_rows import UserEncoder
from grace.index.users.values import InternedValues
from grace.proto.retrieval_pb2 import RetrieveRequest, Values
from support.plain_requests import plain_user
from support.plain_users import assert_same_rows, plain_rows
from support.strategies import examples
from support.strict_wire import REQUEST
from support.wire_cases import WireWriter, user_values

SCHEMA = TargetingSchema(
    (Attribute("country", ("US", "NO")), Attribute("gender", ("f", "m", "?"), missing="?")),
    (TargetSet("location", 256, 4, 3), TargetSet("audience", 64, 2, 64)),
    hash_seed=7,
)
ENCODER = UserEncoder(SCHEMA, (InternedValues.of(["sf", "la"]), InternedValues.of([])))
KNOWN = ("la", "sf", "oslo", "é" * 64, "x" * 128, "y" * 129, "")
SHORT = ("US", "NO", "f", "m", "?", "", "é", "ß" * 30, "x" * 17, "v64", "中" * 20)


def test_any_number_of_names_of_other_schemas_is_listed() -> None:
    names = [f"{'x' * 100}{number}" for number in range(3000)]
    rows = ENCODER.encode([dict.fromkeys(names, ()), {"mood": []}, {}])
    assert rows.ignored == (tuple(sorted(names)), ("mood",), ())


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


def random_value(random: Random, values: tuple[str, ...]) -> str:
    text = "".join(random.choices("aé中😀", k=random.randint(0, 30)))
    return random.choice((text, "x" * random.randint(0, 128), random.choice((*SHORT, *values))))


def random_encoder(random: Random) -> UserEncoder:
    values = tuple(f"v{i}" for i in range(random.choice((2, 63, 64, 130))))
    missing = random.choice(("?", "f", None))
    attributes = [Attribute("country", values), Attribute("gender", ("f", "m", "?"), missing)]
    most = random.choice((1, 3, 64))
    sets = [TargetSet("location", 256, 4, most), TargetSet("audience", 64, 2, 64)]
    schema = TargetingSchema(
        tuple(random.sample(attributes, random.randint(0, 2))),
        tuple(random.sample(sets, random.randint(0, 2))),
        hash_seed=random.choice((0, 7, 2**64 - 1)),
    )
    named = {random_value(random, KNOWN) for _ in range(random.randint(0, 40))} - {"*"}
    return UserEncoder(schema, tuple(InternedValues.of(named) for _ in schema.sets))


@examples(35)
@given(st.integers(0, 2**32))
def test_a_batch_is_read_as_the_plain_encoder_reads_each_user(seed: int) -> None:
    """A user with a fault has the row of an empty one, and the others are as without it."""
    random = Random(seed)
    encoder = random_encoder(random)
    interned = [value for values in encoder.set_values for value in values.strings]
    names = ("country", "gender", "location", "audience")
    values = (*KNOWN, *interned, "*")
    users_sent = [
        user_values(random, names, lambda: random_value(random, values)) for _ in range(5)
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
    assert_same_rows(got.rows, plain_rows(encoder, [*users, {}, {}]))
