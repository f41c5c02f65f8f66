"""C++ reads and writes updates of ads as protobuf does: same meaning, same faults, same words."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace.configs.errors import RequestError
from grace.index.updates.update import MOST_IDS, AdUpdate, full_message, ids_message, read_update
from grace.native.wire import SHORT_MESSAGES
from grace.proto.retrieval_pb2 import GetStopsResponse, UpdateAdsRequest
from support.arrays import assert_same_arrays
from support.plain_updates import plain_update
from support.strict_wire import UPDATE
from support.wire_cases import WireWriter, field, grown, hostile_update, varint

SEQUENCE, KIND, STOP, RESUME, WEIGHTS, UNWEIGHT, PUT = range(1, 8)
LEVELS = ("ad", "ad", "campaign", "advertiser", "", "Bad", "größe")
IDS = (0, 1, 5, 63, 127, 128, 2**31, 2**32 + 3, 2**63 - 1, 2**63, 2**64 - 1)
KNOWN = varint(SEQUENCE << 3) + b"\x01" + varint(KIND << 3) + b"\x01"
EDGES = [0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1]
EDGES += [0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF]
ids64 = st.integers(-(2**63), 2**63 - 1)
floats32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def outcome(read: object, message: bytes) -> object:
    try:
        return read(message)  # type: ignore[operator]
    except RequestError as error:
        return str(error) if error.field else "malformed"


def assert_read_alike(message: bytes) -> str:
    got, expected = outcome(read_update, message), outcome(plain_update, message)
    assert_same_arrays(got, expected, message.hex())
    return got.partition(":")[0].partition("[")[0] if isinstance(got, str) else "taken"


def test_hostile_updates_are_read_alike() -> None:
    random, seen = Random(7), Counter[str]()
    for _ in range(3333):
        levels = LEVELS if random.random() < 0.2 else LEVELS[:4]
        seen[assert_read_alike(hostile_update(random, levels, IDS))] += 1
    for end in ("taken", "malformed", "sequence", "kind", "stop", "resume", "weights"):
        assert seen[end] > 20, seen


def test_every_field_of_the_proto_file_has_its_row() -> None:
    for values in grown(UPDATE, 1):
        assert_read_alike(WireWriter(Random(7)).message(values, UPDATE))


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
    assert read_update(most + field(WEIGHTS, b""), bounded=False).weighted.tolist() == [0]


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
    kept = read_update(message, bounded=False)
    expected_update = AdUpdate(sequence, True, arrays, {}, weighted, values, changed_at=sequence)
    assert_same_arrays(kept, expected_update)


@given(st.lists(ids64))
def test_a_message_of_ids_begins_a_page_of_stops(ids: Sequence[int]) -> None:
    page = ids_message(np.array(ids, np.int64)) + GetStopsResponse(sequence=7).SerializeToString()
    assert GetStopsResponse.FromString(page) == GetStopsResponse(ids=ids, sequence=7)


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_utf8_is_what_python_says_for_all_edges_of_the_table(length: int) -> None:
    choices = EDGES if length < 4 else [*EDGES[1::2], 0x90, 0x8F, 0xF0, 0xF4]
    for letters in product(choices, repeat=length):
        text = bytes(letters)
        _, wrong = SHORT_MESSAGES.read("UpdateAdsRequest", field(PUT, text))
        assert (wrong is None) == is_utf8(text), text
