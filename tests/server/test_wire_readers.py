"""C++ reads requests as the plain readers and encoders do: same meaning, same faults, same words.

FUZZ_SECONDS and FUZZ_SEED ask for more, and for others; `make soak` takes minutes.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import count
from random import Random
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor import Descriptor
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.errors import RequestError
from grace.configs.serving import LimitsConfig
from grace.index.targeting.schema import Attribute, TargetingSchema, TargetSet
from grace.index.updates.update import read_update
from grace.index.users.user_rows import UserEncoder
from grace.index.users.values import InternedValues
from grace.model.definition.spec import ModelSpec
from grace.model.engine.feature_reader import FeatureReader
from grace.proto.retrieval_pb2 import Features, RetrieveRequest
from grace.server.errors import ServiceError
from grace.server.messages import Retrieval
from grace.server.stages.requests import read_request
from support.encoder_cases import INTERFORMER
from support.pipeline_cases import GENERATION
from support.plain_inputs import InputEncoder, assert_same_inputs
from support.plain_requests import plain_request, plain_user
from support.plain_users import assert_same_rows, plain_rows
from support.strategies import examples
from support.strict_wire import (
    REQUEST,
    UPDATE,
    Values,
    is_map,
)
from support.wire_cases import WireWriter, field, hostile_request, random_spec, varint

MODELS = 8
SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))
SOAK_SECONDS = float(os.environ.get("FUZZ_SECONDS", "120"))
SEED = int(os.environ.get("FUZZ_SEED", "7"))
LIMITS = LimitsConfig(
    names=9, values_per_name=70, value_bytes=128, user_values=14, events=40, exclude_ads=9
)
SCHEMA = TargetingSchema(
    (
        Attribute("country", ("US", "NO", "é")),
        Attribute("gender", ("f", "m", "?"), missing="?"),
    ),
    (TargetSet("location", 256, 4, 3), TargetSet("audience", 64, 2, 64)),
    hash_seed=7,
    entities=("campaign", "advertiser"),
)
ENCODER = UserEncoder(
    SCHEMA, (InternedValues.of(["US", "x", "f"]), InternedValues.of(["NO", "a\0b", "x" * 300]))
)

LOGGED = re.compile(
    r"RetrieveRequest|request_id|model|sid_space|profile|priority|exclude_ads|max_ads"
    r"|exclude|at_most"
    r"|user(\.\*(\.values)?)?|features|features\.(dense|categorical|bags)(\.\*(\.values|\.ids)?)?"
    r"|features\.sequences(\.\*(\.sids|\.timestamps_ms|\.side(\.\*(\.ids)?)?)?)?"
)
"""Paths without a name that the caller chose."""

Refusal = tuple[str, str]


@dataclass(frozen=True)
class Readers:
    """The readers of one model's features."""

    native: FeatureReader
    plain: InputEncoder

    @staticmethod
    def of(spec: ModelSpec) -> "Readers":
        return Readers(FeatureReader(spec), InputEncoder(spec))


READERS = Readers.of(INTERFORMER)


def outcome(
    read: Callable[..., Retrieval], message: bytes, limits: LimitsConfig
) -> Retrieval | Refusal:
    try:
        return read(message, limits, GENERATION)
    except ServiceError as error:
        if read is read_request and error.field is not None:
            assert LOGGED.fullmatch(error.field)
        return error.reason, error.text


def assert_read_alike(
    readers: Readers, message: bytes, limits: LimitsConfig = LIMITS
) -> Counter[str]:
    """What came of it."""
    got, expected = outcome(read_request, message, limits), outcome(plain_request, message, limits)
    if not isinstance(got, Retrieval) or not isinstance(expected, Retrieval):
        assert got == expected, message.hex()
        assert isinstance(got, tuple)
        return Counter([got[0]])
    for each in fields(Retrieval):
        one, other = getattr(got, each.name), getattr(expected, each.name)
        if isinstance(one, dict):
            assert one.keys() == other.keys(), (each.name, message.hex())
            pairs = [(value, other[name]) for name, value in one.items()]
        else:
            pairs = [(one, other)]
        assert all(np.array_equal(*pair) for pair in pairs), (each.name, message.hex())
    return Counter(
        [
            "taken",
            f"features {assert_same_look_ups(readers, message)}",
            f"user {assert_same_users(message)}",
        ]
    )


def assert_same_look_ups(readers: Readers, message: bytes) -> str:
    """`read` or `refused`."""
    got = readers.native.read([message], 2)
    (fault,), (ignored,) = got.faults, got.ignored
    try:
        row = readers.plain.encode(RetrieveRequest.FromString(message).features)
        assert fault is None, message.hex()
    except RequestError as error:
        row = readers.plain.encode(Features())
        assert str(fault) == str(error), message.hex()
    assert ignored == row.ignored
    plain = readers.plain
    assert_same_inputs(plain.spec, got.inputs, plain.batch([row], 2))
    return "read" if fault is None else "refused"


