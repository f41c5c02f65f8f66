"""A snapshot built in plain Python: what the native builder's arrays must equal, one for one.

Matcher rows are Python integers here: bit i of the integer is bit i of the row.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from fractions import Fraction
from functools import reduce
from itertools import chain
from math import inf
from operator import or_
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from grace.configs.eligibility import FILL_UNIT, DynamicKWay, KWay, MatcherMode, StaticKWay
from grace.index.matchers.node_matchers import (
    BloomMatchers,
    Matchers,
    NodeMatchers,
    bloom_positions,
    value_hash,
)
from grace.index.matching.ads import Entities, SidToAds
from grace.index.snapshot import Snapshot, SnapshotFacts
from grace.index.targeting.rules import (
    Groups,
    Lists,
    NumberRows,
    SetRules,
    TargetingRules,
    ValueRows,
)
from grace.index.targeting.schema import (
    RESERVED_VALUE,
    Attribute,
    Flight,
    TargetingSchema,
    TargetSet,
)
from grace.index.trie import SidTrie
from grace.index.users.values import InternedValues
from support.oracle import NO_RULE, OPEN, RawAd, Rule, Rules
from support.plain_exact_lists import offsets_of, plain_exact_lists

PLAIN_CREATED_AT = "2026-01-31T12:00:00Z"
PLAIN_SID_SPACE = "plain-1"
_WIDTHS = (3, 4, 2, 1, 5)  # of the partitions of static matchers, level by level

Prefix = tuple[int, ...]
ValueIds = tuple[int, ...]
SetRule = tuple[ValueIds, ValueIds, tuple[ValueIds, ...]]  # include, exclude; empty: no list
PlainRule = tuple[Any, ...]  # the row of each component: bitmask bits, a set rule per set ...
Item = TypeVar("Item", bound=Hashable)


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
    set_values = tuple(_interned(ordered, name) for name in schema.valued_names)
    plain_rules = [_plain_rules(schema, set_values, ad) for ad in ordered]
    rules = _rules(schema, plain_rules)
    sid_to_ads = _sid_to_ads(ordered, levels[-1], plain_rules)
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
        offsets=offsets_of((len(ads_of[each]) for each in ids), np.int64),
        ads=np.array([ordinal for each in ids for ordinal in ads_of[each]], np.int32),
    )


def _first_use(items: Iterable[Item]) -> dict[Item, int]:
    """Ids by first use."""
    ids: dict[Item, int] = {}
    for item in items:
        ids.setdefault(item, len(ids))
    return ids


def _levels(ads: list[RawAd], sid_length: int) -> list[list[Prefix]]:
    return [sorted({ad.sid[:length] for ad in ads}) for length in range(sid_length + 1)]


def _trie(levels: list[list[Prefix]], vocab_sizes: tuple[int, ...]) -> SidTrie:
    fan_out: dict[Prefix, int] = {}
    for prefix in (prefix for level in levels[1:] for prefix in level):
        fan_out[prefix[:-1]] = fan_out.get(prefix[:-1], 0) + 1
    return SidTrie(
        vocab_sizes=vocab_sizes,
        level_counts=tuple(len(level) for level in levels),
        node_offsets=offsets_of(
            (fan_out[prefix] for level in levels[:-1] for prefix in level), np.int32
        ),
        csr_tokens=np.array([prefix[-1] for level in levels[1:] for prefix in level], np.uint16),
    )


def rules_of(ad: RawAd) -> list[Rules]:
    """What each clause says, together with the ad's own columns."""
    return [{**ad.rules, **clause} for clause in ad.clauses or ({},)]


def _interned(ads: list[RawAd], name: str) -> InternedValues:
    used: set[str] = set()
    for rules in chain.from_iterable(map(rules_of, ads)):
        rule = rules.get(name, ())
        lists = (rule,) if isinstance(rule, frozenset) else rule
        used = used.union(*(values or () for values in (*lists, *rules.get(f"{name}_all", ()))))
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


def _bitmask(schema: TargetingSchema, rules: Rules) -> int:
    bits = 0
    for attribute, first in schema.places:
        bits |= _attribute_bits(attribute, rules.get(attribute.name, NO_RULE)) << first
    return bits


