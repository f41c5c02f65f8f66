"""Merge the shards' snapshots into the one that a build of all ads would have written.

Memory holds that snapshot, as the server that loads it does. The shards are maps of their files.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np

from grace.configs.arrays import Int32
from grace.index.builder.arrange import ids_of_ads
from grace.index.builder.rule_table import RuleTable
from grace.index.builder.sorting import group_by_entity, order_by_id
from grace.index.matching.ads import SidToAds
from grace.index.snapshot import Snapshot, SnapshotFacts, require_ids
from grace.index.targeting.rules import TargetingRules, with_ids
from grace.index.targeting.schema import TargetingSchema
from grace.index.trie import SidTrie
from grace.index.users.values import InternedValues

RuleSource = tuple[TargetingRules, Sequence[Sequence[str]]]
"""The rules of one shard or run, and for each set its strings by value id, in UTF-8 order."""


def merge_shards(shards: Sequence[Snapshot], facts: SnapshotFacts, threads: int) -> Snapshot:
    """Merge shards given in the order of their first tokens."""
    if len(shards) == 1:
        return replace(shards[0], facts=facts)
    strings = [[values.strings for values in shard.set_values] for shard in shards]
    sources = list(zip([shard.rules for shard in shards], strings, strict=True))
    rules, set_values, new_of = join_rules(sources, shards[0].schema, threads)
    all_ads = [shard.ads for shard in shards]
    bases = np.cumsum([0, *(ads.num_ads for ads in all_ads)])
    offsets = [ads.ad_offsets[:-1] + base for ads, base in zip(all_ads, bases, strict=False)]
    rule_of = [new[ads.ad_rule] for ads, new in zip(all_ads, new_of, strict=True)]
    ad_rule = np.concatenate(rule_of)
    require_ids(rules.count_of(ad_rule), "rules of ads")
    ad_ids = np.concatenate([ads.ad_ids for ads in all_ads])
    entities = [list(of_kind) for of_kind in zip(*(s.entities for s in shards), strict=True)]
    return Snapshot(
        facts,
        shards[0].schema,
        _join_tries([shard.trie for shard in shards]),
        SidToAds(
            np.concatenate([*offsets, bases[-1:]]),
            ad_ids,
            ad_rule,
            np.concatenate([ads.ad_weight for ads in all_ads]),
            order_by_id(ad_ids, threads),
        ),
        rules,
        set_values,
        tuple(
            group_by_entity(of_kind[0].name, np.concatenate([*map(ids_of_ads, of_kind)]), threads)
            for of_kind in entities
        ),
    )


def _join_tries(tries: Sequence[SidTrie]) -> SidTrie:
    """Join the shards' tries. Nodes are numbered level by level in prefix order.

    So a level of the result is that level of each shard, one after another. The shards share only
    the root.
    """
    length = tries[0].sid_length
    below = [sum(trie.level_counts[level] for trie in tries) for level in range(1, length + 1)]
    starts = np.cumsum([0, 1, *below]).tolist()
    require_ids(starts[-1], "trie nodes")
    offsets, tokens = [np.zeros(1, np.int32)], []
    for level in range(1, length + 1):
        next_child = starts[level + 1]  # the first child of this level's nodes in the next trie
        for trie in tries:
            begin, end = trie.entries_of_level(level)
            tokens.append(trie.csr_tokens[begin:end])
            if level < length:
                first, after, *_ = trie.level_starts[level:]
                offsets.append(trie.node_offsets[first:after] + np.int32(next_child - after))
                next_child += trie.level_counts[level + 1]
    offsets.append(np.array([starts[-1] - 1], np.int32))
    counts = (1, *below)
    return SidTrie(tries[0].vocab_sizes, counts, np.concatenate(offsets), np.concatenate(tokens))


def join_rules(
    tables: Sequence[RuleSource], schema: TargetingSchema, threads: int
) -> tuple[TargetingRules, tuple[InternedValues, ...], list[Int32]]:
    """Join the rules of several shards or runs: each rule and row once, by the ids of all values.

    Return them, the values, and the new numbers of each table's rules and alternatives.
    If every table is numbered by first use and they follow each other in the order of their ads,
    the joined ids are by first use over all ads: what a later table repeats has its id already.
    """
    of_sets = zip(*(strings for _, strings in tables), strict=True)
    joined = tuple(InternedValues.of(set().union(*of_set)) for of_set in of_sets)
    new_of = []
    with closing(RuleTable(schema, threads)) as table:
        for rules, strings in tables:
            numbers, faults = table.add_again(_by_ids_of(joined, rules, strings))
            assert not faults.any()
            new_of.append(numbers)
        taken, numbers = table.take(np.concatenate(new_of))
    return taken, joined, np.split(numbers, np.cumsum([*map(len, new_of)])[:-1])


def _by_ids_of(
    joined: Sequence[InternedValues], rules: TargetingRules, strings: Sequence[Sequence[str]]
) -> TargetingRules:
    """Return the rules with the joined ids of their values, which keep their order."""
    of_parts = iter(zip(joined, strings, strict=True))
    parts = []
    for part in rules.parts:
        if part.has_values:
            values, own = next(of_parts)
            ids = np.array([values.ids[value] for value in own], np.int32)
            part = type(part)(*(with_ids(column, ids) for column in part.columns))
        parts.append(part)
    return replace(rules, parts=tuple(parts))
