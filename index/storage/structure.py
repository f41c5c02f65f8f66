"""Check the structure of a snapshot whose arrays have the right dtypes and shapes.

The loops are native/src/structure.cpp: each reports the first fault as a kind and a position, and
this module words it. A snapshot that passes can be walked, decoded and matched without reading out
of bounds. `grace.index.invariants` checks what only a builder's mistake can break.
"""

from collections.abc import Callable
from ctypes import c_int32, c_int64, c_uint64
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.configs.errors import SnapshotError
from grace.index.entities import NO_ENTITY, Entities
from grace.index.matchers.bloom import star_hash
from grace.index.matchers.exact_lists import ExactLists
from grace.index.matchers.modes import DynamicKWay
from grace.index.matchers.node_matchers import BloomMatchers, NodeMatchers
from grace.index.matching.ads import SidToAds
from grace.index.snapshot import Snapshot
from grace.index.targeting.schema import TargetSet
from grace.index.trie import SidTrie
from grace.index.users.values import InternedValues
from grace.native.loader import array_in, array_out, declare

Array = npt.NDArray[Any]

INT64_MAX = (1 << 63) - 1


class Kind(IntEnum):
    """The kinds of faults, with the numbers of native/src/structure.cpp."""

    NONE = 0
    FIRST_OFFSET = 1
    OFFSET_DESCENDS = 2
    EMPTY_GROUP = 3
    LAST_OFFSET = 4
    OUT_OF_RANGE = 5
    NOT_ASCENDING = 6
    PADDING_BIT = 7
    STAR_FLAG = 8
    STAR_ROW = 9
    NOT_FINITE = 10
    NOT_UTF8 = 11
    NOT_IN_GROUP = 12


def _check(name: str, *argtypes: Any) -> Callable[..., tuple[Kind, int]]:
    """Return a native check, whose last argument is the number of threads."""
    native = declare(name, *argtypes, c_int32, array_out(np.int64))

    def check(*arguments: Any) -> tuple[Kind, int]:
        fault = np.zeros(2, np.int64)
        native(*arguments, fault)
        return Kind(int(fault[0])), int(fault[1])

    return check


def _offsets(suffix: str, dtype: type[np.generic]) -> Callable[..., tuple[Kind, int]]:
    """Return a check of offsets, groups, members, nonempty, threads."""
    name = f"grace_check_offsets_{suffix}"
    return _check(name, array_in(dtype), c_int64, c_int64, c_int32)


def _groups(
    suffix: str, offsets: type[np.generic], values: type[np.generic]
) -> Callable[..., tuple[Kind, int]]:
    """Return a check of offsets, groups, values, count, greatest, threads."""
    name = f"grace_check_groups_{suffix}"
    return _check(name, array_in(offsets), c_int64, array_in(values), c_int64, c_int64)


find_in_offsets_i32 = _offsets("i32", np.int32)
find_in_offsets_i64 = _offsets("i64", np.int64)
find_in_node_tokens = _groups("i32_u16", np.int32, np.uint16)
find_in_leaf_rules = _groups("i32_i32", np.int32, np.int32)
find_in_rule_values = _groups("i64_i32", np.int64, np.int32)
find_in_leaf_ads = _groups("i64_i64", np.int64, np.int64)
# Takes ad_offsets, leaves, ad_rule, ads, leaf_offsets, leaf_rules, count, threads.
find_missing_rule = _check(
    "grace_check_rules_of_ads",
    *(array_in(np.int64), c_int64, array_in(np.int32), c_int64),
    *(array_in(np.int32), array_in(np.int32), c_int64),
)
# Takes ids, count, stride, begin, end, threads.
find_in_ids = _check("grace_check_ids", array_in(np.int32), c_int64, c_int64, c_int64, c_int64)
# Takes ids, count, threads.
find_in_ascending_ids = _check("grace_check_ascending", array_in(np.int64), c_int64)
# Takes table, rows, words, bits, threads.
find_in_padding = _check("grace_check_padding", array_in(np.uint64, 2), c_int64, c_int64, c_int64)
# Takes table, star, rows, bloom_bits, bloom_hashes, star_hash, threads.
find_in_stars = _check(
    "grace_check_stars",
    array_in(np.uint64, 2),
    array_in(np.uint8),
    c_int64,
    c_int64,
    c_int64,
    c_uint64,
)
# Takes ad_ids, lookup, ads, threads.
find_in_lookup = _check("grace_check_lookup", array_in(np.int64), array_in(np.int32), c_int64)
# Takes weights, count, threads.
find_in_weights = _check("grace_check_finite", array_in(np.float32), c_int64)
# Takes offsets, strings, utf8, bytes, threads.
find_in_strings = _check(
    "grace_check_strings", array_in(np.int64), c_int64, array_in(np.uint8), c_int64
)


