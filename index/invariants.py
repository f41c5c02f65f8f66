"""The deep invariants of a snapshot: what holds for every snapshot of a correct builder.

`grace.index.storage` checks that arrays are safe to use. This checks that they say the right thing,
computed again from the rules of the ads: matcher rows are the OR of what is below them, nothing is
stored twice or unused, ids are given by first use, each entity lists the ads that name it, and the
lists of mode `exact` are those that follow from the rules.

K-way partitions of a node join to the OR of what is below it, and one of them contains the row of
each SID below: so k-way admits no more than mode `union`, and loses no eligible ad.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.configs.errors import SnapshotError
from grace.index.entities import NO_ENTITY, Entities, group_ads
from grace.index.matchers.bloom import bloom_positions, star_hash, value_hash
from grace.index.matchers.exact_lists import (
    ExactLists,
    leaf_rules_reference,
    postings_reference,
)
from grace.index.matchers.modes import MatcherMode
from grace.index.matchers.node_matchers import NodeMatchers
from grace.index.snapshot import Snapshot
from grace.index.targeting.rules import SetRules
from grace.index.targeting.schema import RESERVED_VALUE, TargetingSchema, TargetSet
from grace.index.trie import SidTrie
from grace.index.users.values import InternedValues

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.uint64]

BLOCK = 1 << 18  # nodes, SIDs or rules at a time


def check_invariants(snapshot: Snapshot) -> None:
    """Raises SnapshotError, naming file and fault. The structure must have been checked."""
    _check_rules(snapshot)
    for target_set, values in zip(snapshot.schema.sets, snapshot.set_values, strict=True):
        if RESERVED_VALUE in values.ids:
            fault = f"value {values.ids[RESERVED_VALUE]} is the reserved {RESERVED_VALUE!r}"
            raise SnapshotError(f"value_utf8.{target_set.name}.npy", fault)
    for entities in snapshot.entities:
        _check_entities(entities)
    if snapshot.exact is not None:
        _check_exact_lists(snapshot, snapshot.exact)
    if snapshot.matchers is None:
        return
    rules = snapshot.rules
    bitmask_rows = rules.bitmask_table
    _check_matchers(snapshot, "bitmask", "", snapshot.matchers.bitmask, bitmask_rows, rules.bitmask)
    for i, target_set in enumerate(snapshot.schema.sets):
        set_rows = _set_rule_rows(
            snapshot.schema, target_set, rules.sets[i], snapshot.set_values[i]
        )
        bloom = snapshot.matchers.blooms[i].rows
        suffix = f".{target_set.name}"
        _check_matchers(snapshot, "bloom", suffix, bloom, set_rows, rules.set_rules[:, i])


def _check_rules(snapshot: Snapshot) -> None:
    rules = snapshot.rules
    _check_first_use("ad_rule.npy", snapshot.ads.ad_rule, rules.num_rules, "rule")
    parts = np.column_stack([rules.bitmask, rules.set_rules])
    _check_distinct("rule_bitmask.npy", parts, "rule")
    table = rules.bitmask_table
    _check_first_use("rule_bitmask.npy", rules.bitmask, len(table), "bitmask")
    _check_distinct("rule_bitmask_table.npy", table, "row")
    _check_allows_someone(snapshot.schema, table)
    for i, target_set in enumerate(snapshot.schema.sets):
        set_rules, item = rules.sets[i], f"{target_set.name} rule"
        _check_first_use("rule_sets.npy", rules.set_rules[:, i], set_rules.num_rules, item)
        _check_set_rules(target_set.name, set_rules)
        _check_values_used(target_set.name, set_rules, len(snapshot.set_values[i]))


def _check_first_use(file: str, ids: Array, count: int, item: str, first: int = 0) -> None:
    """Ids are first .. first + count - 1, each new one the next after all before it."""
    ids = ids.astype(np.int64) - first
    seen = np.maximum.accumulate(ids)
    late = np.flatnonzero(ids[1:] > seen[:-1] + 1)
    if ids[0] != 0:
        raise SnapshotError(file, f"the first {item} is {ids[0] + first}, expected {first}")
    if len(late):
        at = int(late[0]) + 1
        raise SnapshotError(
            file,
            f"entry {at} has {item} {ids[at] + first} before any has {seen[at - 1] + 1 + first}: "
            "ids are given by first use",
        )
    if seen[-1] != count - 1:
        raise SnapshotError(file, f"{item} {seen[-1] + 1 + first} is never used")


def _check_distinct(file: str, rows: Array, item: str, first: int = 0) -> None:
    # One sort by a hash, and a full comparison of the few rows whose hash is not alone.
    factors = np.random.default_rng(0).integers(1 << 63, size=rows.shape[1], dtype=np.uint64)
    hashes = (rows.astype(np.uint64) * (factors | 1)).sum(axis=1, dtype=np.uint64)
    order = np.argsort(hashes)
    alike = hashes[order[1:]] == hashes[order[:-1]]
    suspects = np.sort(order[np.append(alike, False) | np.append(False, alike)])
    suspects = suspects[np.lexsort(rows[suspects].T)]
    again = np.flatnonzero((rows[suspects[1:]] == rows[suspects[:-1]]).all(axis=1))
    if len(again):
        one, other = suspects[again[0]] + first, suspects[again[0] + 1] + first
        raise SnapshotError(file, f"{item}s {one} and {other} are equal: each is stored once")


def _check_allows_someone(schema: TargetingSchema, table: Rows) -> None:
    """Every row has a bit in the range of every attribute; else the ad had to be refused."""
    for attribute, first in zip(schema.attributes, schema.first_bits, strict=True):
        mask = _table([range(first, first + attribute.bits)], schema.words)
        empty = np.flatnonzero(~(table & mask).any(axis=1))
        if len(empty):
            fault = f"row {empty[0]} allows no value of {attribute.name}"
            raise SnapshotError("rule_bitmask_table.npy", fault)


def _check_set_rules(name: str, rules: SetRules) -> None:
    seen: dict[tuple[bytes, bytes], int] = {}
    include, exclude = rules.include_offsets.tolist(), rules.exclude_offsets.tolist()
    for i in range(rules.num_rules):
        included = rules.include_values[include[i] : include[i + 1]]
        excluded = rules.exclude_values[exclude[i] : exclude[i + 1]]
        key = (included.tobytes(), excluded.tobytes())
        if seen.setdefault(key, i) != i:
            fault = f"set rules {seen[key]} and {i} are equal: each is stored once"
            raise SnapshotError(f"set_include_offsets.{name}.npy", fault)
        if len(included) and len(excluded) and set(included.tolist()) <= set(excluded.tolist()):
            fault = f"set rule {i} excludes all that it includes"
            raise SnapshotError(f"set_exclude_values.{name}.npy", fault)


def _check_values_used(name: str, rules: SetRules, count: int) -> None:
    used = np.zeros(count, bool)
    used[rules.include_values] = True
    used[rules.exclude_values] = True
    if not used.all():
        fault = f"value {np.flatnonzero(~used)[0]} is in no rule"
        raise SnapshotError(f"value_offsets.{name}.npy", fault)


def _check_entities(entities: Entities) -> None:
    """The lists of ads say the same as the entity of each ad."""
    name, of_ad = entities.name, entities.of_ad
    named = np.bincount(of_ad[of_ad != NO_ENTITY], minlength=len(entities))
    listed = np.diff(entities.offsets)
    wrong = np.flatnonzero(listed != named)
    if len(wrong):
        at = int(wrong[0])
        fault = f"entity {at} has {listed[at]} ads, but is the entity of {named[at]} ads"
        raise SnapshotError(f"entity_offsets.{name}.npy", fault)
    expected = group_ads(name, of_ad.astype(np.int64), of_ad == NO_ENTITY).ads
    wrong = np.flatnonzero(entities.ads != expected)
    if len(wrong):
        at = int(wrong[0])
        fault = f"entry {at} names ad {entities.ads[at]}, expected {expected[at]}, of that entity"
        raise SnapshotError(f"entity_ads.{name}.npy", fault)


def _check_exact_lists(snapshot: Snapshot, lists: ExactLists) -> None:
    """Check that the lists are those that follow from the rules of the ads."""
    ads, num_rules = snapshot.ads, snapshot.rules.num_rules
    for begin, end, ad_offsets in _blocks(ads.ad_offsets):
        members = ads.ad_rule[ad_offsets[0] : ad_offsets[-1]]
        expected = leaf_rules_reference(ad_offsets - ad_offsets[0], members, num_rules)
        at = lists.leaf_offsets[begin : end + 1]
        held = (at - at[0], lists.leaf_rules[at[0] : at[-1]])
        _require_lists("leaf_rule_offsets", "leaf_rules", "leaf", held, expected, begin)
    for target_set, of_set, postings in zip(
        snapshot.schema.sets, snapshot.rules.sets, lists.postings, strict=True
    ):
        reference = postings_reference(of_set, len(postings.include_offsets) - 1)
        for kind in ("include", "exclude"):
            name = target_set.name
            files = f"{kind}_posting_offsets.{name}", f"{kind}_postings.{name}"
            wanted, found = (
                (getattr(lists, f"{kind}_offsets"), getattr(lists, f"{kind}_rules"))
                for lists in (reference, postings)
            )
            _require_lists(*files, "value", found, wanted)


def _require_lists(
    offsets_file: str,
    file: str,
    group: str,
    held: tuple[Array, Array],
    expected: tuple[Array, Array],
    first: int = 0,
) -> None:
    """Check that each group has the expected rules. `first` is the number of the first group."""
    wrong = np.flatnonzero(np.diff(held[0]) != np.diff(expected[0]))
    if len(wrong):
        at = int(wrong[0])
        counts = (int(offsets[at + 1] - offsets[at]) for offsets in (held[0], expected[0]))
        fault = "{} {} has {} rules, expected {}".format(group, first + at, *counts)
        raise SnapshotError(f"{offsets_file}.npy", fault)
    wrong = np.flatnonzero(held[1] != expected[1])
    if len(wrong):
        at = int(wrong[0])
        place = first + int(np.searchsorted(held[0], at, side="right")) - 1
        fault = f"{group} {place} has rule {held[1][at]}, expected {expected[1][at]}"
        raise SnapshotError(f"{file}.npy", fault)


def _set_rule_rows(
    schema: TargetingSchema, target_set: TargetSet, rules: SetRules, values: InternedValues
) -> Rows:
    """The Bloom row of each set rule: of its include list, or of the reserved element."""
    hashes = [value_hash(value, schema.hash_seed) for value in values.strings]
    value_rows = _table((bloom_positions(h, target_set) for h in hashes), target_set.words)
    star = _table([bloom_positions(star_hash(schema.hash_seed), target_set)], target_set.words)
    rows = np.repeat(star, rules.num_rules, axis=0)
    included = np.flatnonzero(np.diff(rules.include_offsets))
    for begin, end in _ranges(len(included)):
        block = included[begin:end]
        starts = rules.include_offsets[block]
        members = value_rows[rules.include_values[starts[0] : rules.include_offsets[block[-1] + 1]]]
        rows[block] = np.bitwise_or.reduceat(members, starts - starts[0], axis=0)
    return rows


def _table(bits_of_rows: Iterable[Iterable[int]], words: int) -> Rows:
    """Rows with the given bits set."""
    rows = [
        sum(1 << bit for bit in set(bits)).to_bytes(words * 8, "little") for bits in bits_of_rows
    ]
    return np.frombuffer(b"".join(rows), np.dtype("<u8")).reshape(len(rows), words)


def _check_matchers(
    snapshot: Snapshot, kind: str, suffix: str, rows: NodeMatchers, rule_rows: Rows, of_rule: Array
) -> None:
    """Leaves against the rows of their ads' rules, inner nodes against their children."""
    trie, ads = snapshot.trie, snapshot.ads
    index_file, table_file = f"{kind}_index{suffix}.npy", f"{kind}_table{suffix}.npy"
    first = 0
    for level, count in enumerate(rows.level_rows, start=1):
        begin, end = rows.ids_of_level(trie, level)
        _check_first_use(index_file, rows.index[begin:end], count, f"level {level} row", first)
        _check_distinct(table_file, rows.table[first : first + count], "row", first)
        first += count
    for begin, end, offsets in _blocks(ads.ad_offsets):
        members = rule_rows[of_rule[ads.ad_rule[offsets[0] : offsets[-1]]]]
        first_leaf = trie.first_leaf + begin
        ids = rows.id_offsets(trie, first_leaf - 1, first_leaf - 1 + end - begin)[:-1]
        _check_union(index_file, rows, first_leaf, ids, members, offsets)
    if snapshot.mode is not MatcherMode.UNION:
        if snapshot.mode is MatcherMode.DYNAMIC:
            _check_no_empty_partition(index_file, trie, rows)
        _check_sid_partitions(index_file, trie, rows)
        _check_inner_partitions(index_file, trie, rows)
        return
    inner = trie.node_offsets[1 : trie.num_internal + 1]  # the root has no row
    for begin, end, offsets in _blocks(inner):
        members = rows.table[rows.index[offsets[0] : offsets[-1]]]
        _check_union(index_file, rows, 1 + begin, np.arange(begin, end), members, offsets)


