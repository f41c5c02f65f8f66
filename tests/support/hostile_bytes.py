"""Bytes that are nearly a request, or nothing like one."""

import struct
from collections.abc import Callable, Sequence
from typing import TypeAlias

from hypothesis import strategies as st

Mutation: TypeAlias = Callable[[bytes], bytes]

MAX_VARINT = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
USER, FEATURES, EXCLUDE_ADS, DENSE = 4, 5, 9, 1


def mutated_frames(frames: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """One of the frames after a few mutations, or no frame at all."""
    mutated = st.builds(
        _apply, st.sampled_from(frames), st.lists(mutations(), min_size=1, max_size=4)
    )
    return mutated | st.binary(max_size=200)


def mutations() -> st.SearchStrategy[Mutation]:
    place = st.floats(0, 1)  # where in the frame, as a share of its length
    return st.one_of(
        st.builds(_bit_flipped, place, st.integers(0, 7)),
        st.builds(_truncated, place),
        st.builds(_inserted, place, st.binary(min_size=1, max_size=12)),
        st.builds(_inserted, place, st.just(MAX_VARINT)),
        st.builds(_cut_out, place, st.integers(1, 9)),
        st.builds(_repeated, place, place),
        st.builds(_appended, st.integers(1, 10).map(lambda field: _text(field, b"\xff\xfe\xc3"))),
        st.builds(_appended, st.sampled_from([_claims_gigabytes(f) for f in (1, USER, FEATURES)])),
        st.builds(_appended, st.integers(1, 3000).map(_nested)),
        st.builds(_appended, st.integers(1, 3000).map(lambda depth: b"\x0b" * depth)),
        st.builds(_appended, st.floats(width=32).map(_dense_number)),
        st.builds(_appended, st.binary(max_size=30).map(lambda text: _text(1999, text))),
        st.builds(_appended, st.integers(0, 2**64 - 1).map(lambda n: b"\x30" + _varint(n))),
        st.builds(_appended, st.binary(max_size=30).map(lambda text: _text(EXCLUDE_ADS, text))),
    )


def _apply(frame: bytes, changes: Sequence[Mutation]) -> bytes:
    for change in changes:
        frame = change(frame)
    return frame


def _at(frame: bytes, place: float) -> int:
    return min(int(place * len(frame)), max(0, len(frame) - 1))


def _bit_flipped(place: float, bit: int) -> Mutation:
    def change(frame: bytes) -> bytes:
        at = _at(frame, place)
        return (
            frame[:at] + bytes(byte ^ (1 << bit) for byte in frame[at : at + 1]) + frame[at + 1 :]
        )

    return change


def _truncated(place: float) -> Mutation:
    return lambda frame: frame[: _at(frame, place)]


def _inserted(place: float, extra: bytes) -> Mutation:
    return lambda frame: frame[: _at(frame, place)] + extra + frame[_at(frame, place) :]


def _cut_out(place: float, size: int) -> Mutation:
    return lambda frame: frame[: _at(frame, place)] + frame[_at(frame, place) + size :]


def _repeated(begin: float, end: float) -> Mutation:
    """Fields that occur twice merge; half a field twice is damage."""

    def change(frame: bytes) -> bytes:
        first, last = sorted((_at(frame, begin), _at(frame, end)))
        return frame + frame[first:last]

    return change


def _appended(extra: bytes) -> Mutation:
    return lambda frame: frame + extra


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def _text(field: int, content: bytes) -> bytes:
    """A length-delimited field."""
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _claims_gigabytes(field: int) -> bytes:
    return _varint(field << 3 | 2) + _varint(1 << 31) + b"little"


def _nested(depth: int) -> bytes:
    content = b""
    for _ in range(depth):
        content = _text(FEATURES, content)
    return content


def _dense_number(number: float) -> bytes:
    """features.dense.hour = number, which may be no number."""
    entry = _text(1, b"hour") + _text(2, _text(1, struct.pack("<f", number)))
    return _text(FEATURES, _text(DENSE, entry))
