"""Union matchers: a node's row is the OR of all rows below it, level by level, leaves first."""

from collections.abc import Callable
from ctypes import byref, c_int32, c_int64, c_void_p
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace.configs.eligibility import KWay
from grace.index.matchers.bloom import star_hash, star_rows
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

_matcher_level = declare(
    "grace_matcher_level",
    *(c_int64, array_in(np.int64), array_in(np.int32), array_in(np.uint64, 2), c_int64),
    *(c_int32, c_int32, c_int32, c_int64, c_int64, c_int32, c_void_p, array_out(np.int64)),
)
_matcher_level_take = declare(
    "grace_matcher_level_take",
    *(c_void_p, c_int32, array_out(np.int32), array_out(np.int32), array_out(np.uint64, 2)),
)
_matcher_level_free = declare("grace_matcher_level_free", c_void_p)


@dataclass(frozen=True, slots=True)
class Partitions:
    """How the items of a node are divided.

    width        partitions of every node; 0: each node has 1, 2, 4 .. k_max
    fill_target  millionths of the `bits` of a row: with more of them set, a node doubles its number
    """

    width: int = 1
    k_max: int = 0
    fill_target: int = 0
    bits: int = 0


ONE_ROW = Partitions()


def union_matchers(snapshot: Snapshot, threads: int) -> Matchers:
    def node_matchers(rule_rows: Ids, table: Rows, _bits: int) -> NodeMatchers:
        return _node_matchers(snapshot.trie, snapshot.ads, rule_rows, table, threads)

    return join_matchers(snapshot, node_matchers, None)


def join_matchers(snapshot: Snapshot, node_matchers: MakeMatchers, k_way: KWay | None) -> Matchers:
    """The matchers of every kind, each made by `node_matchers`."""
    rules, schema = snapshot.rules, snapshot.schema
    bitmask_rows = np.ascontiguousarray(rules.rows[:, 0])
    bitmask = node_matchers(bitmask_rows, rules.bitmask_table, schema.bitmask_bits)
    blooms = []
    for s, target_set in enumerate(schema.sets):
        table = _rule_rows(rules.sets[s], snapshot.set_values[s], target_set, schema.hash_seed)
        rule_rows = np.ascontiguousarray(rules.rows[:, 1 + s])
        rows = node_matchers(rule_rows, table, target_set.bloom_bits)
        blooms.append(BloomMatchers(rows, star_rows(rows.table, target_set, schema.hash_seed)))
    return Matchers(bitmask, tuple(blooms), k_way)


def _rule_rows(
    rules: SetRules, values: InternedValues, target_set: TargetSet, hash_seed: int
) -> Rows:
    """Return the bits of each rule's included values; if it has none, of the reserved element."""
    sizes = np.diff(rules.include_offsets)
    rows = np.append(np.repeat(np.arange(len(rules)), sizes), np.flatnonzero(sizes == 0))
    hashes = np.full(len(rows), star_hash(hash_seed), np.uint64)
    hashes[: len(rules.include_values)] = values.hashes(hash_seed)[rules.include_values]
    table = np.zeros((len(rules), target_set.words), np.uint64)
    for number in range(target_set.bloom_hashes):
        bits = (hashes >> np.uint64(16 * number)) & np.uint64(target_set.bloom_bits - 1)
        words = rows * target_set.words + (bits >> np.uint64(6)).astype(np.int64)
        np.bitwise_or.at(table.reshape(-1), words, np.uint64(1) << (bits & np.uint64(63)))
    return table


def _node_matchers(
    trie: SidTrie, ads: SidToAds, rule_rows: Ids, table: Rows, threads: int
) -> NodeMatchers:
    """rule_rows int32 [rules] names each rule's row of table uint64 [rows, words]."""
    length = trie.sid_length
    index = np.empty(trie.num_entries, np.int32)
    tables: list[Rows] = []
    begin, end = trie.entries_of_level(length)
    tables.append(sid_rows(ads, rule_rows, table, threads, index[begin:end]))
    for level in range(length - 1, 0, -1):
        first_node = trie.level_starts[level]
        nodes = slice(first_node, trie.level_starts[level + 1] + 1)
        below_begin, below_end = begin, end
        offsets = trie.node_offsets[nodes].astype(np.int64) - below_begin
        begin, end = trie.entries_of_level(level)
        below = index[below_begin:below_end]
        _, _, rows = level_rows(offsets, below, tables[-1], ONE_ROW, threads, index[begin:end])
        tables.append(rows)
    tables.reverse()
    base = 0
    for level, rows in enumerate(tables, start=1):
        begin, end = trie.entries_of_level(level)
        index[begin:end] += base
        base += len(rows)
    return NodeMatchers(index, np.concatenate(tables), tuple(len(rows) for rows in tables))


def sid_rows(ads: SidToAds, rule_rows: Ids, table: Rows, threads: int, index: Ids) -> Rows:
    """Write each SID's row id into `index`, and return the distinct rows: ORs of its ads' rows."""
    rows_of_ads = rule_rows[ads.ad_rule]
    _, _, rows = level_rows(ads.ad_offsets, rows_of_ads, table, ONE_ROW, threads, index)
    return rows


def level_rows(
    offsets: npt.NDArray[np.int64],
    items: Ids,
    table: Rows,
    partitions: Partitions,
    threads: int,
    room: Ids,
) -> tuple[Ids, Ids, Rows]:
    """Return each node's number of ids, the ids of one level, and its distinct rows.

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
    return counts, ids, distinct