def check_structure(snapshot: Snapshot, threads: int) -> None:
    """Raises SnapshotError with the file, the position, the value and what was expected."""
    _check_trie(snapshot.trie, threads)
    _check_ads(snapshot.ads, snapshot.trie.num_leaves, snapshot.rules.num_rules, threads)
    _check_rules(snapshot, threads)
    for target_set, values in zip(snapshot.schema.sets, snapshot.set_values, strict=True):
        _check_values(target_set.name, values, threads)
    for entities in snapshot.entities:
        _check_entities(entities, snapshot.ads.num_ads, threads)
    if snapshot.exact is not None:
        _check_exact_lists(snapshot, snapshot.exact, threads)
    if snapshot.matchers is None:
        return
    bitmask = snapshot.matchers.bitmask
    _check_partitions("bitmask_offsets.npy", snapshot, bitmask, threads)
    _check_level_rows("bitmask_index.npy", snapshot.trie, bitmask, threads)
    bits = snapshot.schema.bitmask_bits
    _check_padding("bitmask_table.npy", bitmask.table, bits, threads)
    for target_set, bloom in zip(snapshot.schema.sets, snapshot.matchers.blooms, strict=True):
        file = f"bloom_index.{target_set.name}.npy"
        offsets_file = f"bloom_offsets.{target_set.name}.npy"
        _check_partitions(offsets_file, snapshot, bloom.rows, threads)
        _check_level_rows(file, snapshot.trie, bloom.rows, threads)
        _check_stars(target_set, bloom, star_hash(snapshot.schema.hash_seed), threads)


def _check_offsets(
    file: str, offsets: Array, members: int, group: str, member: str, nonempty: bool, threads: int
) -> None:
    check = find_in_offsets_i32 if offsets.dtype == np.int32 else find_in_offsets_i64
    kind, at = check(offsets, len(offsets) - 1, members, nonempty, threads)
    if kind is Kind.NONE:
        return
    found = offsets[at]
    if kind is Kind.FIRST_OFFSET:
        fault = f"offset 0 is {found}, expected 0"
    elif kind is Kind.OFFSET_DESCENDS:
        fault = f"offset {at} is {found}, below the one before it, {offsets[at - 1]}"
    elif kind is Kind.EMPTY_GROUP:
        fault = f"{group} {at - 1} has no {member}: offsets {at - 1} and {at} are both {found}"
    else:
        fault = f"the last offset is {found}, but there are {members} {member} entries"
    raise SnapshotError(file, fault)


