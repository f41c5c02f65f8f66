"""The checks of arrays in blocks that several threads share, and of texts that may be any bytes."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from grace.index.storage.checks import (
    BLOCK,
    Check,
    Groups,
    Ids,
    Offsets,
    View,
    finite,
    intervals,
    lookup,
    texts,
)
from grace.index.targeting.rules import count_rules

MANY = 2 * BLOCK + 63
ORDER = np.random.default_rng(7).permutation(MANY).astype(np.int32)
SORTED = np.arange(MANY, dtype=np.int64) * 3
AD_IDS = np.empty_like(SORTED)
AD_IDS[ORDER] = SORTED
PLACES = (1, BLOCK - 1, BLOCK, BLOCK + 1, MANY - 1)


def fault(check: Check, own: npt.NDArray[Any], threads: int = 1, **arrays: Any) -> str:
    return check(own, View(arrays, {"limit": 68}, (), (), threads)) or ""


@pytest.mark.parametrize("threads", [1, 5])
@pytest.mark.parametrize(
    ("check", "right", "wrong", "words"),
    [
        (Offsets("members", "thing"), np.arange(MANY), -1, "offset {at} is -1, below the one"),
        (Offsets("members", "thing"), np.arange(MANY), None, "thing {before} is empty"),
        (Groups("id", "cuts"), SORTED, -1, "entry {at} is id -1, expected 0 to"),
        (Groups("id", "cuts"), SORTED, 0, "entry {at} is id 0, not above the one before it"),
        (Ids("id", "limit", 5), np.arange(MANY) % 63 + 5, 68, "entry {at} is id 68, expected 5"),
        (lookup, ORDER, MANY, "entry {at} is ad 524351, expected 0 to 524350"),
        (lookup, ORDER, ORDER[0], "is ad id 0, not above the one before it"),
        (intervals, np.ones((MANY, 2)), np.nan, "row {at} is [nan, nan], expected an interval"),
        (finite, np.linspace(0, 1, MANY, dtype=np.float32), -np.inf, "entry {at} is -inf"),
    ],
)
def test_a_fault_among_many_is_found_at_its_place(
    check: Check, right: npt.NDArray[Any], wrong: float | None, words: str, threads: int
) -> None:
    arrays = {"members": right[:-1], "cuts": np.array([0, 3, MANY]), "ad_ids": AD_IDS}
    assert not fault(check, right, threads, **arrays)
    for at in PLACES:
        own = right.copy()
        own[at] = own[at - 1] if wrong is None else wrong
        found = fault(check, own, threads, **arrays)
        assert words.format(at=at, before=at - 1) in found, at


def test_the_rules_of_ads_in_several_blocks_are_counted() -> None:
    ad_rule, rules_each = ORDER % 5, [1, 1, 1, 2, 4]
    expected = sum(rules_each[rule] for rule in ad_rule.tolist())
    assert count_rules(ad_rule, 3, np.array([0, 2, 6])) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"\xc3\xa9", "entry 0 is b'\\xc3', expected UTF-8"),
        (b"aa", "entry 1 is value b'a', not above the one before it, b'a'"),
        (b"ba", "entry 1 is value b'a', not above the one before it, b'b'"),
    ],
)
def test_a_text_ends_at_its_offset_and_is_above_the_one_before_it(text: bytes, words: str) -> None:
    utf8, offsets = np.frombuffer(text, np.uint8), np.array([0, 1, 2])
    assert fault(texts, utf8, value_offsets=offsets) == words
