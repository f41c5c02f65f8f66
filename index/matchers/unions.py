"""Union matchers: a node's row is the OR of all rows below it, level by level, leaves first."""

from collections.abc import Callable
from ctypes import byref, c_int32, c_int64, c_uint32, c_uint64, c_void_p

import numpy as np
import numpy.typing as npt

from grace.configs.eligibility import KWay
from grace.index.matchers.bloom import star_hash, star_rows, value_hash
from grace.index.matchers.node_matchers import BloomMatchers, Matchers, NodeMatchers
from grace.index.matching.ads import SidToAds
from grace.index.snapshot import Snapshot
from grace.index.targeting.rules import SetRules
from grace.index.targeting.schema import TargetSet
from grace.index.trie import SidTrie
from grace.index.users.values import InternedValues
from grace.native.loader import array_in, array_out, declare

Rows = npt.NDArray[np.uint64]
Ids = npt.NDArray[np.int32]

MakeMatchers = Callable[[Ids, Rows, int], NodeMatchers]
"""Makes matchers of the row of each rule, those rows, and the number of bits a row may set."""

_union_level = declare(
    "grace_union_level",
    *(c_int64, array_in(np.int64), array_in(np.int32), c_void_p, array_in(np.uint64, 2)),
    *(c_int64, c_int32, c_int32, c_void_p, array_out(np.int64)),
)
_union_level_take = declare(
    "grace_union_level_take", c_void_p, array_out(np.int32), array_out(np.uint64, 2)
)
_union_level_free = declare("grace_union_level_free", c_void_p)
_bloom_rows = declare(
    "grace_bloom_rows",
    *(c_int64, array_in(np.int64), array_in(np.int32), array_in(np.uint64)),
    *(c_uint64, c_uint32, c_uint32, array_out(np.uint64, 2)),
)


def union_matchers(snapshot: Snapshot, threads: int) -> Matchers:
    def node_matchers(rule_rows: Ids, table: Rows, _bits: int) -> NodeMatchers:
        return _node_matchers(snapshot.trie, snapshot.ads, rule_rows, table, threads)

    return join_matchers(snapshot, node_matchers, None)


def join_matchers(snapshot: Snapshot, node_matchers: MakeMatchers, k_way: KWay | None) -> Matchers:
    """The matchers of every kind, each made by `node_matchers`."""
    rules, schema = snapshot.rules, snapshot.schema
    bitmask = node_matchers(rules.bitmask, rules.bitmask_table, schema.bitmask_bits)
    blooms = []
    for s, target_set in enumerate(schema.sets):
        table = _rule_rows(rules.sets[s], snapshot.set_values[s], target_set, schema.hash_seed)
        rule_rows = np.ascontiguousarray(rules.set_rules[:, s])
        rows = node_matchers(rule_rows, table, target_set.bloom_bits)
        blooms.append(BloomMatchers(rows, star_rows(rows.table, target_set, schema.hash_seed)))
    return Matchers(bitmask, tuple(blooms), k_way)


def _rule_rows(
    rules: SetRules, values: InternedValues, target_set: TargetSet, hash_seed: int
) -> Rows:
    hashes = np.array([value_hash(value, hash_seed) for value in values.strings], np.uint64)
    table = np.empty((rules.num_rules, target_set.words), np.uint64)
    _bloom_rows(
        *(rules.num_rules, rules.include_offsets, rules.include_values, hashes),
        *(star_hash(hash_seed), target_set.bloom_bits, target_set.bloom_hashes, table),
    )
    return table


def _node_matchers(
    trie: SidTrie, ads: SidToAds, rule_rows: Ids, table: Rows, threads: int
) -> NodeMatchers:
    """rule_rows int32 [rules] names each rule's row of table uint64 [rows, words]."""
    length = trie.sid_length
    index = np.empty(trie.num_entries, np.int32)
    tables: list[Rows] = []
    begin, end = trie.entries_of_level(length)
    tables.append(
        union_level(ads.ad_offsets, ads.ad_rule, rule_rows, table, threads, index[begin:end])
    )
    for level in range(length - 1, 0, -1):
        first_node = trie.level_starts[level]
        nodes = slice(first_node, trie.level_starts[level + 1] + 1)
        below_begin, below_end = begin, end
        offsets = trie.node_offsets[nodes].astype(np.int64) - below_begin
        begin, end = trie.entries_of_level(level)
        tables.append(
            union_level(
                offsets, index[below_begin:below_end], None, tables[-1], threads, index[begin:end]
            )
        )
    tables.reverse()
    base = 0
    for level, rows in enumerate(tables, start=1):
        begin, end = trie.entries_of_level(level)
        index[begin:end] += base
        base += len(rows)
    return NodeMatchers(index, np.concatenate(tables), tuple(len(rows) for rows in tables))


def union_level(
    offsets: npt.NDArray[np.int64],
    items: Ids,
    item_rows: Ids | None,
    table: Rows,
    threads: int,
    index: Ids,
) -> Rows:
    """Writes each group's row id into `index` and returns the level's distinct rows."""
    handle, rows = c_void_p(), np.zeros(1, np.int64)
    words = table.shape[1]
    _union_level(
        *(len(index), offsets, items, None if item_rows is None else item_rows.ctypes.data),
        *(table, len(table), words, threads, byref(handle), rows),
    )
    try:
        distinct = np.empty((rows[0], words), np.uint64)
        _union_level_take(handle, index, distinct)
    finally:
        _union_level_free(handle)
    return distinct