def _plain_rules(
    schema: TargetingSchema, set_values: tuple[InternedValues, ...], ad: RawAd
) -> tuple[PlainRule, ...]:
    """The distinct rules of an ad, in the order of its clauses."""
    interned = dict(zip(schema.valued_names, set_values, strict=True))

    def ids(name: str, values: Iterable[str] | None) -> ValueIds:
        return tuple(sorted(interned[name].ids[value] for value in values or ()))

    def plain(rules: Rules) -> PlainRule:
        row: list[Any] = [_bitmask(schema, rules)]
        for name in (each.name for each in schema.sets):
            include, exclude = rules.get(name, NO_RULE)
            groups = tuple(sorted({ids(name, g) for g in rules.get(f"{name}_all", ())}))
            row.append((ids(name, include), ids(name, exclude), groups))
        for each in schema.intervals:
            low, high = rules.get(each.name, OPEN)
            low, high = (-inf if low is None else low), (inf if high is None else high)
            row.append((low + 0.0, high + 0.0 - isinstance(each, Flight)))
        row += (ids(each.name, rules.get(each.name)) for each in schema.properties)
        return tuple(row)

    return tuple(dict.fromkeys(map(plain, rules_of(ad))))


def _rules(schema: TargetingSchema, plain_rules: list[tuple[PlainRule, ...]]) -> TargetingRules:
    distinct = list(_first_use(chain.from_iterable(plain_rules)))
    rows = [_first_use(of_component) for of_component in zip(*distinct, strict=True)]
    makers: list[Callable[[list[Any]], Any]] = [lambda ids: NumberRows(_table(ids, schema.words))]
    makers += [_set_rules] * len(schema.sets)
    makers += [lambda rows: NumberRows(np.array(rows, np.float64))] * len(schema.intervals)
    makers += [lambda rows: ValueRows(_lists(rows))] * len(schema.properties)
    numbers = {rule: number for number, rule in enumerate(distinct)}
    several = _first_use(rules for rules in plain_rules if len(rules) > 1)
    return TargetingRules(
        np.array(
            [[ids[row] for ids, row in zip(rows, rule, strict=True)] for rule in distinct], np.int32
        ),
        tuple(make(list(ids)) for make, ids in zip(makers, rows, strict=True)),
        _lists([tuple(numbers[rule] for rule in rules) for rules in several]),
    )


def _lists(rows: Sequence[ValueIds]) -> Lists:
    return Lists(offsets_of(map(len, rows), np.int64), np.array([*chain(*rows)], np.int32))


def _set_rules(rules: list[SetRule]) -> SetRules:
    include, exclude, groups = zip(*rules, strict=True)
    return SetRules(
        _lists(include),
        _lists(exclude),
        Groups(offsets_of(map(len, groups), np.int64), _lists([*chain(*groups)])),
    )


def _sid_to_ads(
    ads: list[RawAd], leaves: list[Prefix], plain_rules: list[tuple[PlainRule, ...]]
) -> SidToAds:
    rule_ids = _first_use(chain.from_iterable(plain_rules))
    several = _first_use(rules for rules in plain_rules if len(rules) > 1)
    under = dict.fromkeys(leaves, 0)
    for ad in ads:
        under[ad.sid] += 1
    return SidToAds(
        ad_offsets=offsets_of(under.values(), np.int64),
        ad_ids=np.array([ad.ad_id for ad in ads], np.int64),
        ad_rule=np.array(
            [
                rule_ids[rules[0]] if len(rules) == 1 else len(rule_ids) + several[rules]
                for rules in plain_rules
            ],
            np.int32,
        ),
        ad_weight=np.array([ad.weight for ad in ads], np.float32),
        ad_lookup=np.array(sorted(range(len(ads)), key=lambda i: ads[i].ad_id), np.int32),
    )


def _matchers(
    schema: TargetingSchema, levels: list[list[Prefix]], ads: list[RawAd], k_way: KWay | None
) -> Matchers:
    def node_matchers(ad_rows: list[list[int]], words: int, bits: int) -> NodeMatchers:
        sid_rows = dict.fromkeys(levels[-1], 0)
        for ad, rows in zip(ads, ad_rows, strict=True):
            sid_rows[ad.sid] = reduce(or_, rows, sid_rows[ad.sid])
        return _node_matchers(levels, sid_rows, words, bits, k_way)

    ad_rows = [[_bitmask(schema, rules) for rules in rules_of(ad)] for ad in ads]
    bitmask = node_matchers(ad_rows, schema.words, schema.bitmask_bits)
    blooms = []
    for target_set in schema.sets:
        seed = schema.hash_seed
        ad_rows = [[_bloom(target_set, seed, rules) for rules in rules_of(ad)] for ad in ads]
        rows = node_matchers(ad_rows, target_set.words, target_set.bloom_bits)
        star_bits = _bits(bloom_positions(value_hash(RESERVED_VALUE, seed), target_set))
        star = [_integer(row) & star_bits == star_bits for row in rows.table]
        blooms.append(BloomMatchers(rows, np.array(star, np.uint8)))
    return Matchers(bitmask, tuple(blooms), k_way)


def _bloom(target_set: TargetSet, seed: int, rules: Rules) -> int:
    include, _ = rules.get(target_set.name, NO_RULE)
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
        offsets_of(counts, np.int32) if isinstance(k_way, DynamicKWay) else None,
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
