"""The native checks of arrays that several threads share, and what they do with foreign text."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from grace.index.storage.checks import (
    FIND_IN_GROUPS,
    FIND_IN_OFFSETS,
    Found,
    Kind,
    find_in_ids,
    find_in_lookup,
    find_in_strings,
    find_in_weights,
)
from grace.index.users.values import InternedValues

MANY = (1 << 16) * 3 + 63  # enough to be checked in chunks
HALF, LAST = MANY // 2, MANY - 1
NOTHING = (Kind.NONE, 0)
IDS = np.random.default_rng(7).permutation(MANY).astype(np.int64) * 3
ORDER = np.argsort(IDS).astype(np.int32)
TEXTS = InternedValues.of(f"\u00e9{i:07}" for i in range(MANY))

EDGES = [0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1]
EDGES += [0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF]


class Case(NamedTuple):
    """`find` accepts `right`; with the number at a place replaced, it finds a kind at a place."""

    right: npt.NDArray[Any]
    find: Callable[[npt.NDArray[Any], int], Found]
    faults: tuple[tuple[int, float, Kind, int], ...]


def offsets(dtype: str, nonempty: bool) -> Case:
    faults = [
        (0, -1, Kind.FIRST_OFFSET, 0),
        *((at, -2, Kind.OFFSET_DESCENDS, at) for at in (1, 1024, HALF, MANY)),
        (MANY, MANY + 7, Kind.LAST_OFFSET, MANY),
    ]
    if nonempty:
        faults += [(at, at - 1, Kind.EMPTY_GROUP, at) for at in (1, 1024, HALF, MANY)]
    return Case(
        np.arange(MANY + 1, dtype=dtype),
        lambda own, threads: FIND_IN_OFFSETS[dtype](own, MANY, MANY, nonempty, threads),
        tuple(faults),
    )


def members(offsets_dtype: str, dtype: str) -> Case:
    cuts: npt.NDArray[Any] = np.arange(0, 3 * MANY + 1, 3, dtype=offsets_dtype)
    places = (1, 3 * HALF + 2, 3 * MANY - 1)
    return Case(
        np.tile(np.array([0, 7, 111], dtype), MANY),
        lambda own, threads: FIND_IN_GROUPS[offsets_dtype, dtype](
            cuts, MANY, own, len(own), 111, threads
        ),
        (
            *((at, 0, Kind.NOT_ASCENDING, at) for at in places),
            *((at, 112, Kind.OUT_OF_RANGE, at) for at in places),
        ),
    )


CASES = {
    **{f"offsets {d} {n}": offsets(d, n) for d in FIND_IN_OFFSETS for n in (True, False)},
    **{f"members {one} {other}": members(one, other) for one, other in FIND_IN_GROUPS},
    "ids": Case(
        np.arange(2 * MANY, dtype=np.int32) % 63 + 5,
        lambda own, threads: find_in_ids(own[1:], MANY, 2, 5, 68, threads),
        ((1, 4, Kind.OUT_OF_RANGE, 0), (2 * LAST + 1, 68, Kind.OUT_OF_RANGE, LAST)),
    ),
    "lookup": Case(
        ORDER,
        lambda own, threads: find_in_lookup(IDS, own, MANY, threads),
        (
            *((at, MANY, Kind.OUT_OF_RANGE, at) for at in (0, HALF, LAST)),
            *((at, -1, Kind.OUT_OF_RANGE, at) for at in (0, HALF, LAST)),
            (1025, ORDER[1024], Kind.NOT_ASCENDING, 1025),  # twice the same ordinal
        ),
    ),
    "weights": Case(
        np.linspace(-1e38, 1e38, MANY, dtype=np.float32),
        lambda own, threads: find_in_weights(own, MANY, threads),
        tuple((at, x, Kind.NOT_FINITE, at) for at in (0, HALF, LAST) for x in (np.nan, -np.inf)),
    ),
    "texts": Case(
        TEXTS.utf8,
        lambda own, threads: find_in_strings(TEXTS.offsets, MANY, own, len(own), threads),
        (
            *((9 * at, 0xFF, Kind.NOT_UTF8, at) for at in (0, 1, HALF, LAST)),
            (9 * 111 - 1, ord("9"), Kind.NOT_ASCENDING, 111),
        ),
    ),
}


@pytest.mark.parametrize("threads", [1, 5])
@pytest.mark.parametrize("name", CASES)
def test_a_fault_among_many_is_found_at_its_place(name: str, threads: int) -> None:
    right, find, faults = CASES[name]
    assert find(right, threads) == NOTHING
    for at, value, kind, place in faults:
        wrong = right.copy()
        wrong[at] = value
        assert find(wrong, threads) == (kind, place), (at, value)


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_utf8_is_what_python_says_for_all_edges_of_the_table(length: int) -> None:
    choices = EDGES if length < 4 else [*EDGES[1::2], 0x90, 0x8F, 0xF0, 0xF4]
    for letters in itertools.product(choices, repeat=length):
        text = bytes(letters)
        kind, _ = find_in_strings(
            np.array([0, length]), 1, np.frombuffer(text, np.uint8), length, 1
        )
        assert (kind is Kind.NONE) == is_utf8(text), text


def test_a_character_cut_by_the_end_of_its_string_is_not_completed_by_the_next() -> None:
    utf8 = np.frombuffer(b"\xc3\xa9", np.uint8)
    assert find_in_strings(np.array([0, 1, 2]), 2, utf8, 2, 1) == (Kind.NOT_UTF8, 0)


def test_offsets_that_leave_the_values_are_not_followed() -> None:
    for bad in (-1, 9):
        cuts, values = np.array([0, bad, 2]), np.array([3, 4], np.int32)
        found = FIND_IN_GROUPS["<i8", "<i4"](cuts, 2, values, 2, 9, 1)
        assert found[0] is Kind.OFFSET_DESCENDS
