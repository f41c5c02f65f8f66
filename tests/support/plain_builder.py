"""A snapshot built in plain Python: what the native builder's arrays must equal, one for one.

Matcher rows are Python integers here: bit i of the integer is bit i of the row.
"""

from collections.abc import Hashable, Iterable, Sequence
from fractions import Fraction
from functools import reduce
from itertools import pairwise
from operator import or_
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from grace.configs.eligibility import FILL_UNIT, DynamicKWay, KWay, MatcherMode, StaticKWay
from grace.index.entities import Entities
from grace.index.matchers.exact_lists import ExactLists, Postings
from grace.index.matchers.node_matchers import (
    BloomMatchers,
    Matchers,
    NodeMatchers,
    bloom_positions,
    star_hash,
    value_hash,
)
from grace.index.matching.ads import SidToAds
from grace.index.snapshot import Snapshot, SnapshotFacts
from grace.index.targeting.rules import Lists, NumberRows, SetRules, TargetingRules, ValueRows
from grace.index.targeting.schema import RESERVED_VALUE, Attribute, TargetingSchema, TargetSet
from grace.index.trie import SidTrie
from grace.index.users.values import InternedValues
from support.oracle import NO_RULE, RawAd, Rule

PLAIN_CREATED_AT = "2026-01-31T12:00:00Z"
PLAIN_SID_SPACE = "plain-1"
_WIDTHS = (3, 4, 2, 1, 5)  # of the partitions of static matchers, level by level

Prefix = tuple[int, ...]
ValueIds = tuple[int, ...]
SetRule = tuple[ValueIds, ValueIds]  # include, exclude; empty: no such list
PlainRule = tuple[int, tuple[SetRule, ...]]  # bitmask bits, and a set rule per set
Item = TypeVar("Item", bound=Hashable)
Offset = TypeVar("Offset", np.int32, np.int64)


def plain_snapshot(
    schema: TargetingSchema,
    vocab_sizes: Sequence[int],
    ads: Iterable[RawAd],
    mode: MatcherMode = MatcherMode.EXACT,
    version: int = 1,
    k_way: KWay | None = None,
) -> Snapshot:
    """The snapshot of ads that a build would keep: refusals are not looked for here.

    Without `k_way`, modes `static` and `dynamic` make the partitions of `plain_k_way`.
    """
    ordered = sorted(ads, key=lambda ad: (ad.sid, ad.ad_id))
    levels = _levels(ordered, len(vocab_sizes))
    set_values = tuple(_interned(ordered, target_set) for target_set in schema.sets)
    plain_rules = [_plain_rule(schema, set_values, ad) for ad in ordered]
    sid_to_ads, rules = _sid_to_ads(ordered, levels[-1], plain_rules), _rules(schema, plain_rules)
    num_values = tuple(map(len, set_values))
    return Snapshot(
        facts=SnapshotFacts(version, PLAIN_CREATED_AT, PLAIN_SID_SPACE, 0, 0),
        schema=schema,
        trie=_trie(levels, tuple(vocab_sizes)),
        mode=mode,
        matchers=None
        if mode in (MatcherMode.EXACT, MatcherMode.CD)
        else _matchers(schema, levels, ordered, k_way or plain_k_way(mode, len(vocab_sizes))),
        ads=sid_to_ads,
        rules=rules,
        set_values=set_values,
        entities=tuple(_entities(name, ordered) for name in schema.entities),
        exact=plain_exact_lists(sid_to_ads, rules, num_values)
        if mode is MatcherMode.EXACT
        else None,
    )


def _entities(name: str, ads: list[RawAd]) -> Entities:
    ads_of: dict[int, list[int]] = {}
    for ordinal, ad in enumerate(ads):
        if name in ad.entities:
            ads_of.setdefault(ad.entities[name], []).append(ordinal)
    ids = sorted(ads_of)
    of_ad = [ids.index(ad.entities[name]) if name in ad.entities else -1 for ad in ads]
    return Entities(
        name,
        ids=np.array(ids, np.int64),
        of_ad=np.array(of_ad, np.int32),
        offsets=_offsets((len(ads_of[each]) for each in ids), np.int64),
        ads=np.array([ordinal for each in ids for ordinal in ads_of[each]], np.int32),
    )


