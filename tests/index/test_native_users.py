"""Users straight from wire bytes: as the plain way encodes them, or not at all."""

from collections.abc import Sequence
from dataclasses import astuple
from random import Random

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.errors import RequestError
from grace.index.matchers.bloom import value_hash
from grace.index.targeting.schema import Attribute, TargetingSchema, TargetSet
from grace.index.users.user_rows import DirectUsers, UserEncoder, UserRows
from grace.index.users.values import InternedValues
from grace.index.users.wire_user import UserLimits, WireUser, split_user
from grace.proto.retrieval_pb2 import RetrieveRequest, Values
from support.wire_cases import field, varint, with_bytes_changed
from support.wire_users import random_user_wire, random_value

LIMITS = UserLimits(names=9, name_bytes=33, values=64, together=111, value_bytes=1024)
SEEDS = st.integers(0, 2**32)
KNOWN = ("la", "sf", "oslo", "é" * 64, "x" * 128, "y" * 129, "")


def random_encoder(random: Random) -> UserEncoder:
    attributes = [
        Attribute("country", tuple(f"v{i}" for i in range(random.choice((2, 63, 64, 130))))),
        Attribute("gender", ("f", "m", "?"), missing=random.choice(("?", "f", None))),
    ]
    sets = [
        TargetSet("location", 256, 4, random.choice((1, 3, 64))),
        TargetSet("audience", 64, 2, 64),
    ]
    schema = TargetingSchema(
        tuple(random.sample(attributes, random.randint(0, 2))),
        tuple(random.sample(sets, random.randint(0, 2))),
        hash_seed=random.choice((0, 7, 2**64 - 1)),
    )
    values = {random_value(random, KNOWN) for _ in range(random.randint(0, 40))} - {"*"}
    return UserEncoder(schema, tuple(InternedValues.of(values) for _ in schema.sets))


def values_of(encoder: UserEncoder) -> tuple[str, ...]:
    interned = [value for values in encoder.set_values for value in values.strings]
    return (*KNOWN, *interned)


def users_of(
    random: Random, encoder: UserEncoder, count: int, flaws: float = 0.0
) -> list[WireUser]:
    names, values = ("country", "gender", "location", "audience"), values_of(encoder)
    return [WireUser(random_user_wire(random, names, values, flaws)) for _ in range(count)]


def direct(encoder: UserEncoder, users: Sequence[WireUser], size: int) -> DirectUsers:
    made = encoder.direct(users, size)
    assert made is not None
    return made


def plainly(encoder: UserEncoder, user: WireUser) -> UserRows | None:
    """None if the plain way refuses it."""
    try:
        return encoder.encode([user.read()])
    except (RequestError, DecodeError):
        return None


def assert_same(got: UserRows, expected: UserRows) -> None:
    np.testing.assert_array_equal(got.bitmask, expected.bitmask)
    assert got.ignored == expected.ignored
    assert got.encoder is expected.encoder
    assert len(got.sets) == len(expected.sets)
    for one, other in zip(got.sets, expected.sets, strict=True):
        for array in ("offsets", "hashes", "value_offsets", "value_ids"):
            mine, theirs = getattr(one, array), getattr(other, array)
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine, theirs)


@given(SEEDS)
def test_what_clients_send_is_read_as_the_plain_way_encodes_it(seed: int) -> None:
    random = Random(seed)
    encoder = random_encoder(random)
    users = users_of(random, encoder, 5)
    got = direct(encoder, users, 7)
    kept = [user if fits else WireUser() for user, fits in zip(users, got.understood, strict=True)]
    assert_same(got.rows, encoder.encode([*(user.read() for user in kept), {}, {}]))
    for user, fits in zip(users, got.understood, strict=True):
        given_values = user.read().values()
        few = all(len(set(values)) <= 1 for values in given_values)
        short = all(len(value.encode()) <= 128 for values in given_values for value in values)
        assert fits or not (few and short)