def assert_same_users(message: bytes) -> str:
    """`read` or `refused`."""
    got = ENCODER.read([message], 2)
    (fault,) = got.faults
    try:
        expected = plain_rows(ENCODER, [plain_user(message), {}])
        assert fault is None, message.hex()
    except RequestError as error:
        expected = plain_rows(ENCODER, [{}, {}])
        assert str(fault) == str(error), message.hex()
    assert_same_rows(got.rows, expected)
    return "read" if fault is None else "refused"


def fuzz(models: int, seconds: float) -> None:
    """Read requests of at least this many models, and of more until the time is over."""
    random, seen = Random(SEED), Counter[str]()
    end = perf_counter() + seconds
    for number in count():
        if number >= models and perf_counter() >= end:
            break
        spec = random.choice((INTERFORMER, random_spec(random)))
        readers = Readers.of(spec)
        for _ in range(63):
            limits = replace(
                LIMITS, names=random.choice((1, 9, 9, 9)), events=random.choice((3, 40))
            )
            seen += assert_read_alike(readers, hostile_request(random, spec, SCHEMA), limits)
    least = sum(seen.values()) / 300
    for end_of_it in (
        *("malformed", "invalid_field", "taken"),
        *("features read", "features refused", "user read", "user refused"),
    ):
        assert seen[end_of_it] > least, seen


@pytest.mark.parametrize(
    "seconds", [SECONDS, pytest.param(SOAK_SECONDS, marks=pytest.mark.soak)], ids=["", "long"]
)
def test_hostile_requests_are_read_alike(seconds: float) -> None:
    fuzz(MODELS, seconds)


def entry(name: bytes, message: bytes) -> bytes:
    return field(1, name) + field(2, message)


def within(fields: Sequence[int], content: bytes) -> bytes:
    for number in reversed(fields):
        content = field(number, content)
    return content


COUNTRY = entry(b"country", field(1, b"US"))
CASES = {
    "nothing": b"",
    "an integer whose tenth byte is too large": b"\x48" + b"\x81" * 9 + b"\x7f",
    "an integer of eleven bytes": b"\x48" + b"\x80" * 10 + b"\x01",
    "a packed integer whose tenth byte is too large": field(9, b"\x81" * 9 + b"\x7f"),
    "a packed integer of eleven bytes": field(9, b"\x81" * 10 + b"\x7f"),
    "packed integers that end within one": field(9, b"\x01\x80"),
    "max_ads beyond 32 bits": b"\x30" + varint(2**32 + 7),
    "include_sids of the highest bit": b"\x50" + varint(2**63),
    "include_sids of a bit too high": b"\x50" + b"\x80" * 9 + b"\x02",
    "a tag beyond 32 bits": varint((1 << 32) + 48) + b"\x07",
    "the largest tag": varint((1 << 32) - 8) + b"\x07",
    "field 0": b"\x00\x01",
    "field 0 in two bytes": b"\x80\x00\x01",
    "field 0 in a group": b"\x3b\x00\x00\x3c",
    "wire type 6": b"\x36",
    "wire type 7 of an unknown field": b"\x87\x01",
    "a size of 2^31": b"\x0a\x80\x80\x80\x80\x08",
    "a size of 2^32 + 1": b"\x0a\x81\x80\x80\x80\x10a",
    "an end without a group": b"\x3c",
    "a group without an end": b"\x3b",
    "the end of another group": b"\x3b\x44",
    "a group of a known field": b"\x23\x24",
    "no text in a group": b"\x3b\x0a\x01\xff\x3c",
    "a group that ends in another message": b"\x3b" + field(5, b"\x3c"),
    "an entry with an unknown field": field(4, COUNTRY + b"\x18\x01"),
    "a good entry, then one with an unknown field": field(4, COUNTRY)
    + field(4, entry(b"country", field(1, b"NO")) + b"\x1b\x1c"),
    "no text in an entry with an unknown field": field(
        4, entry(b"a", field(1, b"\xff")) + b"\x18\x01"
    ),
    "a name that is a number": field(4, b"\x08\x01" + field(2, field(1, b"US"))),
    "an entry with two messages": field(4, COUNTRY + field(2, field(1, b"NO"))),
    "an entry with two names": field(4, field(1, b"mood") + COUNTRY),
    "an empty entry": field(4, b""),
    "a name twice": field(4, COUNTRY) + field(4, entry(b"country", field(1, b"NO"))),
    "a name twice, the first of them reserved": field(4, entry(b"country", field(1, b"*")))
    + field(4, COUNTRY),
    "values with an unknown field": field(4, entry(b"country", b"\x10\x01" + field(1, b"US"))),
    "a name that is no text": field(4, entry(b"\xc3\x28", b"")),
    "a name with a zero byte": field(4, entry(b"a\0b", b"")),
    "features twice": field(5, field(1, entry(b"hour", b"")))
    + field(5, field(1, entry(b"hour", field(1, b"\0\0\x80\x3f")))),
    "floats of three bytes": within((5, 1), entry(b"hour", field(1, b"\0\0\0"))),
    "an infinite number": within((5, 1), entry(b"hour", field(1, b"\0\0\x80\x7f"))),
    "a float that is an integer": within((5, 1), entry(b"hour", b"\x08\x01")),
    "tokens beyond 32 bits": within(
        (5, 4), entry(b"clicks", b"\x08" + varint(2**32 + 1) + b"\x08\x01\x08\x01")
    ),
    "a side with an unknown field": within(
        (5, 4), entry(b"clicks", field(3, entry(b"action", b"\x08\x07") + b"\x18\x01"))
    ),
    "a sequence twice, of other sides": within(
        (5, 4), entry(b"clicks", field(3, entry(b"price", b"")))
    )
    + within((5, 4), entry(b"clicks", field(3, entry(b"cost", b"")))),
    "entities twice": field(11, entry(b"campaign", b"\x08\x07"))
    + field(11, entry(b"campaign", field(1, b"\x05\x09"))),
    "an entity of two lists of ids": field(
        11, entry(b"campaign", b"\x08\x07") + field(2, field(1, b"\x05\x09"))
    ),
    "ids of entities with an unknown field": field(11, entry(b"campaign", b"\x10\x07")),
    "an entity without ids": field(11, field(1, b"campaign")),
    "as many ids as may be": field(9, b"\x01\x02") + field(11, entry(b"a", field(1, b"\x01" * 7))),
    "an id too many": field(9, b"\x01\x02") + field(11, entry(b"a", field(1, b"\x01" * 8))),
    "ids that a later entry replaces": field(11, entry(b"a", field(1, b"\x01" * 63)))
    + field(11, entry(b"a", b"")),
    "many names of entities": b"".join(field(11, entry(b"%d" % i, b"")) for i in range(10)),
    "many limits": b"".join(field(12, field(1, b"%d" % i)) for i in range(10)),
    "a limit twice": field(12, field(1, b"a") + b"\x10\x07") + field(12, field(1, b"a")),
    "a limit with two numbers": field(12, field(1, b"a") + b"\x10\x07\x10\x09"),
    "a limit beyond 32 bits": field(12, field(1, b"a") + b"\x10" + varint(2**32 + 7)),
    "a limit that is text": field(12, field(1, b"a") + field(2, b"7")),
    "a limit with an unknown field": field(12, field(1, b"a") + b"\x18\x01"),
    "a limit of a long name": field(12, field(1, b"x" * 129)),
    "a limit whose name is no text": field(12, field(1, b"\xff")),
    "an input of another kind": within((5, 3), entry(b"hour", b""))
    + within((5, 2), entry(b"clicks", b"")),
}