def _first_use(items: Iterable[Item]) -> dict[Item, int]:
    """Ids by first use."""
    ids: dict[Item, int] = {}
    for item in items:
        ids.setdefault(item, len(ids))
    return ids


def _offsets(lengths: Iterable[int], dtype: type[Offset]) -> npt.NDArray[Offset]:
    return np.array([0, *np.cumsum(list(lengths), dtype=np.int64)], dtype)


def _levels(ads: list[RawAd], sid_length: int) -> list[list[Prefix]]:
    return [sorted({ad.sid[:length] for ad in ads}) for length in range(sid_length + 1)]


def _trie(levels: list[list[Prefix]], vocab_sizes: tuple[int, ...]) -> SidTrie:
    fan_out: dict[Prefix, int] = {}
    for prefix in (prefix for level in levels[1:] for prefix in level):
        fan_out[prefix[:-1]] = fan_out.get(prefix[:-1], 0) + 1
    return SidTrie(
        vocab_sizes=vocab_sizes,
        level_counts=tuple(len(level) for level in levels),
        node_offsets=_offsets(
            (fan_out[prefix] for level in levels[:-1] for prefix in level), np.int32
        ),
        csr_tokens=np.array([prefix[-1] for level in levels[1:] for prefix in level], np.uint16),
    )


def _interned(ads: list[RawAd], target_set: TargetSet) -> InternedValues:
    used: set[str] = set()
    for ad in ads:
        include, exclude = ad.rules.get(target_set.name, NO_RULE)
        used |= (include or frozenset()) | (exclude or frozenset())
    return InternedValues.of(used)


def _attribute_bits(attribute: Attribute, rule: Rule) -> int:
    """Bit i: listed value i is allowed; the last bit: `other` is."""
    include, exclude = rule
    bits = 0
    for i, value in enumerate(attribute.values):
        if (include is None or value in include) and value not in (exclude or ()):
            bits |= 1 << i
    other = include is None and (not exclude or attribute.missing_passes_exclude)
    return bits | (other << len(attribute.values))


def _ad_bitmask(schema: TargetingSchema, ad: RawAd) -> int:
    bits = 0
    for attribute, first in schema.places:
        bits |= _attribute_bits(attribute, ad.rules.get(attribute.name, NO_RULE)) << first
    return bits


def _plain_rule(
    schema: TargetingSchema, set_values: tuple[InternedValues, ...], ad: RawAd
) -> PlainRule:
    set_rules = []
    for target_set, interned in zip(schema.sets, set_values, strict=True):
        include, exclude = ad.rules.get(target_set.name, NO_RULE)
        set_rules.append(
            (
                tuple(sorted(interned.ids[value] for value in include or ())),
                tuple(sorted(interned.ids[value] for value in exclude or ())),
            )
        )
    return _ad_bitmask(schema, ad), tuple(set_rules)


def _rules(schema: TargetingSchema, plain_rules: list[PlainRule]) -> TargetingRules:
    distinct = list(_first_use(plain_rules))
    bitmask_ids = _first_use(bits for bits, _ in distinct)
    set_ids = [
        _first_use(set_rules[i] for _, set_rules in distinct) for i in range(len(schema.sets))
    ]
    return TargetingRules(
        np.array(
            [
                [bitmask_ids[bits], *(ids[rule] for ids, rule in zip(set_ids, own, strict=True))]
                for bits, own in distinct
            ],
            np.int32,
        ),
        (
            NumberRows(_table(bitmask_ids, schema.words)),
            *(_set_rules(list(ids)) for ids in set_ids),
        ),
    )