def _check_trie(trie: SidTrie, threads: int) -> None:
    offsets, tokens = trie.node_offsets, trie.csr_tokens
    _check_offsets("node_offsets.npy", offsets, len(tokens), "node", "child", True, threads)
    for level, vocab_size in enumerate(trie.vocab_sizes, start=1):
        begin, end = trie.level_starts[level - 1], trie.level_starts[level]
        expected = trie.entries_of_level(level)[1]
        if offsets[end] != expected:
            raise SnapshotError(
                "node_offsets.npy",
                f"offset {end} is {offsets[end]}, expected {expected}: there the children of "
                f"level {level - 1} end, and level {level} has {trie.level_counts[level]} nodes",
            )
        kind, at = find_in_node_tokens(
            offsets[begin : end + 1], end - begin, tokens, len(tokens), vocab_size - 1, threads,
        )  # fmt: skip
        if kind is Kind.OUT_OF_RANGE:
            fault = f"entry {at} is token {tokens[at]}, but level {level} has {vocab_size} tokens"
            raise SnapshotError("csr_tokens.npy", fault)
        if kind is not Kind.NONE:
            raise SnapshotError("csr_tokens.npy", _not_ascending("entry", "token", tokens, at))


def _check_ads(ads: SidToAds, leaves: int, rules: int, threads: int) -> None:
    _check_offsets("ad_offsets.npy", ads.ad_offsets, ads.num_ads, "leaf", "ad", True, threads)
    kind, at = find_in_leaf_ads(ads.ad_offsets, leaves, ads.ad_ids, ads.num_ads, INT64_MAX, threads)
    if kind is Kind.OUT_OF_RANGE:
        fault = f"ad {at} has id {ads.ad_ids[at]}, expected none below 0"
        raise SnapshotError("ad_ids.npy", fault)
    if kind is not Kind.NONE:
        fault = f"{_not_ascending('ad', 'id', ads.ad_ids, at)} of the same SID"
        raise SnapshotError("ad_ids.npy", fault)
    _check_ids("ad_rule.npy", ads.ad_rule, rules, "ad", "rule", threads)
    kind, at = find_in_weights(ads.ad_weight, ads.num_ads, threads)
    if kind is not Kind.NONE:
        fault = f"ad {at} has weight {ads.ad_weight[at]}, expected a finite number"
        raise SnapshotError("ad_weight.npy", fault)
    _check_lookup(ads, threads)


def _check_lookup(ads: SidToAds, threads: int) -> None:
    lookup = ads.ad_lookup
    kind, at = find_in_lookup(ads.ad_ids, lookup, ads.num_ads, threads)
    if kind is Kind.OUT_OF_RANGE:
        fault = f"entry {at} names ad {lookup[at]}, but there are {ads.num_ads} ads"
        raise SnapshotError("ad_lookup.npy", fault)
    if kind is not Kind.NONE:
        here, before = ads.ad_ids[lookup[at]], ads.ad_ids[lookup[at - 1]]
        fault = f"entry {at} leads to ad id {here}, not above the one before it, {before}"
        raise SnapshotError("ad_lookup.npy", fault)


def _check_rules(snapshot: Snapshot, threads: int) -> None:
    rules = snapshot.rules
    table = rules.bitmask_table
    _check_ids("rule_bitmask.npy", rules.bitmask, len(table), "rule", "bitmask", threads)
    _check_padding("rule_bitmask_table.npy", table, snapshot.schema.bitmask_bits, threads)
    for i, (target_set, set_rules) in enumerate(zip(snapshot.schema.sets, rules.sets, strict=True)):
        name = target_set.name
        # A column of [rules, sets] is every `sets`-th number from its first.
        column = rules.set_rules.reshape(-1)[i:]
        item = f"{name} rule"
        _check_ids(
            "rule_sets.npy", column, set_rules.num_rules, "rule", item, threads,
            count=rules.num_rules, stride=len(rules.sets),
        )  # fmt: skip
        lists = {
            "include": (set_rules.include_offsets, set_rules.include_values),
            "exclude": (set_rules.exclude_offsets, set_rules.exclude_values),
        }
        for kind, (offsets, values) in lists.items():
            _check_lists(f"set_{kind}", name, offsets, values, snapshot.set_values[i], threads)


