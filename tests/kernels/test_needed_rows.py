"""The needed rows of k-way matchers: as few as can decide, with the same decisions."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.configs.arrays import Int32
from grace.configs.errors import NativeError
from grace.index.matchers.node_matchers import NodeMatchers
from grace.index.trie import SidTrie
from grace.kernels.decode.needed_rows import needed_rows
from support.strategies import examples


def flat_trie(entries: int) -> SidTrie:
    """One level: an entry for each SID."""
    return SidTrie(
        (entries,),
        (1, entries),
        np.array([0, entries], np.int32),
        np.arange(entries, dtype=np.uint16),
    )


def jagged(rows: list[list[int]], table: list[int]) -> tuple[NodeMatchers, SidTrie]:
    """Dynamic matchers of 63-bit rows, of entries with these row ids."""
    counts = [len(ids) for ids in rows]
    return (
        NodeMatchers(
            index=np.array([i for ids in rows for i in ids], np.int32),
            table=np.array(table, np.uint64)[:, None],
            level_rows=(len(table),),
            offsets=np.array([0, *np.cumsum(counts)], np.int32),
        ),
        flat_trie(len(rows)),
    )


def ids_of(needed: tuple[Int32, Int32 | None]) -> list[list[int]]:
    ids, offsets = needed
    each = np.arange(len(ids) + 1) if offsets is None else offsets
    return [ids[a:b].tolist() for a, b in pairwise(each.tolist())]


def plain(ids: list[int], table: list[int], star: list[int]) -> list[int]:
    for i in ids:
        if star[i]:
            return [i]
    kept = []
    for at, i in enumerate(ids):
        larger = (j for j in ids if table[i] & ~table[j] == 0 and table[i] != table[j])
        same_before = any(table[j] == table[i] for j in ids[:at])
        if not same_before and next(larger, None) is None:
            kept.append(i)
    return kept


@examples(50)
@given(data=st.data(), width=st.none() | st.integers(1, 7))
def test_a_row_is_needed_if_no_other_of_its_entry_contains_it(
    data: st.DataObject, width: int | None
) -> None:
    """Entries have any numbers of rows (dynamic), or all of them one number (static)."""
    table = data.draw(st.lists(st.integers(0, 63), min_size=1, max_size=11))
    star = data.draw(st.lists(st.integers(0, 1), min_size=len(table), max_size=len(table)))
    ids = st.lists(st.integers(0, len(table) - 1), min_size=width or 1, max_size=width or 13)
    rows = data.draw(st.lists(ids, min_size=1, max_size=7))
    matchers, trie = jagged(rows, table)
    if width is not None:
        matchers = replace(matchers, offsets=None, level_widths=(width,))
    for flags, given_star in ((None, [0] * len(table)), (np.array(star, np.uint8), star)):
        expected = [plain(each, table, given_star) for each in rows]
        assert ids_of(needed_rows(matchers, trie, flags)) == expected


def test_any_number_of_threads_finds_the_same() -> None:
    rng = np.random.default_rng(3)
    table = [int(x) for x in rng.integers(1 << 9, size=63)]
    rows = [[int(i) for i in rng.integers(63, size=rng.integers(1, 4))] for _ in range(33_001)]
    matchers, trie = jagged(rows, table)
    found = [ids_of(needed_rows(matchers, trie, threads=threads)) for threads in (1, 2, 7)]
    assert found[0] == [plain(each, table, [0] * 63) for each in rows]
    assert found[1:] == found[:1] * 2


def test_no_row_that_decides_is_lost_among_more_rows_than_are_compared() -> None:
    table = [1 << i for i in range(63)] + [(1 << 63) | 1 << i for i in range(63)]
    ids = list(range(126))
    matchers, trie = jagged([ids + ids], table)
    (kept,) = ids_of(needed_rows(matchers, trie))
    assert set(kept) >= set(range(63, 126))


def test_an_entry_without_rows_is_refused() -> None:
    matchers, trie = jagged([[0], [], [0]], [1])
    with pytest.raises(NativeError, match="an entry without rows"):
        needed_rows(matchers, trie)
