"""K-way matchers: the SIDs below a node are in k partitions, and each partition has a row.

A SID's row is the OR of its ads' rows, as in mode `union`. It joins the partition whose row then
has the fewest bits, the first of equals.
"""

from ctypes import byref, c_int32, c_int64, c_void_p
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace.configs.eligibility import DynamicKWay, KWay, StaticKWay
from grace.index.matchers.node_matchers import Matchers, NodeMatchers
from grace.index.matchers.unions import join_matchers, union_level
from grace.index.snapshot import SEVERAL_SNAPSHOTS, Snapshot, require_ids
from grace.index.trie import SidTrie
from grace.native.loader import array_in, array_out, declare

_SMALLER = f"choose fewer partitions, or {SEVERAL_SNAPSHOTS}"

_kway_level = declare(
    "grace_kway_level",
    *(c_int64, array_in(np.int64), array_in(np.int32), array_in(np.uint64, 2), c_int64),
    *(c_int32, c_int32, c_int32, c_int64, c_int64, c_int32, c_void_p, array_out(np.int64)),
)
_kway_level_take = declare(
    "grace_kway_level_take",
    *(c_void_p, c_int32, array_out(np.int32), array_out(np.int32), array_out(np.uint64, 2)),
)
_kway_level_free = declare("grace_kway_level_free", c_void_p)

Rows = npt.NDArray[np.uint64]
Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _SidRows:
    """One matcher kind's row of every SID.   sids int32 [leaves], table uint64 [rows, words]"""

    sids: Ids
    table: Rows
    bits: int  # that a row may set


def k_way_matchers(snapshot: Snapshot, k_way: KWay, threads: int) -> Matchers:
    ads, trie = snapshot.ads, snapshot.trie
    if isinstance(k_way, StaticKWay):
        ids = sum(n * k for n, k in zip(trie.level_counts[1:], k_way.widths, strict=True))
        require_ids(ids, "ids of static matchers", _SMALLER)

    def node_matchers(rule_rows: Ids, table: Rows, bits: int) -> NodeMatchers:
        sids = np.empty(trie.num_leaves, np.int32)
        rows = union_level(ads.ad_offsets, ads.ad_rule, rule_rows, table, threads, sids)
        return _partitions(trie, _SidRows(sids, rows, bits), k_way, threads)

    return join_matchers(snapshot, node_matchers, k_way)


def _partitions(trie: SidTrie, of_sids: _SidRows, k_way: KWay, threads: int) -> NodeMatchers:
    nodes = trie.level_counts[1:]
    widths = k_way.widths if isinstance(k_way, StaticKWay) else (0,) * trie.sid_length
    # Static ids are written in place: a second copy of them would take gigabytes.
    static_ids = np.empty(sum(n * k for n, k in zip(nodes, widths, strict=True)), np.int32)
    counts, ids, tables = [], [], []
    base = begin = 0
    for at, offsets in enumerate(_leaf_offsets(trie)):
        room = static_ids[begin : begin + nodes[at] * widths[at]]
        level_counts, level_ids, table = _level(offsets, of_sids, k_way, widths[at], threads, room)
        level_ids += np.int32(base)
        begin += len(level_ids)
        require_ids(begin, "ids of dynamic matchers", _SMALLER)
        base += len(table)
        require_ids(base, "matcher rows", _SMALLER)
        counts.append(level_counts)
        ids.append(level_ids)
        tables.append(table)
    table, level_rows = np.concatenate(tables), tuple(map(len, tables))
    if isinstance(k_way, StaticKWay):
        return NodeMatchers(static_ids, table, level_rows, level_widths=widths)
    borders = np.zeros(trie.num_entries + 1, np.int32)
    np.cumsum(np.concatenate(counts), out=borders[1:])
    return NodeMatchers(np.concatenate(ids), table, level_rows, offsets=borders)


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


def _level(
    offsets: npt.NDArray[np.int64],
    of_sids: _SidRows,
    k_way: KWay,
    width: int,
    threads: int,
    room: Ids,
) -> tuple[Ids, Ids, Rows]:
    """Partition one level's nodes; return each node's number of ids, the ids and the distinct rows.

    Static ids are written to `room`.
    """
    nodes, words = len(offsets) - 1, of_sids.table.shape[1]
    # Native code takes the numbers of both modes; width 0 means that each node chooses its own.
    k_max, fill_target = (
        (k_way.k_max, k_way.fill_target_millionths) if isinstance(k_way, DynamicKWay) else (0, 0)
    )
    handle, sizes = c_void_p(), np.zeros(2, np.int64)
    _kway_level(
        *(nodes, offsets, of_sids.sids, of_sids.table, *of_sids.table.shape, width, k_max),
        *(of_sids.bits, fill_target, threads, byref(handle), sizes),
    )
    try:
        num_rows, num_ids = sizes.tolist()
        counts, ids = np.empty(nodes, np.int32), room if width else np.empty(num_ids, np.int32)
        table = np.empty((num_rows, words), np.uint64)
        _kway_level_take(handle, width, counts, ids, table)
    finally:
        _kway_level_free(handle)
    return counts, ids, table
