"""C++ reads requests as the plain readers and encoders do: same meaning, same faults, same words.

FUZZ_SECONDS and FUZZ_SEED ask for more, and for others; `make soak` takes minutes.
"""

import os
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import count, product
from random import Random
from time import perf_counter

import numpy as np
import pytest
from google.protobuf.descriptor import Descriptor

from grace.configs.errors import RequestError
from grace.configs.serving import LimitsConfig
from grace.index.targeting.schema import (
    CLOCKS,
    Attribute,
    Flight,
    Property,
    Range,
    TargetingSchema,
    TargetSet,
)
from grace.index.users.user_rows import UserEncoder
from grace.index.users.values import InternedValues
from grace.model.definition.spec import ModelSpec
from grace.model.engine.feature_reader import FeatureReader
from grace.proto.retrieval_pb2 import RetrieveRequest
from grace.server.errors import ServiceError
from grace.server.messages import Retrieval
from grace.server.stages.requests import read_request, request_id_of
from support.arrays import assert_same_arrays
from support.encoder_cases import INTERFORMER
from support.pipeline_cases import GENERATION
from support.plain_inputs import assert_same_inputs, encode_inputs, ignored_inputs
from support.plain_requests import plain_request
from support.strict_wire import BYTES, REQUEST, is_map, type_of
from support.wire_cases import WireWriter, field, grown, hostile_request, random_spec, varint

MODELS = 8
SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))
SOAK_SECONDS = float(os.environ.get("FUZZ_SECONDS", "120"))
SEED = int(os.environ.get("FUZZ_SEED", "7"))
LIMITS = LimitsConfig(
    names=11,
    values_per_name=70,
    value_bytes=128,
    user_values=24,
    filter_values=9,
    events=40,
    exclude_ads=9,
)
SCHEMA = TargetingSchema(
    (
        Attribute("country", ("US", "NO", "é")),
        Attribute("gender", ("f", "m", "?"), missing="?"),
        Attribute("hour", tuple(map(str, range(CLOCKS["hour_of_week"]))), clock="hour_of_week"),
    ),
    (TargetSet("location", 256, 4, 3), TargetSet("audience", 64, 2, 64)),
    hash_seed=7,
    entities=("campaign", "advertiser"),
    ranges=(Range("age"), Range("income")),
    flights=(Flight("flight"),),
    properties=(Property("category"), Property("domain")),
)
ENCODER = UserEncoder(
    SCHEMA, tuple(map(InternedValues.of, (["US", "x", "f"], ["NO", "a\0b"], ["é", "x"], ["US"])))
)

NOW = 1_790_000_000_123

LOGGED = re.compile(
    r"RetrieveRequest|request_id|model|sid_space|profile|priority|exclude_ads|max_ads"
    r"|exclude|at_most|at|utc_offset_minutes"
    r"|user(\.\*(\.values|\.number)?)?|filters(\.\*(\.any_of|\.none_of|\.unknown)?)?"
    r"|features|features\.(dense|categorical|bags|tokens)(\.\*(\.values|\.ids)?)?"
    r"|features\.sequences(\.\*(\.sids|\.timestamps_ms|\.side(\.\*(\.ids)?)?)?)?"
)
"""Paths without a name that the caller chose."""

Refusal = tuple[str, str]