@given(SEEDS)
def test_what_the_plain_way_refuses_is_not_understood(seed: int) -> None:
    random = Random(seed)
    encoder = random_encoder(random)
    users = users_of(random, encoder, 5, flaws=0.5)
    got = direct(encoder, users, 6)
    for row, (user, fits) in enumerate(zip(users, got.understood, strict=True)):
        if split_user(user.content, LIMITS) is None:
            continue  # its bytes never come this far
        expected = plainly(encoder, user)
        assert not (fits and expected is None)
        assert not fits or got.rows.ignored[row] == expected.ignored[0]  # type: ignore[union-attr]
        row_of_nobody = encoder.encode([{}]).bitmask[0]
        own = expected.bitmask[0] if fits and expected is not None else row_of_nobody
        assert got.rows.bitmask[row].tolist() == own.tolist()


@given(SEEDS)
def test_changed_bytes_that_pass_the_check_are_read_as_protobuf_reads_them(seed: int) -> None:
    random = Random(seed)
    encoder = random_encoder(random)
    (user,) = users_of(random, encoder, 1, flaws=0.2)
    changed = with_bytes_changed(random, user.content)
    split = split_user(changed, LIMITS)
    if split is None:
        return
    rest, found = split
    whole = RetrieveRequest.FromString(changed)
    assert found == {name: list(given.values) for name, given in whole.user.items()}
    whole.ClearField("user")
    assert RetrieveRequest.FromString(rest) == whole
    got = direct(encoder, [found], 1)
    if got.understood[0]:
        assert_same(got.rows, encoder.encode([found.read()]))


@given(st.text(max_size=128), st.integers(0, 2**64 - 1))
def test_hashes_are_those_of_the_bloom_rows(value: str, seed: int) -> None:
    encoder = UserEncoder(
        TargetingSchema((), (TargetSet("location", 256, 4, 3),), seed), (InternedValues.of([]),)
    )
    got = direct(encoder, [wire({"location": [value]})], 1)
    if got.understood[0]:
        assert got.rows.sets[0].hashes.tolist() == [value_hash(value, seed)]
    else:
        assert value == "*" or len(value.encode()) > 128


def wire(user: dict[str, list[str]]) -> WireUser:
    return WireUser.of({name: Values(values=values) for name, values in user.items()})


def test_every_length_that_is_hashed_here_is_hashed_alike() -> None:
    values = ["x" * length for length in range(129)]
    schema = TargetingSchema((), (TargetSet("location", 256, 4, 129),), 7)
    encoder = UserEncoder(schema, (InternedValues.of(values[:-1]),))
    got = direct(encoder, [wire({"location": values})], 1)
    assert got.understood == (True,)
    assert_same(got.rows, encoder.encode([{"location": values}]))


ODD = {
    "a reserved value": wire({"country": ["*"]}).content,
    "a reserved value of a name that nobody knows": wire({"mood": ["*"]}).content,
    "too many values": wire({"location": list("abcd")}).content,
    "a value too long to be hashed here": wire({"location": ["y" * 129]}).content,
    "a name twice": 2 * wire({"country": ["US"]}).content,
}


@pytest.mark.parametrize("content", ODD.values(), ids=ODD)
def test_what_is_odd_is_left_to_the_plain_way(content: bytes) -> None:
    attributes = (Attribute("country", ("US", "NO")),)
    schema = TargetingSchema(attributes, (TargetSet("location", 256, 4, 3),), 7)
    encoder = UserEncoder(schema, (InternedValues.of(["sf"]),))
    got = direct(encoder, [wire({"location": ["sf"]}), WireUser(content)], 3)
    assert got.understood == (True, False)
    assert_same(got.rows, encoder.encode([{"location": ["sf"]}, {}, {}]))


