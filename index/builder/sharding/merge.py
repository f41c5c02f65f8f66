"""Merge the shards' snapshots into the one that a build of all ads would have written.

Memory holds that snapshot, as the server that loads it does. The shards are maps of their files.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from grace.index.builder.arrange import ids_of_ads
from grace.index.builder.sharding.join_rules import join_rules
from grace.index.builder.sorting import group_by_entity, order_by_id
from grace.index.matching.ads import SidToAds
from grace.index.snapshot import Snapshot, SnapshotFacts, require_ids
from grace.index.trie import SidTrie


def merge_shards(shards: Sequence[Snapshot], facts: SnapshotFacts, threads: int) -> Snapshot:
    """Merge shards given in the order of their first tokens."""
    if len(shards) == 1:
        return replace(shards[0], facts=facts)
    strings = [[values.strings for values in shard.set_values] for shard in shards]
    joined = join_rules(list(zip([shard.rules for shard in shards], strings, strict=True)))
    all_ads = [shard.ads for shard in shards]
    bases = np.cumsum([0, *(ads.num_ads for ads in all_ads)])
    offsets = [ads.ad_offsets[:-1] + base for ads, base in zip(all_ads, bases, strict=False)]
    rules = [new[ads.ad_rule] for ads, new in zip(all_ads, joined.new_of, strict=True)]
    ad_ids = np.concatenate([ads.ad_ids for ads in all_ads])
    entities = [list(of_kind) for of_kind in zip(*(s.entities for s in shards), strict=True)]
    return Snapshot(
        facts,
        shards[0].schema,
        _join_tries([shard.trie for shard in shards]),
        SidToAds(
            np.concatenate([*offsets, bases[-1:]]),
            ad_ids,
            np.concatenate(rules),
            np.concatenate([ads.ad_weight for ads in all_ads]),
            order_by_id(ad_ids, threads),
        ),
        joined.rules,
        joined.set_values,
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