class Readers:
    """The readers of one model's features."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec, self.native = spec, FeatureReader(spec)


READERS = Readers(INTERFORMER)


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
    refused = refusal_of_both(message, limits)
    if refused is not None:
        return Counter([refused[0]])
    return Counter(
        [
            "taken",
            f"features {assert_same_look_ups(readers, message)}",
            f"user {assert_same_users(message)}",
        ]
    )


def refusal_of_both(message: bytes, limits: LimitsConfig) -> Refusal | None:
    """Compare what the readers take of a request, or how they refuse it."""
    got, expected = outcome(read_request, message, limits), outcome(plain_request, message, limits)
    if not isinstance(got, Retrieval) or not isinstance(expected, Retrieval):
        assert got == expected, message.hex()
        assert isinstance(got, tuple)
        return got
    for each in fields(Retrieval):
        one, other = getattr(got, each.name), getattr(expected, each.name)
        if isinstance(one, dict):
            assert one.keys() == other.keys(), (each.name, message.hex())
            pairs = [(value, other[name]) for name, value in one.items()]
        else:
            pairs = [(one, other)]
        assert all(np.array_equal(*pair) for pair in pairs), (each.name, message.hex())
    return None


def assert_same_look_ups(readers: Readers, message: bytes) -> str:
    """`read` or `refused`."""
    got = readers.native.read([message], 2)
    (fault,), (ignored,) = got.faults, got.ignored
    try:
        features = RetrieveRequest.FromString(message).features
        expected = encode_inputs(readers.spec, [features], 2)
        assert fault is None, message.hex()
        assert ignored == ignored_inputs(readers.spec, features)
    except RequestError as error:
        expected = encode_inputs(readers.spec, [], 2)
        assert str(fault) == str(error), message.hex()
        assert ignored == ()
    assert_same_inputs(readers.spec, got.inputs, expected)
    return "read" if fault is None else "refused"


def assert_same_users(message: bytes) -> str:
    """Compare with the request as protobuf writes it: `read` or `refused`."""
    plain = RetrieveRequest.FromString(message)
    plain.at = plain.at or NOW
    got, expected = (ENCODER.read([m], 2, now=NOW) for m in (message, plain.SerializeToString()))
    assert list(map(str, got.faults)) == list(map(str, expected.faults)), message.hex()
    assert got.rows.ignored == expected.rows.ignored
    assert_same_arrays(got.rows.asked, expected.rows.asked, message.hex())
    return "read" if got.faults == (None,) else "refused"


def fuzz(models: int, seconds: float) -> None:
    """Read requests of at least this many models, and of more until the time is over."""
    random, seen = Random(SEED), Counter[str]()
    end = perf_counter() + seconds
    for number in count():
        if number >= models and perf_counter() >= end:
            break
        spec = random.choice((INTERFORMER, random_spec(random)))
        readers = Readers(spec)
        for _ in range(63):
            limits = replace(
                LIMITS, names=random.choice((1, 11, 11, 11)), events=random.choice((3, 40))
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


ZERO, NAN = b"\x11" + bytes(8), b"\x11" + struct.pack("<d", float("nan"))
COUNTRY = entry(b"country", field(1, b"US"))
CASES = {
    "a name twice": field(4, COUNTRY) + field(4, entry(b"country", field(1, b"NO"))),
    "an entry with two messages": field(4, COUNTRY + field(2, field(1, b"NO"))),
    "a number twice, the first not finite": field(4, entry(b"age", NAN + ZERO)),
    "a number twice, the last not finite": field(4, entry(b"age", ZERO + NAN)),
    "the last millisecond": b"\x70" + varint(253_402_300_799_999),
    "a time after it": b"\x70" + varint(253_402_300_800_000),
    "a time before 1970": b"\x70" + varint(-1),
    **{
        f"{minutes} minutes ahead of UTC": b"\x70\x01\x78" + varint(minutes)
        for minutes in (-841, -840, 840, 841, 2**32)
    },
}


@pytest.mark.parametrize("message", CASES.values(), ids=CASES)
def test_odd_requests_are_read_alike(message: bytes) -> None:
    assert_read_alike(READERS, message)


NAMES = {
    "user": b"country",
    "dense": b"hour",
    "categorical": b"device",
    "bags": b"pages",
    "sequences": b"clicks",
    "side": b"action",
    "tokens": b"prompt",
    "filters": b"category",
    "exclude": b"campaign",
    "at_most": b"advertiser",
}
"""A name in each map that schema or model have."""

Put = Callable[[bytes], bytes]


def places(of: Descriptor, put: Put = bytes) -> Iterator[tuple[Descriptor, Put]]:
    """Yield each message within a message, and how bytes get into it."""
    yield of, put
    for each in of.fields:
        if each.message_type is not None:
            before = field(1, NAMES[each.name]) if is_map(each) else b""

            def inside(content: bytes, number: int = each.number, before: bytes = before) -> bytes:
                return put(field(number, before + content))

            yield from places(each.message_type, inside)


TENTH, ELEVEN = b"\x81" * 9 + b"\x7f", b"\x80" * 10 + b"\x01"
CONTENTS = (
    *(b"", b"\0", b"\4", varint(2**32 + 7), varint(2**63), b"\x80" * 9 + b"\2", TENTH, ELEVEN),
    *(b"\1\xff", b"\2\1\x80", b"\3\0\0\0", b"\4\0\0\x80\x7f", b"\x0a" + TENTH, b"\x0b" + ELEVEN),
    *(b"\x80\x80\x80\x80\x08", b"\x81\x80\x80\x80\x10a", b"\0\0\x80\x7f", bytes(8), b"\x3c"),
)
"""Numbers, lengths with what follows them, and numbers of a fixed size; some are wrong.