@pytest.mark.parametrize("message", CASES.values(), ids=CASES)
def test_odd_requests_are_read_alike(message: bytes) -> None:
    assert_read_alike(READERS, message)


LENGTHS = {
    "a text": (1,),
    "a user": (4,),
    "entities": (11, 2),
    "a limit's name": (12, 1),
    "values": (4, 2),
    "a value": (4, 2, 1),
    "features": (5,),
    "a sequence": (5, 4),
    "tokens": (5, 4, 2, 1),
}


@pytest.mark.parametrize("numbers", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("size", range(1, 11))
def test_a_length_has_as_many_bytes_as_protobuf_takes(numbers: tuple[int, ...], size: int) -> None:
    *outer, last = numbers
    message = within(outer, field(last, b"", size))
    assert assert_read_alike(READERS, message)["malformed"] == (size > 5)


@examples(35)
@given(st.binary(max_size=12))
def test_text_is_what_protobuf_takes_for_it(text: bytes) -> None:
    for message in (
        field(1, text),
        field(4, entry(text, b"")),
        field(4, entry(b"a", field(1, text))),
    ):
        assert_read_alike(READERS, message)


def every_field(of: Descriptor) -> Values:
    """Return a value for each field of the message, and of the messages in it."""
    values: Values = {}
    for each in of.fields:
        inner = each.message_type
        value: Any = {each.TYPE_STRING: "LOW", each.TYPE_FLOAT: 1.0}.get(each.type, 1)
        if inner is not None:
            value = every_field(inner)
        if is_map(each):
            value = {"a": value["value"]}
        values[each.name] = [value] if each.is_repeated and not is_map(each) else value
    return values


def test_every_field_of_the_proto_file_has_its_row() -> None:
    values = every_field(REQUEST) | {"profile": "reduced"}
    for seed in range(9):
        message = WireWriter(Random(seed)).message(values, REQUEST)
        assert assert_read_alike(READERS, message)["taken"]
    update = WireWriter(Random(7)).message(
        every_field(UPDATE) | {"resume": {}, "unweight": [2]}, UPDATE
    )
    assert read_update(update).sequence == 1
