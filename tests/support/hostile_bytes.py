"""Bytes that are nearly a request, or nothing like one."""

from collections.abc import Sequence

from hypothesis import strategies as st

from support.wire_cases import field, varint

FEATURES = 5
MAX_VARINT = varint(2**64 - 1)

Change = tuple[float, float, bytes]
"""The shares of a frame's length between which bytes are cut out, and the bytes put there."""


def mutated_frames(frames: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Draw one of the frames with a few changes, or bytes that are no frame."""
    place = st.floats(0, 1)
    change: st.SearchStrategy[Change] = st.one_of(
        place.flatmap(lambda at: st.tuples(st.just(at), st.just(at), _put(frames))),  # inserted
        st.tuples(st.just(1.0), st.just(1.0), _put(frames)),  # appended
        st.tuples(place, place, st.binary(max_size=3)),  # cut out, replaced or truncated
    )
    mutated = st.builds(_changed, st.sampled_from(frames), st.lists(change, min_size=1, max_size=4))
    return mutated | st.binary(max_size=200)


def _put(frames: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    short, depth = st.binary(max_size=30), st.integers(1, 3000)
    return st.one_of(
        short,
        st.sampled_from([*frames, MAX_VARINT, field(1, b"\xff\xfe\xc3")]),
        st.sampled_from([1, 4, FEATURES]).map(_claims_gigabytes),
        depth.map(_nested),
        depth.map(lambda groups: b"\x0b" * groups),
        st.sampled_from([9, 1999]).flatmap(lambda to: short.map(lambda text: field(to, text))),
        st.integers(0, 2**64 - 1).map(lambda number: b"\x30" + varint(number)),  # max_ads
        st.binary(min_size=4, max_size=4).map(_dense_number),
    )


def _changed(frame: bytes, changes: Sequence[Change]) -> bytes:
    for begin, end, put in changes:
        first, last = sorted((round(begin * len(frame)), round(end * len(frame))))
        frame = frame[:first] + put + frame[last:]
    return frame


def _claims_gigabytes(number: int) -> bytes:
    return varint(number << 3 | 2) + varint(1 << 31) + b"little"


def _nested(depth: int) -> bytes:
    content = b""
    for _ in range(depth):
        content = field(FEATURES, content)
    return content


def _dense_number(number: bytes) -> bytes:
    """Return a message whose features.dense.hour has the bytes of a float, possibly NaN."""
    return field(FEATURES, field(1, field(1, b"hour") + field(2, field(1, number))))