4 is the first number that is no category of `device`.
"""
ODD = (
    *(b"\x00\x01", b"\x80\x00\x01", b"\x3b\x00\x00\x3c", b"\x36", b"\x87\x01"),
    *(varint((1 << 32) + 48) + b"\x07", varint((1 << 32) - 8) + b"\x07"),
    *(b"\x3c", b"\x3b", b"\x3b\x44", b"\x3b\x3c", b"\x3b" + field(5, b"\x3c"), b"\xfb\x07\xfc\x07"),
)
"""Tags that no field has, and groups."""
KINDS = (0, 1, 2, 3, 5)


def test_odd_fields_are_read_alike_in_every_message() -> None:
    for of, put in places(REQUEST):
        for odd, before in product(ODD, (b"", field(1, b"\xff"))):
            assert_read_alike(READERS, put(before + odd))
        for number, kind, content in product((*of.fields_by_number, 17), KINDS, CONTENTS):
            assert_read_alike(READERS, put(varint(number << 3 | kind) + content))
        for each, size in product(of.fields, range(1, 11)):
            if type_of(each) == BYTES or each.is_repeated:
                seen = assert_read_alike(READERS, put(field(each.number, b"", size)))
                assert seen["malformed"] == (size > 5), (
                    "a length has as many bytes as protobuf takes"
                )


SMALL = LimitsConfig(
    filter_values=5,
    max_ads=11,
    default_max_ads=5,
    exclude_ads=7,
    request_id_bytes=9,
    names=4,
    user_values=8,
    values_per_name=6,
    value_bytes=10,
    events=3,
)
LIMITED = (SMALL, replace(SMALL, user_values=5), replace(SMALL, message_bytes=7))


def test_a_limit_cuts_every_field_at_the_same_size() -> None:
    """Bytes that are no request are refused as too large before they are read."""
    found = set[str]()
    for size, limits in product(range(14), LIMITED):
        random = Random(size)
        for values in (*grown(REQUEST, size), None):
            message = b"\xff" * size
            if values is not None:
                message = WireWriter(random).message(values, REQUEST)
            refusal = str(refusal_of_both(message, limits))
            found.update(re.findall(r"at most \d+ \(limits\.(\w+)\)", refusal))
    of_calls = {"open_calls", "connection_calls", "connections"}
    assert found == {each.name for each in fields(LimitsConfig)} - of_calls - {"default_max_ads"}


def test_the_id_of_a_refused_request_can_still_be_read() -> None:
    for request_id in ("", "r1", "é" * 99):
        message = field(1, request_id.encode()) + field(9, b"\x7b")
        assert request_id_of(message) == request_id_of(message + b"\x6a\x01a") == request_id
        assert request_id_of(message + b"\xff") is None
