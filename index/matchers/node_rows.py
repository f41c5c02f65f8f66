"""The rows of the trie's nodes, level by level, leaves first.

In mode `union` a node has one row, the OR of all rows below it. In the k-way modes the SIDs below a
node are in k partitions, and each partition has a row: a SID's row is the OR of its ads' rows, and
it joins the partition whose row then has the fewest bits, the first of equals.
"""

from collections.abc import Sequence
from ctypes import byref, c_void_p
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from grace.configs.arrays import Int32, Int64, UInt64
from grace.configs.eligibility import DynamicKWay, KWay, StaticKWay
from grace.index.matchers.node_matchers import (
    BloomMatchers,
    Matchers,
    NodeMatchers,
    bloom_positions,
    star_rows,
    value_hash,
)
from grace.index.snapshot import SEVERAL_SNAPSHOTS, Snapshot, require_ids
from grace.index.targeting.rules import SetRules
from grace.index.targeting.schema import RESERVED_VALUE, TargetSet
from grace.index.users.values import InternedValues
from grace.native.loader import declare

_SMALLER = f"choose fewer partitions, or {SEVERAL_SNAPSHOTS}"

_matcher_level = declare(
    "grace_matcher_level("
    "int64, int64[], int32[], uint64[,], int64, int32, int32, int32, int64, int64, int32, "
    "pointer, out int64[])"
)
_matcher_level_take = declare(
    "grace_matcher_level_take(pointer, int32, out int32[], out int32[], out uint64[,])"
)
_matcher_level_free = declare("grace_matcher_level_free(pointer)")


@dataclass(frozen=True, slots=True)
class Partitions:
    """How the items of a node are divided."""

    width: int = 1  # partitions of every node; 0: each node has 1, 2, 4 .. k_max
    k_max: int = 0
    # millionths of the `bits` of a row: with more of them set, a node doubles its number
    fill_target: int = 0
    bits: int = 0


ONE_ROW = Partitions()


class LevelRows(NamedTuple):
    """Each node's number of ids, the ids of one level, and its distinct rows."""

    counts: Int32
    ids: Int32
    rows: UInt64


def row_matchers(snapshot: Snapshot, k_way: KWay | None, threads: int) -> Matchers:
    """Return the matchers of all attributes and of each set. `k_way` None is mode `union`."""
    schema, rules, trie = snapshot.schema, snapshot.rules, snapshot.trie
    if isinstance(k_way, StaticKWay):
        ids = sum(n * k for n, k in zip(trie.level_counts[1:], k_way.widths, strict=True))
        require_ids(ids, "ids of static matchers", _SMALLER)
    bitmask = _node_matchers(snapshot, 0, rules.bitmask_table, k_way, schema.bitmask_bits, threads)
    blooms = []
    for s, target_set in enumerate(schema.sets):
        table = _rule_rows(rules.sets[s], snapshot.set_values[s], target_set, schema.hash_seed)
        rows = _node_matchers(snapshot, 1 + s, table, k_way, target_set.bloom_bits, threads)
        blooms.append(BloomMatchers(rows, star_rows(rows.table, target_set, schema.hash_seed)))
    return Matchers(bitmask, tuple(blooms), k_way)


def _rule_rows(
    rules: SetRules, values: InternedValues, target_set: TargetSet, hash_seed: int
) -> UInt64:
    """Return the bits of each rule's included values; if it has none, of the reserved element."""
    sizes = np.diff(rules.include.offsets)
    rows = np.append(np.repeat(np.arange(len(rules)), sizes), np.flatnonzero(sizes == 0))
    hashes = np.full(len(rows), value_hash(RESERVED_VALUE, hash_seed), np.uint64)
    hashes[: len(rules.include.values)] = values.hashes(hash_seed)[rules.include.values]
    table = np.zeros((len(rules), target_set.words), np.uint64)
    for bits in bloom_positions(hashes, target_set):
        words = rows * target_set.words + (bits >> np.uint64(6)).astype(np.int64)
        np.bitwise_or.at(table.reshape(-1), words, np.uint64(1) << (bits & np.uint64(63)))
    return table