def _blocks(offsets: Array) -> Iterator[tuple[int, int, Array]]:
    for begin, end in _ranges(len(offsets) - 1):
        yield begin, end, offsets[begin : end + 1]


def _ranges(count: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, count, BLOCK):
        yield begin, min(begin + BLOCK, count)


def _check_union(
    file: str, rows: NodeMatchers, first_node: int, ids: Array, members: Rows, offsets: Array
) -> None:
    """The rows of some nodes, one id each, are the OR of their members, cut at `offsets`."""
    expected = np.bitwise_or.reduceat(members, offsets[:-1] - offsets[0], axis=0)
    wrong = np.flatnonzero((rows.table[rows.index[ids]] != expected).any(axis=1))
    if len(wrong):
        entry = first_node - 1 + int(wrong[0])
        row = rows.index[ids[wrong[0]]]
        fault = (
            f"entry {entry} has row {row}, which is not the OR of the rows below node {entry + 1}"
        )
        raise SnapshotError(file, fault)


def _check_inner_partitions(file: str, trie: SidTrie, rows: NodeMatchers) -> None:
    """Raises SnapshotError. The leaves' rows must have been checked by `_check_sid_partitions`."""
    sid_ids = rows.id_offsets(trie, *trie.entries_of_level(trie.sid_length))
    sid_rows = rows.index[sid_ids[:-1]]
    borders = np.arange(trie.num_leaves + 1, dtype=np.int64)
    for level in range(trie.sid_length - 1, 0, -1):
        nodes = slice(trie.level_starts[level], trie.level_starts[level + 1] + 1)
        children = trie.node_offsets[nodes].astype(np.int64)
        borders = borders[children - trie.entries_of_level(level + 1)[0]]
        first_entry = trie.entries_of_level(level)[0]
        for begin, end in _ranges(len(borders) - 1):
            ids = rows.id_offsets(trie, first_entry + begin, first_entry + end)
            _check_joined(file, rows, first_entry + begin, ids, sid_rows, borders[begin : end + 1])
        _check_contained(file, trie, rows, level, sid_rows, borders)


