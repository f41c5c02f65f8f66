"""The native structure checks against plain definitions, and on arrays for several threads."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from grace.configs.errors import NativeError
from grace.index.storage.structure import (
    Kind,
    find_in_ascending_ids,
    find_in_ids,
    find_in_leaf_ads,
    find_in_leaf_rules,
    find_in_lookup,
    find_in_node_tokens,
    find_in_offsets_i32,
    find_in_offsets_i64,
    find_in_padding,
    find_in_rule_values,
    find_in_stars,
    find_in_strings,
    find_in_weights,
    find_missing_rule,
)
from grace.index.users.values import InternedValues

MANY = (1 << 16) * 3 + 63  # enough to be checked in chunks
THREADS = (1, 5)
NOTHING = (Kind.NONE, 0)

EDGES = [0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1]
EDGES += [0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF]


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


@pytest.mark.parametrize("threads", THREADS)
def test_many_interned_values_pass_and_one_wrong_is_found(threads: int) -> None:
    values = InternedValues.of(f"é{i:07}" for i in range(MANY))
    utf8 = values.utf8.copy()
    check = (values.offsets, MANY, utf8, len(utf8), threads)
    assert find_in_strings(*check) == NOTHING
    for at in (0, 1, MANY // 2, MANY - 1):
        begin = values.offsets[at]
        kept, utf8[begin] = utf8[begin], 0xFF
        assert find_in_strings(*check) == (Kind.NOT_UTF8, at)
        utf8[begin] = kept
    utf8[values.offsets[111] - 1] = ord("9")
    assert find_in_strings(*check) == (Kind.NOT_ASCENDING, 111)
    twice = np.array([0, 1, 2]), 2, np.frombuffer(b"aa", np.uint8), 2, threads
    assert find_in_strings(*twice) == (Kind.NOT_ASCENDING, 1)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize(
    ("find", "dtype"), [(find_in_offsets_i32, np.int32), (find_in_offsets_i64, np.int64)]
)
def test_offsets_cut_all_members_into_groups(
    find: Callable[..., tuple[int, int]], dtype: Any, threads: int
) -> None:
    offsets: npt.NDArray[Any] = np.arange(MANY + 1, dtype=dtype)
    assert find(offsets, MANY, MANY, True, threads) == NOTHING
    assert find(offsets, MANY, MANY + 1, True, threads) == (Kind.LAST_OFFSET, MANY)
    for at in (1, 1024, MANY // 2, MANY):
        wrong = offsets.copy()
        wrong[at] = wrong[at - 1]
        expected = (Kind.EMPTY_GROUP, at)
        assert find(wrong, MANY, MANY, True, threads) == expected
        wrong[at] -= 1
        assert find(wrong, MANY, MANY, False, threads) == (Kind.OFFSET_DESCENDS, at)
    offsets[0] = -1
    assert find(offsets, MANY, MANY, True, threads) == (Kind.FIRST_OFFSET, 0)
    one: npt.NDArray[Any] = np.zeros(1, dtype)
    assert find(one, 0, 0, True, threads) == NOTHING
    assert find(one, 0, 3, True, threads) == (Kind.LAST_OFFSET, 0)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize(
    ("find", "offsets_dtype", "dtype"),
    [
        (find_in_node_tokens, np.int32, np.uint16),
        (find_in_leaf_rules, np.int32, np.int32),
        (find_in_rule_values, np.int64, np.int32),
        (find_in_leaf_ads, np.int64, np.int64),
    ],
)
def test_members_ascend_within_their_group(
    find: Callable[..., tuple[int, int]], offsets_dtype: Any, dtype: Any, threads: int
) -> None:
    offsets: npt.NDArray[Any] = np.arange(0, 3 * MANY + 1, 3, dtype=offsets_dtype)
    values: npt.NDArray[Any] = np.tile(np.array([0, 7, 111], dtype), MANY)
    check = (offsets, MANY, values, len(values))
    assert find(*check, 111, threads) == NOTHING
    assert find(*check, 110, threads) == (Kind.OUT_OF_RANGE, 2)
    for at in (1, 3 * (MANY // 2) + 2, 3 * MANY - 1):
        kept, values[at] = values[at], values[at - 1]
        assert find(*check, 111, threads) == (Kind.NOT_ASCENDING, at)
        values[at] = kept
    for bad in (-1, 3 * MANY + 1):
        offsets[MANY] = bad
        assert find(*check, 111, threads) == (Kind.OFFSET_DESCENDS, MANY)


@pytest.mark.parametrize("threads", THREADS)
def test_ids_lie_in_their_range(threads: int) -> None:
    ids = np.full((MANY, 3), -9, np.int32)
    ids[:, 1] = np.arange(MANY) % 63 + 5
    column = ids.reshape(-1)[1:]
    assert find_in_ids(column, MANY, 3, 5, 68, threads) == NOTHING
    assert find_in_ids(column, MANY, 3, 6, 68, threads) == (Kind.OUT_OF_RANGE, 0)
    assert find_in_ids(column, MANY, 3, 5, 67, threads) == (Kind.OUT_OF_RANGE, 62)
    ids[MANY - 1, 1] = 2**31 - 1
    assert find_in_ids(column, MANY, 3, 5, 68, threads) == (Kind.OUT_OF_RANGE, MANY - 1)


@pytest.mark.parametrize("threads", THREADS)
def test_ids_of_entities_ascend(threads: int) -> None:
    ids = np.arange(MANY, dtype=np.int64) * 7
    assert find_in_ascending_ids(ids, MANY, threads) == NOTHING
    assert find_in_ascending_ids(ids, 0, threads) == NOTHING
    for at in (1, MANY // 2, MANY - 1):
        kept, ids[at] = ids[at], ids[at - 1]
        assert find_in_ascending_ids(ids, MANY, threads) == (Kind.NOT_ASCENDING, at)
        ids[at] = -1
        assert find_in_ascending_ids(ids, MANY, threads) == (Kind.OUT_OF_RANGE, at)
        ids[at] = kept
    ids[0] = -(2**63)
    assert find_in_ascending_ids(ids, MANY, threads) == (Kind.OUT_OF_RANGE, 0)


@pytest.mark.parametrize("threads", THREADS)
def test_the_lookup_is_the_order_of_the_ids(threads: int) -> None:
    ids = np.random.default_rng(7).permutation(MANY).astype(np.int64) * 3
    lookup = np.argsort(ids).astype(np.int32)
    assert find_in_lookup(ids, lookup, MANY, threads) == NOTHING
    for at, value in ((0, MANY), (MANY // 2, -1), (MANY - 1, 2**31 - 1)):
        wrong = lookup.copy()
        wrong[at] = value
        assert find_in_lookup(ids, wrong, MANY, threads) == (Kind.OUT_OF_RANGE, at)
    wrong = lookup.copy()
    wrong[[1024, 1025]] = wrong[[1025, 1024]]
    assert find_in_lookup(ids, wrong, MANY, threads) == (Kind.NOT_ASCENDING, 1025)
    wrong[1025] = wrong[1024]  # twice the same ordinal
    assert find_in_lookup(ids, wrong, MANY, threads) == (Kind.NOT_ASCENDING, 1025)


@pytest.mark.parametrize("threads", THREADS)
def test_weights_are_finite(threads: int) -> None:
    weights = np.linspace(-1e38, 1e38, MANY, dtype=np.float32)
    assert find_in_weights(weights, MANY, threads) == NOTHING
    for at, value in ((0, np.nan), (MANY // 2, np.inf), (MANY - 1, -np.inf)):
        wrong = weights.copy()
        wrong[at] = value
        assert find_in_weights(wrong, MANY, threads) == (Kind.NOT_FINITE, at)


@pytest.mark.parametrize("bits", [0, 1, 63, 64])
def test_no_bit_is_set_behind_the_last_attribute(bits: int) -> None:
    table = np.zeros((5, 2), np.uint64)
    table[:, 0] = 2**64 - 1
    table[:, 1] = (1 << bits) - 1
    assert find_in_padding(table, 5, 2, 64 + bits, 1) == NOTHING
    if bits < 64:
        table[3, 1] |= np.uint64(1 << bits)
        assert find_in_padding(table, 5, 2, 64 + bits, 1) == (Kind.PADDING_BIT, 3)
        table[3, 1] = 1 << 63
        assert find_in_padding(table, 5, 2, 64 + bits, 1) == (Kind.PADDING_BIT, 3)


def test_impossible_arguments_are_refused_and_not_followed() -> None:
    table = np.zeros((1, 1), np.uint64)
    star = np.zeros(1, np.uint8)
    with pytest.raises(NativeError, match="bits must end in the last word of a row"):
        find_in_padding(table, 1, 1, 65, 1)
    with pytest.raises(NativeError, match="bloom_bits must be a power of two"):
        find_in_stars(table, star, 1, 65, 1, 0, 1)
    with pytest.raises(NativeError, match="bloom_hashes must be 1 to 4"):
        find_in_stars(table, star, 1, 64, 5, 0, 1)
    with pytest.raises(NativeError, match="stride must be at least 1"):
        find_in_ids(np.zeros(1, np.int32), 1, 0, 0, 1, 1)
    with pytest.raises(NativeError, match="count is negative"):
        find_in_weights(np.zeros(1, np.float32), -1, 1)


@pytest.mark.parametrize("hashes", [1, 2, 3, 4])
def test_a_bloom_row_holds_a_value_only_with_the_bits_of_all_its_hashes(hashes: int) -> None:
    value = 0x0007_0005_0003_0001  # bits 1, 3, 5 and 7
    bits = [(value >> 16 * i) & 63 for i in range(hashes)]
    whole = sum(1 << bit for bit in bits)
    rows = np.array([[whole], *([whole - (1 << bit)] for bit in bits)], np.uint64)
    holds = np.array([1, *[0] * hashes], np.uint8)
    assert find_in_stars(rows, holds, len(rows), 64, hashes, value, 1) == NOTHING


@pytest.mark.parametrize("threads", THREADS)
def test_a_leaf_that_lacks_the_rule_of_one_of_its_ads_is_found(threads: int) -> None:
    """Leaf i has three ads, with the rules i, 2 and i: so its rules are 2 and i."""
    leaves = np.arange(MANY, dtype=np.int32)
    ad_rule = np.stack([leaves, np.full_like(leaves, 2), leaves], axis=1).reshape(-1)
    ad_offsets = np.arange(MANY + 1, dtype=np.int64) * 3
    pairs = [sorted({2, leaf}) for leaf in range(MANY)]
    offsets = np.cumsum([0, *map(len, pairs)]).astype(np.int32)
    rules = np.concatenate(pairs).astype(np.int32)
    check = (ad_offsets, MANY, ad_rule, len(ad_rule), offsets, rules, len(rules), threads)
    assert find_missing_rule(*check) == NOTHING
    for leaf in (0, 2, MANY // 2, MANY - 1):
        at = offsets[leaf + 1] - 1
        kept, rules[at] = rules[at], MANY
        # The greater of both rules is gone: 2, or the leaf's own, which its first ad has.
        assert find_missing_rule(*check) == (Kind.NOT_IN_GROUP, 3 * leaf + (leaf < 2))
        rules[at] = kept
    outside = (*check[:4], np.where(offsets == offsets[-1], len(rules) + 1, offsets), *check[5:])
    assert find_missing_rule(*outside) == (Kind.OFFSET_DESCENDS, MANY)
