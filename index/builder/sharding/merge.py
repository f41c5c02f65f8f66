"""Merge the shards' snapshots into the one that a build of all ads would have written.

Arrays are read from mapped files and written in blocks. Memory holds, besides a block, the new ids
of the rules, the spans that `number_spans` compares, and the ids of one kind of entity.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.index.builder.sharding.join_entities import join_entities
from grace.index.builder.sharding.join_rules import join_rules
from grace.index.builder.sharding.output_folder import OutputFolder
from grace.index.matching.ads import SidToAds
from grace.index.progress import Advance
from grace.index.snapshot import Snapshot, SnapshotFacts, require_ids
from grace.index.storage.array_file import blocks, read_rows
from grace.index.trie import SidTrie

LOOKUP_ADS = 1 << 23
"""Ads whose ids are sorted at a time."""

SAMPLE_STEP = 1 << 12


def merge_shards(
    shards: Sequence[Snapshot], facts: SnapshotFacts, scratch: Path, advance: Advance
) -> Snapshot:
    """Merge shards given in the order of their first tokens, into maps of files in `scratch`.

    `advance` is called with how many of the two steps are done.
    """
    first = shards[0]
    if any(_kind(shard) != _kind(first) for shard in shards):
        raise ValueError("shards of one build share schema and vocabulary")
    with OutputFolder(scratch / "merged") as out:
        trie = _join_tries([shard.trie for shard in shards], out)
        strings = [[values.strings for values in shard.set_values] for shard in shards]
        rules = [shard.rules for shard in shards]
        joined = join_rules(list(zip(rules, strings, strict=True)), out)
        advance(1)
        ads = _join_ads([shard.ads for shard in shards], joined.new_of, out)
        entities = join_entities([shard.entities for shard in shards], out)
        advance(2)
    return Snapshot(facts, first.schema, trie, ads, joined.rules, joined.set_values, entities)


def _kind(shard: Snapshot) -> tuple[object, ...]:
    return shard.schema, shard.trie.vocab_sizes


def _join_tries(tries: Sequence[SidTrie], out: OutputFolder) -> SidTrie:
    """Join the shards' tries. Nodes are numbered level by level in prefix order.

    So a level of the result is that level of each shard, one after another. The shards share only
    the root.
    """
    length = tries[0].sid_length
    below = [sum(trie.level_counts[level] for trie in tries) for level in range(1, length + 1)]
    starts = np.cumsum([0, 1, *below]).tolist()
    require_ids(starts[-1], "trie nodes")
    tokens, offsets = out.array("csr_tokens", "<u2"), out.array("node_offsets", "<i4")
    offsets.append([0])
    for level in range(1, length + 1):
        for trie in tries:
            for block in blocks(trie.csr_tokens, *trie.entries_of_level(level)):
                tokens.append(block)
    for level in range(1, length):
        next_child = starts[level + 1]  # the first child of this level's nodes in the next trie
        for trie in tries:
            moved = np.int32(next_child - trie.level_starts[level + 1])
            level_nodes = trie.level_starts[level], trie.level_starts[level + 1]
            for block in blocks(trie.node_offsets, *level_nodes):
                offsets.append(block + moved)
            next_child += trie.level_counts[level + 1]
    offsets.append([starts[-1] - 1])
    trie = SidTrie(tries[0].vocab_sizes, (1, *below), offsets.finish(), tokens.finish())
    first_tokens = trie.csr_tokens[: below[0]]
    if not (first_tokens[1:] > first_tokens[:-1]).all():
        raise ValueError("the first tokens of the shards must ascend from shard to shard")
    return trie


def _join_ads(
    shards: Sequence[SidToAds], new_rules: Sequence[npt.NDArray[np.int32]], out: OutputFolder
) -> SidToAds:
    offsets, rules = out.array("ad_offsets", "<i8"), out.array("ad_rule", "<i4")
    ids, weights = out.array("ad_ids", "<i8"), out.array("ad_weight", "<f4")
    for ads, new_rule in zip(shards, new_rules, strict=True):
        base = ids.rows
        for block in blocks(ads.ad_offsets, 0, len(ads.ad_offsets) - 1):
            offsets.append(block + base)
        for block in blocks(ads.ad_ids):
            ids.append(block)
        for block in blocks(ads.ad_weight):
            weights.append(block)
        for block in blocks(ads.ad_rule):
            rules.append(new_rule[block])
    offsets.append([ids.rows])
    lookup = _join_lookup(shards, out)
    return SidToAds(offsets.finish(), ids.finish(), rules.finish(), weights.finish(), lookup)


def _join_lookup(shards: Sequence[SidToAds], out: OutputFolder) -> npt.NDArray[Any]:
    """Ordinals by ad id: the shards' sorted ids are cut at the same ids, and each cut is sorted."""
    in_order = [_ids_in_order(ads, out, s) for s, ads in enumerate(shards)]
    sample = np.sort(np.concatenate([ids[::SAMPLE_STEP] for ids in in_order]))
    step = max(1, LOOKUP_ADS // SAMPLE_STEP)
    borders = [[0, *np.searchsorted(ids, sample[step::step]), len(ids)] for ids in in_order]
    bases = np.cumsum([0, *map(len, in_order)], dtype=np.int64).astype(np.int32)
    lookup = out.array("ad_lookup", "<i4")
    for cut in range(len(borders[0]) - 1):
        ids, ordinals = [], []
        for s, ads in enumerate(shards):
            begin, end = int(borders[s][cut]), int(borders[s][cut + 1])
            ids.append(read_rows(in_order[s], begin, end))
            ordinals.append(read_rows(ads.ad_lookup, begin, end) + bases[s])
        order = np.argsort(np.concatenate(ids))
        lookup.append(np.concatenate(ordinals)[order])
    return lookup.finish()


def _ids_in_order(ads: SidToAds, out: OutputFolder, shard: int) -> npt.NDArray[np.int64]:
    in_order = out.array(f"ids_in_order{shard}", "<i8")
    ids = np.array(ads.ad_ids)  # random access to a map would read its pages again and again
    for block in blocks(ads.ad_lookup):
        in_order.append(ids[block])
    return in_order.finish()
