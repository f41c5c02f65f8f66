"""C++ reads a request whole or refuses it: it ignores no field and no part of a map entry."""

import json
from collections.abc import Iterator
from typing import TypeAlias

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from grace.configs.serving import LimitsConfig
from grace.proto.retrieval_pb2 import RetrieveRequest
from grace.server.errors import ServiceError
from grace.server.stages.requests import read_request, request_id_of
from support.hostile_bytes import mutated_frames
from support.stage_cases import GENERATION, message_of
from support.strict_wire import (
    BYTES,
    FIXED32,
    FIXED64,
    GROUP,
    REQUEST,
    VARINT,
    MalformedError,
    UnknownFieldError,
    Values,
    accepts,
    decode,
    values_of,
    without_defaults,
)
from support.wire_cases import field, varint

LIMITS = LimitsConfig()
FULL = message_of(
    {
        "request_id": "r1",
        "user": {"country": {"values": ["US", "é"]}, "location": {"values": ["x"]}, "mood": {}},
        "features": {
            "dense": {"hour": {"values": [13.5]}},
            "categorical": {"device": {"ids": ["3"]}},
            "bags": {"pages": {"ids": [str(-(2**63)), "7"]}},
            "sequences": {
                "clicks": {"sids": [1, 2], "side": {"action": {"ids": ["2", "0"]}}},
            },
        },
        "exclude_ads": ["123", "-5"],
        "exclude": {"campaign": {"ids": ["9", "12"]}, "shop": {}},
        "at_most": {"advertiser": 3},
    }
)

Piece: TypeAlias = "bytes | tuple[int, Tree]"
Tree: TypeAlias = "tuple[Descriptor, list[Piece]]"
"""A piece is the bytes of one field, or a field's number and the message that it holds."""


def tree_of(message: bytes, of: Descriptor) -> Tree:
    pieces: list[Piece] = []
    at = 0
    while at < len(message):
        end = next(
            end for end in range(at + 1, len(message) + 1) if is_one_field(message[at:end], of)
        )
        whole, (number, written_as) = message[at:end], divmod(message[at], 8)
        inner = of.fields_by_number[number].message_type
        if inner is None:
            pieces.append(whole)
        else:
            assert written_as == BYTES
            pieces.append((number, tree_of(whole[1 + len(varint(len(whole))) :], inner)))
        at = end
    return of, pieces


def is_one_field(content: bytes, of: Descriptor) -> bool:
    try:
        return bool(decode(content, of))
    except MalformedError:
        return False


def bytes_of(tree: Tree) -> bytes:
    return b"".join(
        piece if isinstance(piece, bytes) else field(piece[0], bytes_of(piece[1]))
        for piece in tree[1]
    )


def messages_in(tree: Tree, within: str) -> Iterator[tuple[Tree, str]]:
    """Yield every message, with the field of the request that it belongs to."""
    yield tree, within
    for piece in tree[1]:
        if not isinstance(piece, bytes):
            name = tree[0].fields_by_number[piece[0]].name
            yield from messages_in(piece[1], within or name)


def refusal(message: bytes) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        read_request(message, LIMITS, GENERATION)
    return caught.value


@st.composite
def unknown_fields(draw: st.DrawFn, of: Descriptor) -> tuple[int, int, bytes]:
    """Draw an unknown field: its number, wire type and bytes."""
    number = draw(st.integers(1, 13) | st.integers(1, 2**29 - 1))
    kind = draw(st.sampled_from([VARINT, FIXED64, BYTES, GROUP, FIXED32]))
    if accepts(of, number, kind):
        number, kind = 2**29 - 1, VARINT
    content = {
        VARINT: varint(draw(st.integers(0, 2**64 - 1))),
        FIXED64: b"12345678",
        BYTES: b"\2ab",
        GROUP: varint(number << 3 | 4),
        FIXED32: b"1234",
    }
    return number, kind, varint(number << 3 | kind) + content[kind]


@settings(max_examples=70)
@given(st.data())
def test_a_field_that_we_do_not_know_is_refused_wherever_it_is(data: st.DataObject) -> None:
    tree = tree_of(FULL, REQUEST)
    assert bytes_of(tree) == FULL
    (of, pieces), within = data.draw(st.sampled_from(list(messages_in(tree, ""))))
    number, kind, unknown = data.draw(unknown_fields(of))
    pieces.insert(data.draw(st.integers(0, len(pieces))), unknown)
    error = refusal(bytes_of(tree))
    assert error.reason == "invalid_field"
    assert error.text.startswith(
        f"{within or 'RetrieveRequest'}: it has a field that this server does not know (number "
        f"{number}, wire type {kind})"
    )


def test_an_attribute_whose_entry_has_an_unknown_field_does_not_count_as_missing() -> None:
    """In protobuf's own readers it would be missing: ads that exclude the value would pass."""
    entry = field(1, b"country") + field(2, field(1, b"US"))
    message = field(4, entry + b"\x18\x01")
    assert not RetrieveRequest.FromString(message).user
    assert refusal(message).text.startswith("user: it has a field that this server does not know")


def test_an_unknown_field_of_the_request_itself_is_refused_with_its_id_still_read() -> None:
    message = FULL + field(13, b"advertiser")
    assert refusal(message).text == (
        "RetrieveRequest: it has a field that this server does not know (number 13, wire type 2); "
        "leave it out, or upgrade the server first"
    )
    assert request_id_of(message) == "r1"


@settings(max_examples=100)
@given(mutated_frames([FULL]))
def test_an_accepted_request_has_the_values_that_plain_python_reads(message: bytes) -> None:
    try:
        values = decode(message, REQUEST)
    except MalformedError:
        assert refusal(message).reason == "malformed"
        with pytest.raises(DecodeError):
            RetrieveRequest.FromString(message)
        return
    except UnknownFieldError:
        assert refusal(message).reason == "invalid_field"
        return
    read_alike = values_of(RetrieveRequest.FromString(message))
    assert as_text(read_alike) == as_text(values)


def as_text(values: Values) -> str:
    """Return a text in which every NaN is equal."""
    return json.dumps(without_defaults(values), sort_keys=True)