def _check_sid_partitions(file: str, trie: SidTrie, rows: NodeMatchers) -> None:
    """Each SID is one partition; the others of static k-way are empty."""
    begin, end = trie.entries_of_level(trie.sid_length)
    for first, last in _ranges(end - begin):
        ids = rows.id_offsets(trie, begin + first, begin + last)
        used = np.asarray(rows.table[rows.index[ids[0] : ids[-1]]].any(axis=1))
        used[ids[:-1] - ids[0]] = False
        if used.any():
            at = int(np.searchsorted(ids, ids[0] + np.flatnonzero(used)[0], side="right")) - 1
            entry = begin + first + at
            raise SnapshotError(file, f"entry {entry} has one SID, but several partitions")


def _check_no_empty_partition(file: str, trie: SidTrie, rows: NodeMatchers) -> None:
    """Dynamic k-way stores a partition only if it has a SID, and so a row with a bit.

    Without attributes no bitmask row has one; but then one partition is enough for any node.
    """
    for first, last in _ranges(trie.num_entries):
        assert rows.offsets is not None
        ids = rows.offsets[first : last + 1].astype(np.int64)
        empty = ~rows.table[rows.index[ids[0] : ids[-1]]].any(axis=1)
        empty &= np.repeat(np.diff(ids) > 1, np.diff(ids))
        if empty.any():
            at = int(np.searchsorted(ids, ids[0] + np.flatnonzero(empty)[0], side="right")) - 1
            raise SnapshotError(file, f"entry {first + at} has a partition without a SID")


