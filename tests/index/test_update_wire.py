"""C++ reads and writes updates of ads as protobuf does: same meaning, same faults, same words."""

import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from grace.configs.errors import RequestError
from grace.index.updates.update import (
    MOST_IDS,
    AdUpdate,
    full_message,
    ids_message,
    read_kept,
    read_update,
)
from grace.proto.retrieval_pb2 import GetStopsResponse, UpdateAdsRequest
from support.plain_updates import PlainUpdate, plain_update
from support.wire_cases import field, random_field, varint, with_bytes_changed, written

SEQUENCE, KIND, STOP, RESUME, WEIGHTS, UNWEIGHT = range(1, 7)
FIXED32 = 5
LEVELS = (b"ad", b"ad", b"campaign", b"advertiser", b"", b"Bad", b"\xff", "größe".encode())
IDS = (0, 1, 5, 63, 127, 128, 2**31, 2**32 + 3, 2**63 - 1, 2**63, 2**64 - 1)
FLOATS = (0.0, -0.0, -1.5, 3.4e38, 1e-45, float("nan"), float("inf"), -float("inf"))
KNOWN = varint(SEQUENCE << 3) + b"\x01" + varint(KIND << 3) + b"\x01"
ids64 = st.integers(-(2**63), 2**63 - 1)
floats32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def outcome(read: object, message: bytes) -> object:
    try:
        return read(message)  # type: ignore[operator]
    except RequestError as error:
        return str(error)
    except DecodeError:
        return "malformed"


def plain(update: AdUpdate) -> PlainUpdate:
    return PlainUpdate(
        update.sequence,
        update.full,
        {level: ids.tolist() for level, ids in update.stop.items()},
        {level: ids.tolist() for level, ids in update.resume.items()},
        dict(zip(update.weighted.tolist(), update.weights.tolist(), strict=True)),
        update.unweight.tolist(),
    )


def assert_read_alike(message: bytes) -> str:
    got, expected = outcome(read_update, message), outcome(plain_update, message)
    if isinstance(got, AdUpdate):
        assert got.weighted.tolist() == sorted(got.weighted.tolist())
        got = plain(got)
    assert got == expected, message.hex()
    return got.partition(":")[0].partition("[")[0] if isinstance(got, str) else "taken"


def hostile_update(random: Random) -> bytes:
    """An update with fields in any order, split, repeated, unknown or of a wrong type."""
    rare = random.choice((2, 9, 99))  # the higher, the fewer flaws

    def flawed(once_in: int = 1) -> bool:
        return random.random() * rare * once_in < 1

    def integer(value: float) -> bytes:
        return varint(int(value), random.choice((0, 0, 0, 1, 9)))

    def ids(number: int) -> list[bytes]:
        values = [random.choice(IDS) for _ in range(random.choice((0, 1, 2, 9)))]
        return written(random, number, values, integer, 0)

    def unknown() -> bytes:
        number, kind = random.choice(((7, 0), (63, 2), (1, 2), (5, 0), (2047, 3), (2, 6), (3, 4)))
        return varint(number << 3 | kind) + (b"\x01x" if kind == 2 else b"\x01")

    def level() -> bytes:
        name = random.choice(LEVELS if flawed() else LEVELS[:4])
        parts = [random_field(random, 1, name)]
        for _ in range(random.choice((0, 1, 1, 1, 2))):
            message = b"".join(ids(1)) + (unknown() if flawed(4) else b"")
            parts.append(random_field(random, 2, message))
        parts += [unknown()] if flawed(4) else []
        random.shuffle(parts)
        return b"".join(parts)

    def weight() -> bytes:
        number = random.choice(FLOATS if flawed() else FLOATS[:5])
        parts = [b"\x08" + integer(random.randrange(999)), b"\x15" + struct.pack("<f", number)]
        parts += [random.choice(parts)] if flawed() else []
        parts += [unknown()] if flawed(4) else []
        random.shuffle(parts)
        return b"".join(parts[: random.choice((1, 2, 2, 2, 3))])

    kind = random.choice((0, 3, 2**32 + 1, 2**64 - 1)) if flawed() else random.choice((1, 1, 2))
    parts = [varint(SEQUENCE << 3) + integer(0 if flawed() else random.choice(IDS[1:]))]
    parts.append(varint(KIND << 3) + integer(kind))
    parts += [random_field(random, STOP, level()) for _ in range(random.choice((0, 1, 3)))]
    if kind != 2 or flawed():
        parts += [random_field(random, RESUME, level()) for _ in range(random.choice((0, 1, 1)))]
        parts += ids(UNWEIGHT) if random.random() < 0.3 else []
    parts += [random_field(random, WEIGHTS, weight()) for _ in range(random.choice((0, 1, 9)))]
    parts += [unknown()] if flawed() else []
    parts += [random.choice(parts)] if flawed() else []
    random.shuffle(parts)
    message = b"".join(parts)
    return with_bytes_changed(random, message) if flawed() else message


def test_hostile_updates_are_read_alike() -> None:
    random, seen = Random(7), Counter[str]()
    for _ in range(3333):
        seen[assert_read_alike(hostile_update(random))] += 1
    for end in ("taken", "malformed", "sequence", "kind", "stop", "resume", "weights"):
        assert seen[end] > 20, seen