def _check_lists(
    kind: str, name: str, offsets: Array, values: Array, interned: InternedValues, threads: int
) -> None:
    file = f"{kind}_offsets.{name}.npy"
    _check_offsets(file, offsets, len(values), "set rule", "value", False, threads)
    found = find_in_rule_values(
        offsets, len(offsets) - 1, values, len(values), len(interned) - 1, threads
    )
    _refuse_member(f"{kind}_values.{name}.npy", found, values, "value", len(interned))


def _check_values(name: str, values: InternedValues, threads: int) -> None:
    offsets, utf8 = values.offsets, values.utf8
    file = f"value_offsets.{name}.npy"
    _check_offsets(file, offsets, len(utf8), "value", "byte", False, threads)
    kind, at = find_in_strings(offsets, len(values), utf8, len(utf8), threads)
    if kind is Kind.NONE:
        return
    shown = repr(utf8[offsets[at] : offsets[at + 1]].tobytes()[:60])
    if kind is Kind.NOT_UTF8:
        fault = f"value {at} is {shown}, expected UTF-8"
    else:
        fault = f"value {at} is {shown}, not above the one before it"
    raise SnapshotError(f"value_utf8.{name}.npy", fault)


def _check_entities(entities: Entities, num_ads: int, threads: int) -> None:
    name, ids, of_ad, ads = entities.name, entities.ids, entities.of_ad, entities.ads
    kind, at = find_in_ascending_ids(ids, len(ids), threads)
    if kind is Kind.OUT_OF_RANGE:
        fault = f"entity {at} has id {ids[at]}, expected none below 0"
        raise SnapshotError(f"entity_ids.{name}.npy", fault)
    if kind is not Kind.NONE:
        raise SnapshotError(f"entity_ids.{name}.npy", _not_ascending("entity", "id", ids, at))
    kind, at = find_in_ids(of_ad, num_ads, 1, NO_ENTITY, len(ids), threads)
    if kind is not Kind.NONE:
        fault = f"ad {at} has entity {of_ad[at]}, but there are {len(ids)} entities"
        raise SnapshotError(f"entity_of_ad.{name}.npy", fault)
    file = f"entity_offsets.{name}.npy"
    _check_offsets(file, entities.offsets, len(ads), "entity", "ad", True, threads)
    offsets, last = entities.offsets, num_ads - 1
    kind, at = find_in_rule_values(offsets, len(ids), ads, len(ads), last, threads)
    file = f"entity_ads.{name}.npy"
    if kind is Kind.OUT_OF_RANGE:
        raise SnapshotError(file, f"entry {at} names ad {ads[at]}, but there are {num_ads} ads")
    if kind is not Kind.NONE:
        raise SnapshotError(file, _not_ascending("entry", "ad", ads, at))


def _check_exact_lists(snapshot: Snapshot, lists: ExactLists, threads: int) -> None:
    offsets, rules, limit = lists.leaf_offsets, lists.leaf_rules, snapshot.rules.num_rules
    _check_offsets("leaf_rule_offsets.npy", offsets, len(rules), "leaf", "rule", True, threads)
    found = find_in_leaf_rules(offsets, len(offsets) - 1, rules, len(rules), limit - 1, threads)
    _refuse_member("leaf_rules.npy", found, rules, "rule", limit)
    ads, leaves = snapshot.ads, snapshot.trie.num_leaves
    missing, at = find_missing_rule(
        ads.ad_offsets, leaves, ads.ad_rule, ads.num_ads, offsets, rules, len(rules), threads
    )
    if missing is not Kind.NONE:
        leaf = int(np.searchsorted(ads.ad_offsets, at, side="right")) - 1
        fault = f"leaf {leaf} lacks rule {ads.ad_rule[at]} of its ad {ads.ad_ids[at]}"
        raise SnapshotError("leaf_rules.npy", fault)
    for target_set, set_rules, postings in zip(
        snapshot.schema.sets, snapshot.rules.sets, lists.postings, strict=True
    ):
        limit = set_rules.num_rules
        for kind in ("include", "exclude"):
            by_value: Array = getattr(postings, f"{kind}_offsets")
            named: Array = getattr(postings, f"{kind}_rules")
            file = f"{kind}_posting_offsets.{target_set.name}.npy"
            _check_offsets(file, by_value, len(named), "value", "set rule", False, threads)
            found = find_in_rule_values(
                by_value, len(by_value) - 1, named, len(named), limit - 1, threads
            )
            file = f"{kind}_postings.{target_set.name}.npy"
            _refuse_member(file, found, named, "set rule", limit)


