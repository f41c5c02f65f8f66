"""K-way matchers: the SIDs below a node are in k partitions, and each partition has a row.

A SID's row is the OR of its ads' rows, as in mode `union`. It joins the partition whose row then
has the fewest bits, the first of equals.
"""

import numpy as np
import numpy.typing as npt

from grace.configs.eligibility import KWay, StaticKWay
from grace.index.matchers.node_matchers import Matchers, NodeMatchers
from grace.index.matchers.unions import Partitions, join_matchers, level_rows, sid_rows
from grace.index.snapshot import SEVERAL_SNAPSHOTS, Snapshot, require_ids
from grace.index.trie import SidTrie

_SMALLER = f"choose fewer partitions, or {SEVERAL_SNAPSHOTS}"

Rows = npt.NDArray[np.uint64]
Ids = npt.NDArray[np.int32]


def k_way_matchers(snapshot: Snapshot, k_way: KWay, threads: int) -> Matchers:
    ads, trie = snapshot.ads, snapshot.trie
    if isinstance(k_way, StaticKWay):
        ids = sum(n * k for n, k in zip(trie.level_counts[1:], k_way.widths, strict=True))
        require_ids(ids, "ids of static matchers", _SMALLER)

    def node_matchers(rule_rows: Ids, table: Rows, bits: int) -> NodeMatchers:
        sids = np.empty(trie.num_leaves, np.int32)
        rows = sid_rows(ads, rule_rows, table, threads, sids)
        return _node_matchers(trie, sids, rows, k_way, bits, threads)

    return join_matchers(snapshot, node_matchers, k_way)


def _node_matchers(
    trie: SidTrie, sids: Ids, sid_table: Rows, k_way: KWay, bits: int, threads: int
) -> NodeMatchers:
    """sids int32 [leaves] names each SID's row of sid_table uint64 [rows, words]."""
    nodes = trie.level_counts[1:]
    if isinstance(k_way, StaticKWay):
        levels = [Partitions(width) for width in k_way.widths]
    else:
        chosen = Partitions(0, k_way.k_max, k_way.fill_target_millionths, bits)
        levels = [chosen] * trie.sid_length
    widths = tuple(each.width for each in levels)
    # Static ids are written in place: a second copy of them would take gigabytes.
    static_ids = np.empty(sum(n * k for n, k in zip(nodes, widths, strict=True)), np.int32)
    counts, ids, tables = [], [], []
    base = begin = 0
    for at, offsets in enumerate(_leaf_offsets(trie)):
        room = static_ids[begin : begin + nodes[at] * widths[at]]
        level_counts, level_ids, table = level_rows(
            offsets, sids, sid_table, levels[at], threads, room
        )
        level_ids += np.int32(base)
        begin += len(level_ids)
        require_ids(begin, "ids of dynamic matchers", _SMALLER)
        base += len(table)
        require_ids(base, "matcher rows", _SMALLER)
        counts.append(level_counts)
        ids.append(level_ids)
        tables.append(table)
    table, distinct = np.concatenate(tables), tuple(map(len, tables))
    if isinstance(k_way, StaticKWay):
        return NodeMatchers(static_ids, table, distinct, level_widths=widths)
    borders = np.zeros(trie.num_entries + 1, np.int32)
    np.cumsum(np.concatenate(counts), out=borders[1:])
    return NodeMatchers(np.concatenate(ids), table, distinct, offsets=borders)


def _leaf_offsets(trie: SidTrie) -> list[npt.NDArray[np.int64]]:
    """Return, for levels 1 .. sid_length, the borders of nodes' leaves.   int64 [nodes + 1] each"""
    below = np.arange(trie.num_leaves + 1, dtype=np.int64)
    found = [below]
    for level in range(trie.sid_length - 1, 0, -1):
        nodes = slice(trie.level_starts[level], trie.level_starts[level + 1] + 1)
        children = trie.node_offsets[nodes].astype(np.int64) - trie.entries_of_level(level + 1)[0]
        below = below[children]
        found.append(below)
    return found[::-1]