def _set_rules(rules: list[SetRule]) -> SetRules:
    return SetRules(
        include_offsets=_offsets((len(include) for include, _ in rules), np.int64),
        include_values=np.array([v for include, _ in rules for v in include], np.int32),
        exclude_offsets=_offsets((len(exclude) for _, exclude in rules), np.int64),
        exclude_values=np.array([v for _, exclude in rules for v in exclude], np.int32),
    )


def _sid_to_ads(ads: list[RawAd], leaves: list[Prefix], plain_rules: list[PlainRule]) -> SidToAds:
    rule_ids = _first_use(plain_rules)
    under = dict.fromkeys(leaves, 0)
    for ad in ads:
        under[ad.sid] += 1
    return SidToAds(
        ad_offsets=_offsets(under.values(), np.int64),
        ad_ids=np.array([ad.ad_id for ad in ads], np.int64),
        ad_rule=np.array([rule_ids[rule] for rule in plain_rules], np.int32),
        ad_weight=np.array([ad.weight for ad in ads], np.float32),
        ad_lookup=np.array(sorted(range(len(ads)), key=lambda i: ads[i].ad_id), np.int32),
    )


def plain_exact_lists(
    ads: SidToAds, rules: TargetingRules, num_values: tuple[int, ...]
) -> ExactLists:
    """What mode `exact` reads, by looking at every ad and every value of the set rules."""
    leaves = pairwise(ads.ad_offsets.tolist())
    of_leaf = [sorted({*ads.ad_rule[begin:end].tolist()}) for begin, end in leaves]
    named = (part for part in rules.parts if part.has_values)
    postings = [
        _plain_postings(part, values) for part, values in zip(named, num_values, strict=True)
    ]
    return ExactLists(*_joined(of_leaf, np.int32), tuple(postings), rules.num_rules)


def _plain_postings(rows: SetRules | ValueRows, values: int) -> Postings:
    """A set's groups come after its rules."""
    if isinstance(rows, ValueRows):
        return (Lists(*_by_value(rows.offsets, rows.values, values)),)
    ends = [*rows.include_offsets, *(rows.include_offsets[-1] + rows.group_offsets[1:])]
    included = np.concatenate([rows.include_values, rows.group_values])
    return (
        Lists(*_by_value(np.array(ends), included, values)),
        Lists(*_by_value(rows.exclude_offsets, rows.exclude_values, values)),
    )


