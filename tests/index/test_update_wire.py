"""C++ reads and writes updates of ads as protobuf does: same meaning, same faults, same words."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import inf
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grace.configs.errors import RequestError
from grace.index.updates.update import (
    MOST_IDS,
    MOST_LEVELS,
    MOST_PARTS,
    MOST_PUTS,
    AdUpdate,
    full_message,
    ids_message,
    read_update,
)
from grace.native.wire import SHORT_MESSAGES
from grace.proto.retrieval_pb2 import GetStopsResponse, UpdateAdsRequest
from support.arrays import assert_same_arrays
from support.strict_wire import UPDATE, MalformedError, UnknownFieldError, decode
from support.update_calls import update
from support.wire_cases import WireWriter, field, grown, hostile_update, varint

SEQUENCE, KIND, STOP, RESUME, WEIGHTS, UNWEIGHT, PUT = range(1, 8)
LEVELS = ("ad", "ad", "campaign", "advertiser", "", "Bad", "größe")
IDS = (0, 1, 5, 63, 127, 128, 2**31, 2**32 + 3, 2**63 - 1, 2**63, 2**64 - 1)
KNOWN = varint(SEQUENCE << 3) + b"\x01" + varint(KIND << 3) + b"\x01"
EDGES = [0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1]
EDGES += [0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF]
ids64 = st.integers(-(2**63), 2**63 - 1)
floats32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def outcome(message: bytes) -> AdUpdate | str:
    try:
        return read_update(message)
    except RequestError as error:
        return str(error) if error.field else "malformed"


def expected(message: bytes) -> AdUpdate | str:
    """What comes of the update as protobuf writes it, if all of it is known."""
    try:
        decode(message, UPDATE)
    except MalformedError:
        return "malformed"
    except UnknownFieldError as error:
        return str(RequestError(error.within or "UpdateAdsRequest", error.text))
    request = UpdateAdsRequest.FromString(message)
    return outcome(request.SerializeToString(deterministic=True))


def assert_read_alike(message: bytes) -> str:
    got = outcome(message)
    assert_same_arrays(got, expected(message), message.hex())
    return got.partition(":")[0].partition("[")[0] if isinstance(got, str) else "taken"


def faults() -> Iterator[tuple[UpdateAdsRequest, str]]:
    """Yield updates that live ads cannot take; test_live_ads.py has what the others mean."""
    ad, levels = {"ad": [5]}, {f"e{i}": [1] for i in range(MOST_LEVELS + 1)}
    yield update(0), "sequence: must be at least 1, got 0; number updates 1, 2, 3, ..."
    yield UpdateAdsRequest(sequence=1), "kind: 0 is not a kind; send KIND_DELTA or KIND_FULL"
    fault = "a FULL update replaces the whole state and must not have it; leave it out"
    yield update(1, full=True, resume=ad), f"resume: {fault}"
    yield update(1, full=True, unweight=[5]), f"unweight: {fault}"
    yield update(1, parts=2), "parts: only a FULL update comes in parts; send several DELTAs"
    fault = f"parts: {MOST_PARTS + 1}, at most {MOST_PARTS}; send fewer and larger ones"
    yield update(1, full=True, part=1, parts=MOST_PARTS + 1), fault
    for part, parts in ((0, 2), (3, 2)):
        fault = f"part: {part} is not within 1 to `parts`, {parts}; number parts so"
        yield update(1, full=True, part=part, parts=parts), fault
    yield update(2, changed_at=1), "changed_at: 1, and only a FULL may have it; leave it out"
    fault = "changed_at: 2, at most 1, its sequence; leave it out"
    yield update(1, full=True, changed_at=2), fault
    fault = "not a level; send 'ad', or the name of an entity of the targeting schema"
    yield update(1, stop={"Bad": [5], "ad": [7]}), f"stop['Bad']: {fault}"
    fault = "resume['ad']: 5 is in stop, too; send it in one of them"
    yield update(1, stop=ad, resume=ad), fault
    fault = "unweight: 5 is in weights, too; send it in one of them"
    yield update(1, weights={5: 1.0}, unweight=[7, 5]), fault
    fault = "weights[0].weight: must be finite, got inf; send another weight"
    yield update(1, weights={5: inf}), fault
    twice = update(1, weights={5: 1.0})
    twice.weights.add(ad_id=5, weight=2.0)
    yield twice, "weights[1].ad_id: ad 5 has two weights; send only one"
    fault = f"stop: {MOST_LEVELS + 1} levels in stop and resume, at most {MOST_LEVELS}; send fewer"
    yield update(1, stop=levels), fault
    fault = f"put: {MOST_PUTS + 1} puts and removals, at most {MOST_PUTS}; send several updates"
    yield update(1, put=["{}"], remove=range(MOST_PUTS)), fault


def test_what_cannot_be_taken_is_refused_by_its_field() -> None:
    for wrong, fault in faults():
        assert outcome(wrong.SerializeToString()) == fault


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


def entry(name: bytes, message: bytes) -> bytes:
    return field(1, name) + field(2, message)


LEVELS_TWICE = [field(STOP + i % 2, entry(b"e%d" % (i // 2), b"")) for i in range(128)]
ODD = {
    "as many levels as may be": KNOWN + b"".join(LEVELS_TWICE),
    "a level too many": KNOWN + b"".join([*LEVELS_TWICE, field(STOP, entry(b"ad", b""))]),
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
