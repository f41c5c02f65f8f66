"""Merge the shards' snapshots into the one that a build of all ads would have written.

Arrays are read from mapped files and written in blocks. Memory holds, besides a block, the new ids
of the rules, the spans that `number_spans` compares, and the ids of one kind of entity.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.index.builder.sharding.join_rules import join_rules
from grace.index.entities import NO_ENTITY, Entities
from grace.index.matching.ads import SidToAds
from grace.index.snapshot import Snapshot, SnapshotFacts, require_ids
from grace.index.storage.array_file import blocks, blocks_of_all, map_blocks, read_rows
from grace.index.trie import SidTrie

ADS_AT_ONCE = 1 << 23
"""Ads whose ids or entities are sorted at a time."""

SAMPLE_STEP = 1 << 12

Array = npt.NDArray[Any]


def merge_shards(shards: Sequence[Snapshot], facts: SnapshotFacts, folder: Path) -> Snapshot:
    """Merge shards given in the order of their first tokens, into maps of files in a new folder."""
    if len(shards) == 1:
        return replace(shards[0], facts=facts)
    strings = [[values.strings for values in shard.set_values] for shard in shards]
    rules = [shard.rules for shard in shards]
    folder.mkdir()
    joined = join_rules(list(zip(rules, strings, strict=True)), folder / "rules")
    return Snapshot(
        facts,
        shards[0].schema,
        _join_tries([shard.trie for shard in shards], folder),
        _join_ads([shard.ads for shard in shards], joined.new_of, folder),
        joined.rules,
        joined.set_values,
        tuple(
            _join_entities(of_shards, f"{folder}/entity{number}")
            for number, of_shards in enumerate(zip(*(s.entities for s in shards), strict=True))
        ),
    )


def _join_tries(tries: Sequence[SidTrie], folder: Path) -> SidTrie:
    """Join the shards' tries. Nodes are numbered level by level in prefix order.

    So a level of the result is that level of each shard, one after another. The shards share only
    the root.
    """
    length = tries[0].sid_length
    below = [sum(trie.level_counts[level] for trie in tries) for level in range(1, length + 1)]
    starts = np.cumsum([0, 1, *below]).tolist()
    require_ids(starts[-1], "trie nodes")

    def offsets() -> Iterator[npt.ArrayLike]:
        yield [0]
        for level in range(1, length):
            next_child = starts[level + 1]  # the first child of this level's nodes in the next trie
            for trie in tries:
                first, after, *_ = trie.level_starts[level:]
                moved = np.int32(next_child - after)
                yield from (block + moved for block in blocks(trie.node_offsets, first, after))
                next_child += trie.level_counts[level + 1]
        yield [starts[-1] - 1]

    tokens = (
        block
        for level in range(1, length + 1)
        for trie in tries
        for block in blocks(trie.csr_tokens, *trie.entries_of_level(level))
    )
    node_offsets = map_blocks(folder / "node_offsets", "<i4", offsets())
    csr_tokens = map_blocks(folder / "csr_tokens", "<u2", tokens)
    return SidTrie(tries[0].vocab_sizes, (1, *below), node_offsets, csr_tokens)


def _join_ads(
    shards: Sequence[SidToAds], new_rules: Sequence[npt.NDArray[np.int32]], folder: Path
) -> SidToAds:
    bases = np.cumsum([0, *(ads.num_ads for ads in shards)])

    def offsets() -> Iterator[npt.ArrayLike]:
        for ads, base in zip(shards, bases, strict=False):
            yield from (
                block + base for block in blocks(ads.ad_offsets, 0, len(ads.ad_offsets) - 1)
            )
        yield bases[-1:]

    rules = (
        new_rule[block]
        for ads, new_rule in zip(shards, new_rules, strict=True)
        for block in blocks(ads.ad_rule)
    )
    ids = blocks_of_all([ads.ad_ids for ads in shards])
    weights = blocks_of_all([ads.ad_weight for ads in shards])
    return SidToAds(
        map_blocks(folder / "ad_offsets", "<i8", offsets()),
        map_blocks(folder / "ad_ids", "<i8", ids),
        map_blocks(folder / "ad_rule", "<i4", rules),
        map_blocks(folder / "ad_weight", "<f4", weights),
        map_blocks(folder / "ad_lookup", "<i4", _lookup(shards, folder, bases.astype(np.int32))),
    )


def _lookup(
    shards: Sequence[SidToAds], folder: Path, bases: npt.NDArray[np.int32]
) -> Iterator[Array]:
    """Yield ordinals by ad id: sorted ids are cut at the same ids, and each cut is sorted."""
    in_order = []
    for s, ads in enumerate(shards):
        ids = np.array(ads.ad_ids)  # random access to a map would read its pages again and again
        ids_in_order = (ids[block] for block in blocks(ads.ad_lookup))
        in_order.append(map_blocks(folder / f"ids_in_order{s}", "<i8", ids_in_order))
    sample = np.sort(np.concatenate([ids[::SAMPLE_STEP] for ids in in_order]))
    cuts = sample[:: max(1, ADS_AT_ONCE // SAMPLE_STEP)][1:]
    borders = [[0, *np.searchsorted(ids, cuts).tolist(), len(ids)] for ids in in_order]
    for begins, ends in pairwise(zip(*borders, strict=True)):
        spans = list(zip(begins, ends, strict=True))
        ids = np.concatenate(
            [read_rows(ids, *span) for ids, span in zip(in_order, spans, strict=True)]
        )
        ordinals = [
            read_rows(ads.ad_lookup, *span) + base
            for ads, span, base in zip(shards, spans, bases, strict=False)
        ]
        yield np.concatenate(ordinals)[np.argsort(ids)]


def _join_entities(shards: Sequence[Entities], path: str) -> Entities:
    """Join entities of one kind: each once, in ascending order of id, with all of its ads."""
    ids = np.unique(np.concatenate([shard.ids for shard in shards]))
    new_of = [np.searchsorted(ids, shard.ids).astype(np.int32) for shard in shards]
    offsets = np.zeros(len(ids) + 1, np.int64)
    for shard, new in zip(shards, new_of, strict=True):
        offsets[new + 1] += np.diff(shard.offsets)
    np.cumsum(offsets, out=offsets)
    of_ad = (
        np.append(new, np.int32(NO_ENTITY))[block]  # the last one is for NO_ENTITY, -1
        for shard, new in zip(shards, new_of, strict=True)
        for block in blocks(shard.of_ad)
    )
    ads = _ads_by_entity(shards, new_of, offsets)
    return Entities(
        shards[0].name,
        ids,
        map_blocks(Path(f"{path}_of_ad"), "<i4", of_ad),
        offsets,
        map_blocks(Path(f"{path}_ads"), "<i4", ads),
    )


def _ads_by_entity(
    shards: Sequence[Entities],
    new_of: Sequence[npt.NDArray[np.int32]],
    offsets: npt.NDArray[np.int64],
) -> Iterator[Array]:
    """Yield the ads by entity, and within one from shard to shard, where they ascend."""
    bases = np.cumsum([0, *(len(shard.of_ad) for shard in shards)]).astype(np.int32)
    begin = 0
    while begin < len(offsets) - 1:
        # At most ADS_AT_ONCE ads, or a single entity of any size.
        end = int(np.searchsorted(offsets, offsets[begin] + ADS_AT_ONCE, side="right")) - 1
        end = max(end, begin + 1)
        owners: list[Array] = []
        ads: list[Array] = []
        for shard, new, base in zip(shards, new_of, bases, strict=False):
            first, last = np.searchsorted(new, (begin, end)).tolist()
            borders = shard.offsets[first : last + 1]
            span = borders[[0, -1]].tolist()
            of_shard = (block + base for block in blocks(shard.ads, *span))
            if end == begin + 1:
                yield from of_shard
                continue
            owners.append(np.repeat(new[first:last], np.diff(borders)))
            ads += of_shard
        if owners:
            yield np.concatenate(ads)[np.argsort(np.concatenate(owners), kind="stable")]
        begin = end