@pytest.mark.parametrize(
    "message",
    [
        b"\x22\x00\x0a\x01r\x22\x00",
        b"\x20\x07",
        b"\x22\x07",
        b"\x22\x04\x0a\x02\xc3\x28",
        b"\x22\x05\x12\x03\x0a\x01\xff",
        b"\x22\x04\x12\x02\x10\x01",
        b"\x22\x04\x12\x00\x12\x00",
    ],
    ids=[
        *("parts that are apart", "a number", "an end too soon", "a name that is no text"),
        *("a value that is no text", "a field that Values lacks", "values twice"),
    ],
)
def test_a_user_that_is_odd_is_left_to_protobuf(message: bytes) -> None:
    assert split_user(message, LIMITS) is None


LENGTHS = ("a value", "a name", "all values", "an entry")


def with_length_of(size: int, what: str) -> bytes:
    """A user of country US, with so many bytes for the length of one of its parts."""
    sizes = {name: size if name == what else 1 for name in LENGTHS}
    values = field(1, b"US", sizes["a value"])
    entry = field(1, b"country", sizes["a name"]) + field(2, values, sizes["all values"])
    return field(4, entry, sizes["an entry"])


@pytest.mark.parametrize("what", LENGTHS)
@pytest.mark.parametrize("size", range(1, 11))
def test_a_length_has_as_many_bytes_as_protobuf_takes(what: str, size: int) -> None:
    message = with_length_of(size, what)
    encoder = UserEncoder(TargetingSchema((Attribute("country", ("US",)),), (), 7), ())
    (understood,) = direct(encoder, [WireUser(message)], 1).understood
    assert understood == (split_user(message, LIMITS) is not None) == (size <= 5)
    if understood:
        assert WireUser(message).read() == {"country": ["US"]}
    else:
        with pytest.raises(DecodeError):
            RetrieveRequest.FromString(message)


def test_every_limit_holds_to_the_last_one() -> None:
    user = wire({"country": ["US", "é" * 3], "ab": ["x"]})
    least = UserLimits(names=2, name_bytes=7, values=2, together=3, value_bytes=6)
    message = b"\x0a\x01r" + user.content + b"\x30\x07"
    assert split_user(message, least) == (b"\x0a\x01r\x30\x07", user)
    for place in range(5):
        fields = list(astuple(least))
        fields[place] -= 1
        assert split_user(message, UserLimits(*fields)) is None


@given(st.binary(max_size=12))
def test_text_is_what_protobuf_takes_for_it(text: bytes) -> None:
    content = b"\x0a" + varint(len(text)) + text
    inner = b"\x12" + varint(len(content)) + content
    message = b"\x22" + varint(len(inner)) + inner
    try:
        RetrieveRequest.FromString(message)
    except DecodeError:
        assert split_user(message, LIMITS) is None
    else:
        assert split_user(message, LIMITS) is not None


def test_names_that_nobody_knows_are_listed_once_and_sorted() -> None:
    schema = TargetingSchema((Attribute("country", ("US",)),), (), 7)
    encoder = UserEncoder(schema, ())
    odd = wire({"zodiac": ["leo"], "größe": [], "country": ["US"]})
    got = direct(encoder, [WireUser(odd.content + wire({"zodiac": []}).content), WireUser()], 3)
    assert got.understood == (True, True)
    assert got.rows.ignored == (("größe", "zodiac"), (), ())


def test_more_unknown_names_than_there_is_room_for_are_left_to_python() -> None:
    encoder = UserEncoder(TargetingSchema((Attribute("country", ("US",)),), (), 7), ())
    many = wire({"x" * 1000 + str(number): [] for number in range(70)})
    got = direct(encoder, [many, wire({"mood": []})], 2)
    assert got.understood == (False, True)
    assert got.rows.ignored == ((), ("mood",))


def test_a_batch_that_cannot_hold_its_requests_is_our_mistake() -> None:
    encoder = UserEncoder(TargetingSchema((), (), 7), ())
    with pytest.raises(ValueError, match="a batch of 2 cannot hold 3 requests"):
        encoder.direct([WireUser()] * 3, 2)