@settings(max_examples=300)
@given(st.binary(max_size=40))
def test_bytes_after_an_update_are_read_alike(more: bytes) -> None:
    assert_read_alike(KNOWN + more)
    assert_read_alike(KNOWN + field(STOP, more))
    assert_read_alike(KNOWN + field(STOP, field(1, b"ad") + field(2, more)))
    assert_read_alike(KNOWN + field(WEIGHTS, more))
    assert_read_alike(KNOWN + field(UNWEIGHT, more))


def entry(name: bytes, message: bytes) -> bytes:
    return field(1, name) + field(2, message)


STOPPED = field(STOP, entry(b"ad", b"\x08\x05"))
ODD = {
    "the last number counts": KNOWN + b"\x08\x07",
    "a kind beyond 32 bits": KNOWN + b"\x10" + varint(2**32 + 2),
    "a negative kind": KNOWN + b"\x10" + varint(-1),
    "a later entry of a level replaces the first": STOPPED + KNOWN + STOPPED[:-1] + b"\x07",
    "the ids of two messages of an entry": KNOWN
    + field(STOP, entry(b"ad", b"\x08\x05") + field(2, field(1, b"\x07\x05"))),
    "an entry without a name": KNOWN + field(STOP, field(2, b"\x08\x05")),
    "an entry without ids": KNOWN + field(STOP, field(1, b"ad")),
    "a resume without ids in a FULL": KNOWN + b"\x10\x02" + field(RESUME, field(1, b"ad")),
    "a name that is no text": KNOWN + field(STOP, entry(b"\xc3\x28", b"")),
    "a long name": KNOWN + field(STOP, entry(b"X" * 99, b"")),
    "an unknown field of an entry": KNOWN + field(STOP, entry(b"ad", b"") + b"\x18\x01"),
    "an unknown field of ids": KNOWN + field(RESUME, entry(b"ad", b"\x10\x01")),
    "an unknown field of a weight": KNOWN + field(WEIGHTS, b"\x08\x07\x18\x01"),
    "a weight that is a double": KNOWN + field(WEIGHTS, b"\x11" + b"\0" * 8),
    "ids of fixed size": KNOWN + field(STOP, entry(b"ad", b"\x09" + b"\0" * 8)),
    "a weight without fields": KNOWN + field(WEIGHTS, b""),
    "two weights of ad 0": KNOWN + 2 * field(WEIGHTS, b"\x15\0\0\x80\x3f"),
    "a bad weight after two of one ad": KNOWN
    + b"".join(field(WEIGHTS, b"\x08\x07" + each) for each in (b"", b"", b"\x15\0\0\x80\x7f")),
    "an unknown field before bytes that are malformed": KNOWN + b"\x38\x01\xff",
    "as many levels as may be": KNOWN
    + b"".join(field(STOP + i % 2, entry(b"e%d" % (i // 2), b"")) for i in range(128)),
    "a level too many": KNOWN + b"".join(field(STOP, entry(b"e%d" % i, b"")) for i in range(65)),
}


@pytest.mark.parametrize("message", ODD.values(), ids=ODD)
def test_odd_updates_are_read_alike(message: bytes) -> None:
    assert_read_alike(message)


def test_ids_are_counted_before_they_are_read_and_a_kept_update_may_have_more() -> None:
    ids = bytes(MOST_IDS - 1)  # zeros
    most = KNOWN + field(STOP, entry(b"ad", field(1, ids))) + field(UNWEIGHT, b"\x07")
    assert read_update(most).stop["ad"].tolist() == [0]
    with pytest.raises(RequestError, match=f"stop: {MOST_IDS + 1} ids and weights, at most"):
        read_update(most + field(WEIGHTS, b""))
    assert read_kept(most + field(WEIGHTS, b"")).weighted.tolist() == [0]


@settings(max_examples=63)
@given(
    st.integers(1, 2**64 - 1),
    st.dictionaries(st.from_regex(r"[a-z][a-z_0-9]{0,20}", fullmatch=True), st.sets(ids64)),
    st.dictionaries(ids64, floats32),
)
def test_a_full_message_is_what_protobuf_reads_as_the_state(
    sequence: int, stopped: Mapping[str, set[int]], weights: Mapping[int, float]
) -> None:
    arrays = {level: np.array(sorted(ids), np.int64) for level, ids in stopped.items()}
    weighted = np.array(sorted(weights), np.int64)
    values = np.array([weights[each] for each in sorted(weights)], np.float32)
    message = bytes(full_message(sequence, arrays, weighted, values))
    expected = UpdateAdsRequest(sequence=sequence, kind=UpdateAdsRequest.KIND_FULL)
    for level, ids in arrays.items():
        expected.stop[level].ids.extend(ids.tolist())
    for ad_id, weight in zip(weighted.tolist(), values.tolist(), strict=True):
        expected.weights.add(ad_id=ad_id, weight=weight)
    assert UpdateAdsRequest.FromString(message) == expected
    assert plain(read_kept(message)).weights == dict(weights)


@given(st.lists(ids64))
def test_a_message_of_ids_begins_a_page_of_stops(ids: Sequence[int]) -> None:
    page = ids_message(np.array(ids, np.int64)) + GetStopsResponse(sequence=7).SerializeToString()
    assert GetStopsResponse.FromString(page) == GetStopsResponse(ids=ids, sequence=7)