def _node_matchers(
    snapshot: Snapshot, component: int, table: UInt64, k_way: KWay | None, bits: int, threads: int
) -> NodeMatchers:
    """`table` uint64 [rows, words] has the bits of the component's rows."""
    trie, ads = snapshot.trie, snapshot.ads
    rule_rows = np.ascontiguousarray(snapshot.rules.rows[:, component])
    offsets, rules = ads.ad_offsets, ads.ad_rule
    if snapshot.rules.num_alternatives:
        members = snapshot.rules.members(rules)
        offsets, rules = members.offsets[offsets], members.values
    items = rule_rows[rules]
    if k_way is not None:
        sids = np.empty(trie.num_leaves, np.int32)
        _, items, table = _level_rows(offsets, items, table, ONE_ROW, threads, sids)
        offsets = np.arange(trie.num_leaves + 1, dtype=np.int64)
    levels = _partitions(k_way, trie.sid_length, bits)
    sizes = [n * each.width for n, each in zip(trie.level_counts[1:], levels, strict=True)]
    # The number of ids is known, so they are written in place: a second copy would take gigabytes.
    index = np.empty(sum(sizes), np.int32)
    found: list[LevelRows] = []
    for level in range(trie.sid_length, 0, -1):
        room = index[sum(sizes[: level - 1]) : sum(sizes[:level])]
        found.insert(0, _level_rows(offsets, items, table, levels[level - 1], threads, room))
        require_ids(sum(len(each.ids) for each in found), "ids of dynamic matchers", _SMALLER)
        require_ids(sum(len(each.rows) for each in found), "matcher rows", _SMALLER)
        nodes = slice(trie.level_starts[level - 1], trie.level_starts[level] + 1)
        children = trie.node_offsets[nodes].astype(np.int64) - trie.entries_of_level(level)[0]
        if k_way is None:
            offsets, (_, items, table) = children, found[0]
        else:
            offsets = offsets[children]
    return _joined(index, found, k_way)


def _partitions(k_way: KWay | None, sid_length: int, bits: int) -> list[Partitions]:
    if k_way is None:
        return [ONE_ROW] * sid_length
    if isinstance(k_way, StaticKWay):
        return [Partitions(width) for width in k_way.widths]
    return [Partitions(0, k_way.k_max, k_way.fill_target_millionths, bits)] * sid_length


def _joined(index: Int32, levels: Sequence[LevelRows], k_way: KWay | None) -> NodeMatchers:
    """Number the rows of all levels. `index` has the ids, unless each node chose their number."""
    table = np.concatenate([each.rows for each in levels])
    distinct = tuple(len(each.rows) for each in levels)
    for each, first in zip(levels, accumulate(distinct, initial=0), strict=False):
        np.add(each.ids, first, out=each.ids)
    if isinstance(k_way, DynamicKWay):
        index = np.concatenate([each.ids for each in levels])
        borders = np.concatenate([np.zeros(1, np.int32), *(each.counts for each in levels)])
        return NodeMatchers(index, table, distinct, offsets=borders.cumsum(dtype=np.int32))
    return NodeMatchers(index, table, distinct, None if k_way is None else k_way.widths)


def _level_rows(
    offsets: Int64, items: Int32, table: UInt64, partitions: Partitions, threads: int, room: Int32
) -> LevelRows:
    """Return the rows of one level's nodes.

    The items of node n, rows of `table`, are items[offsets[n]] .. items[offsets[n + 1]]. Unless
    each node chooses its number of ids, they are written to `room`.
    """
    nodes, width = len(offsets) - 1, partitions.width
    handle, sizes = c_void_p(), np.zeros(2, np.int64)
    _matcher_level(
        *(nodes, offsets, items, table, *table.shape, width, partitions.k_max),
        *(partitions.bits, partitions.fill_target, threads, byref(handle), sizes),
    )
    try:
        num_rows, num_ids = sizes.tolist()
        counts, ids = np.empty(nodes, np.int32), room if width else np.empty(num_ids, np.int32)
        distinct = np.empty((num_rows, table.shape[1]), np.uint64)
        _matcher_level_take(handle, width, counts, ids, distinct)
    finally:
        _matcher_level_free(handle)
    return LevelRows(counts, ids, distinct)
