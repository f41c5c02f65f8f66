"""The needed rows of k-way matchers: fewer, with the same decisions."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from grace.index.matchers.node_matchers import NodeMatchers
from grace.index.trie import SidTrie
from support.strategies import examples


def flat_trie(entries: int) -> SidTrie:
    """One level: an entry for each SID."""
    offsets, tokens = np.array([0, entries], np.int32), np.arange(entries, dtype=np.uint16)
    return SidTrie((entries,), (1, entries), offsets, tokens)


def ids_of(rows: NodeMatchers, trie: SidTrie) -> list[list[int]]:
    return [rows.index[a:b].tolist() for a, b in pairwise(rows.borders(trie).tolist())]


@examples(50)
@given(data=st.data(), width=st.none() | st.integers(1, 7))
def test_no_empty_row_and_none_next_to_one_for_all_users_is_needed(
    data: st.DataObject, width: int | None
) -> None:
    """Entries have any numbers of rows (dynamic), or all of them one number (static)."""
    table = data.draw(st.lists(st.integers(0, 63), min_size=1, max_size=11))
    star = data.draw(st.lists(st.integers(0, 1), min_size=len(table), max_size=len(table)))
    ids = st.lists(st.integers(0, len(table) - 1), min_size=width or 1, max_size=width or 13)
    rows = data.draw(st.lists(ids, min_size=1, max_size=7))
    matchers = NodeMatchers(
        index=np.array([i for ids in rows for i in ids], np.int32),
        table=np.array(table, np.uint64)[:, None],
        level_rows=(len(table),),
        level_widths=None if width is None else (width,),
        offsets=np.cumsum([0, *map(len, rows)], dtype=np.int32) if width is None else None,
    )
    trie = flat_trie(len(rows))
    for flags, given_star in ((None, [0] * len(table)), (np.array(star, np.uint8), star)):
        found = ids_of(matchers.needed(trie, flags), trie)
        for kept, before in zip(found, rows, strict=True):
            stars = [i for i in before if given_star[i]]
            first, *others = before
            assert kept == (stars or [first, *(i for i in others if table[i])])