def _by_value(
    offsets: npt.NDArray[np.int64], values: npt.NDArray[np.int32], num_values: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    naming: list[list[int]] = [[] for _ in range(num_values)]
    for rule, (begin, end) in enumerate(pairwise(offsets.tolist())):
        for value in values[begin:end].tolist():
            naming[value].append(rule)
    return _joined(naming, np.int64)


def _joined(
    lists: list[list[int]], dtype: type[Offset]
) -> tuple[npt.NDArray[Offset], npt.NDArray[np.int32]]:
    return _offsets(map(len, lists), dtype), np.array([i for ids in lists for i in ids], np.int32)


def _matchers(
    schema: TargetingSchema, levels: list[list[Prefix]], ads: list[RawAd], k_way: KWay | None
) -> Matchers:
    def node_matchers(ad_rows: list[int], words: int, bits: int) -> NodeMatchers:
        sid_rows = dict.fromkeys(levels[-1], 0)
        for ad, row in zip(ads, ad_rows, strict=True):
            sid_rows[ad.sid] |= row
        return _node_matchers(levels, sid_rows, words, bits, k_way)

    ad_rows = [_ad_bitmask(schema, ad) for ad in ads]
    bitmask = node_matchers(ad_rows, schema.words, schema.bitmask_bits)
    blooms = []
    for target_set in schema.sets:
        ad_rows = [_ad_bloom(target_set, schema.hash_seed, ad) for ad in ads]
        rows = node_matchers(ad_rows, target_set.words, target_set.bloom_bits)
        star_bits = _bits(bloom_positions(star_hash(schema.hash_seed), target_set))
        star = [_integer(row) & star_bits == star_bits for row in rows.table]
        blooms.append(BloomMatchers(rows, np.array(star, np.uint8)))
    return Matchers(bitmask, tuple(blooms), k_way)


def _ad_bloom(target_set: TargetSet, seed: int, ad: RawAd) -> int:
    include, _ = ad.rules.get(target_set.name, NO_RULE)
    bits = 0
    for value in include if include is not None else {RESERVED_VALUE}:
        bits |= _bits(bloom_positions(value_hash(value, seed), target_set))
    return bits


def _node_matchers(
    levels: list[list[Prefix]],
    sid_rows: dict[Prefix, int],
    words: int,
    bits: int,
    k_way: KWay | None,
) -> NodeMatchers:
    """Per level: the rows of each node's partitions, in `union` one; equal ones share an id."""
    index: list[int] = []
    counts: list[int] = []
    level_rows: list[int] = []
    table: list[int] = []
    for length, level in list(enumerate(levels))[1:]:
        below: dict[Prefix, list[int]] = {prefix: [] for prefix in level}
        for sid, row in sorted(sid_rows.items()):
            below[sid[:length]].append(row)
        nodes = [_partitions(rows, bits, k_way, length) for rows in below.values()]
        ids = _first_use(row for node in nodes for row in node)
        index.extend(len(table) + ids[row] for node in nodes for row in node)
        counts.extend(map(len, nodes))
        level_rows.append(len(ids))
        table.extend(ids)
    return NodeMatchers(
        np.array(index, np.int32),
        _table(table, words),
        tuple(level_rows),
        k_way.widths if isinstance(k_way, StaticKWay) else None,
        _offsets(counts, np.int32) if isinstance(k_way, DynamicKWay) else None,
    )


def _bits(positions: Iterable[int]) -> int:
    bits = 0
    for position in positions:
        bits |= 1 << position
    return bits


def _table(rows: Iterable[int], words: int) -> npt.NDArray[np.uint64]:
    mask = (1 << 64) - 1
    split = [[(row >> (64 * w)) & mask for w in range(words)] for row in rows]
    return np.array(split, np.uint64).reshape(len(split), words)


def _integer(row: npt.NDArray[np.uint64]) -> int:
    return sum(int(word) << (64 * w) for w, word in enumerate(row))


def plain_k_way(mode: MatcherMode, sid_length: int) -> KWay | None:
    """Partitions for small catalogues: fewer than some nodes have SIDs, more than others."""
    if mode is MatcherMode.STATIC:
        return StaticKWay(tuple(_WIDTHS[level % len(_WIDTHS)] for level in range(sid_length)))
    return DynamicKWay(300_000, 8) if mode is MatcherMode.DYNAMIC else None


def _partitions(sid_rows: list[int], bits: int, k_way: KWay | None, level: int) -> list[int]:
    """The rows that a node of a level stores, from those of the SIDs below it in SID order."""
    if k_way is None:
        return [reduce(or_, sid_rows)]
    if isinstance(k_way, StaticKWay):
        width = k_way.widths[level - 1]
        taken = _assigned(sid_rows, width)
        return taken + [0] * (width - len(taken))
    k = 1
    while True:
        taken = _assigned(sid_rows, k)
        if _mean_fill(taken, bits) <= Fraction(k_way.fill_target_millionths, FILL_UNIT):
            return taken
        if k == k_way.k_max:
            return taken
        k *= 2


def _assigned(sid_rows: list[int], k: int) -> list[int]:
    """Every SID to the partition with the smallest popcount after the union, the first of equals.

    The rows of the partitions that have SIDs, which are the first ones.
    """
    rows, members = [0] * k, [0] * k
    for row in sid_rows:
        sizes = [(partition | row).bit_count() for partition in rows]
        chosen = sizes.index(min(sizes))
        rows[chosen] |= row
        members[chosen] += 1
    stored = [row for row, count in zip(rows, members, strict=True) if count]
    assert rows[: len(stored)] == stored
    return stored


def _mean_fill(rows: list[int], bits: int) -> Fraction:
    return Fraction(sum(row.bit_count() for row in rows), max(1, bits) * len(rows))