def _refuse_member(
    file: str, found: tuple[Kind, int], members: Array, thing: str, limit: int
) -> None:
    """Raise SnapshotError for the first fault that a check of groups found."""
    kind, at = found
    if kind is Kind.OUT_OF_RANGE:
        raise SnapshotError(
            file, f"entry {at} is {thing} {members[at]}, but there are {limit} {thing}s"
        )
    if kind is not Kind.NONE:
        raise SnapshotError(file, _not_ascending("entry", thing, members, at))


def _check_partitions(file: str, snapshot: Snapshot, rows: NodeMatchers, threads: int) -> None:
    """Dynamic k-way: every child entry has 1 to k_max ids, and all ids are an entry's."""
    matchers = snapshot.matchers
    if rows.offsets is None or matchers is None or not isinstance(matchers.k_way, DynamicKWay):
        return
    offsets, k_max = rows.offsets, matchers.k_way.k_max
    _check_offsets(file, offsets, len(rows.index), "entry", "partition", True, threads)
    counts = np.diff(offsets)
    entry = int(counts.argmax())
    if counts[entry] > k_max:
        fault = f"entry {entry} has {counts[entry]} partitions, expected {k_max} at most"
        raise SnapshotError(file, fault)


def _check_level_rows(file: str, trie: SidTrie, rows: NodeMatchers, threads: int) -> None:
    first = 0
    for level, count in enumerate(rows.level_rows, start=1):
        begin, end = rows.ids_of_level(trie, level)
        kind, at = find_in_ids(rows.index[begin:end], end - begin, 1, first, first + count, threads)
        if kind is not Kind.NONE:
            raise SnapshotError(
                file,
                f"entry {begin + at} has row {rows.index[begin + at]}, but level {level} has rows "
                f"{first} to {first + count - 1}",
            )
        first += count


def _check_stars(
    target_set: TargetSet, bloom: BloomMatchers, hash_of_star: int, threads: int
) -> None:
    kind, row = find_in_stars(
            bloom.rows.table, bloom.star, len(bloom.star), target_set.bloom_bits,
        target_set.bloom_hashes, hash_of_star, threads,
    )  # fmt: skip
    if kind is Kind.NONE:
        return
    found = bloom.star[row]
    if kind is Kind.STAR_FLAG:
        fault = f"row {row} has flag {found}, expected 0 or 1"
    else:
        fault = f"row {row} has flag {found}, but its Bloom row says {1 - found}"
    raise SnapshotError(f"bloom_star.{target_set.name}.npy", fault)


def _check_ids(
    file: str, ids: Array, limit: int, item: str, thing: str, threads: int,
    *, count: int | None = None, stride: int = 1,
) -> None:  # fmt: skip
    kind, at = find_in_ids(ids, len(ids) if count is None else count, stride, 0, limit, threads)
    if kind is not Kind.NONE:
        found = ids[at * stride]
        raise SnapshotError(
            file, f"{item} {at} has {thing} {found}, but there are {limit} {thing}s"
        )


def _check_padding(file: str, table: Array, bits: int, threads: int) -> None:
    kind, row = find_in_padding(table, *table.shape, bits, threads)
    if kind is not Kind.NONE:
        fault = f"row {row} has a bit set beyond the {bits} bits that the schema has"
        raise SnapshotError(file, fault)


def _not_ascending(item: str, thing: str, values: Array, at: int) -> str:
    return f"{item} {at} has {thing} {values[at]}, not above the one before it, {values[at - 1]}"