def _check_joined(
    file: str, rows: NodeMatchers, first_entry: int, ids: Array, sid_rows: Array, borders: Array
) -> None:
    """The partitions of some nodes join to the OR of their SIDs' rows, cut at `borders`."""
    joined = _joined(rows.table, rows.index[ids[0] : ids[-1]], ids - ids[0])
    expected = _joined(rows.table, sid_rows[borders[0] : borders[-1]], borders - borders[0])
    wrong = np.flatnonzero((joined != expected).any(axis=1))
    if len(wrong):
        entry = first_entry + int(wrong[0])
        raise SnapshotError(
            file, f"entry {entry} has partitions that are not the OR of the SIDs below it"
        )


def _joined(table: Rows, members: Array, borders: Array) -> Rows:
    """The OR of each group's rows, piece by piece: a node may have many SIDs."""
    joined = np.zeros((len(borders) - 1, table.shape[1]), np.uint64)
    for begin, end in _ranges(len(members)):
        first = int(np.searchsorted(borders, begin, side="right")) - 1
        last = int(np.searchsorted(borders, end, side="left"))
        starts = np.maximum(borders[first:last], begin) - begin
        joined[first:last] |= np.bitwise_or.reduceat(table[members[begin:end]], starts, axis=0)
    return joined


def _check_contained(
    file: str, trie: SidTrie, rows: NodeMatchers, level: int, sid_rows: Array, borders: Array
) -> None:
    """Some partition of its node contains the row of every SID."""
    entry_begin, entry_end = trie.entries_of_level(level)
    ids = rows.id_offsets(trie, entry_begin, entry_end)
    for begin, end in _ranges(trie.num_leaves):
        left = np.arange(begin, end)
        nodes = np.searchsorted(borders, left, side="right") - 1
        partition = 0
        while len(left):
            at = ids[nodes] + partition
            past_last = at >= ids[nodes + 1]
            if past_last.any():
                entry = entry_begin + int(nodes[np.argmax(past_last)])
                raise SnapshotError(
                    file, f"entry {entry} has no partition that contains a SID below it"
                )
            own = rows.table[sid_rows[left]]
            outside = (own & ~rows.table[rows.index[at]]).any(axis=1)
            left, nodes = left[outside], nodes[outside]
            partition += 1
