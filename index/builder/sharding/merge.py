"""One snapshot from several whose SIDs begin with other tokens: the arrays of a build of all.

A shard is a snapshot. Arrays are read and written in blocks; what memory holds beside them is the
new ids of the rows of one level or of the rules, and the spans that `number_spans` tells apart.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.index.builder.sharding.join_levels import (
    LevelCounts,
    MatcherSource,
    TrieSource,
    join_node_matchers,
    join_tries,
)
from grace.index.builder.sharding.join_rules import RuleSource, SetRuleSource, join_rules
from grace.index.builder.sharding.stored_arrays import OutputFolder, StoredArray, blocks
from grace.index.matchers.bloom import star_rows
from grace.index.matchers.modes import MatcherMode
from grace.index.matchers.node_matchers import BloomMatchers, Matchers
from grace.index.matching.ads import SidToAds
from grace.index.snapshot import Snapshot, SnapshotFacts
from grace.index.storage.array_file import digest_file
from grace.index.storage.layout import require_expected
from grace.index.storage.manifest import Manifest
from grace.index.storage.reader import open_snapshot
from grace.index.users.values import InternedValues

__all__ = ["StoredShard", "merge_shards", "open_shard"]

LOOKUP_ADS = 1 << 23
"""Ads whose ids are sorted at a time."""

SAMPLE_STEP = 1 << 12


@dataclass(frozen=True, slots=True)
class StoredShard:
    manifest: Manifest
    arrays: dict[str, StoredArray]  # by name, without .npy

    @property
    def counts(self) -> LevelCounts:
        return LevelCounts(self.manifest.counts.nodes_per_level)


def open_shard(root: Path) -> StoredShard:
    """The only version in `root`, its digests checked."""
    with open_snapshot(root, 1) as opened:
        entries = require_expected(opened.manifest)
        for entry in entries.values():
            digest_file(entry, opened.folder)
        arrays = {
            file.removesuffix(".npy"): StoredArray(opened.path / file, entry)
            for file, entry in entries.items()
        }
        return StoredShard(opened.manifest, arrays)


def merge_shards(
    shards: Sequence[StoredShard],
    facts: SnapshotFacts,
    scratch: Path,
    progress: Callable[[int], None],
) -> Snapshot:
    """Shards in the order of their first tokens. The arrays are maps of files in `scratch`.

    `progress` is told how many of the 2 + `matcher_kinds` steps are done.
    """
    first = shards[0].manifest
    for shard in shards[1:]:
        other = shard.manifest
        one = (first.schema, first.vocab_sizes, first.matchers.mode, first.matchers.k_way)
        if one != (other.schema, other.vocab_sizes, other.matchers.mode, other.matchers.k_way):
            raise ValueError("shards of one build share schema, vocabulary and matcher mode")
    with OutputFolder(scratch / "merged") as out:
        tries = [
            TrieSource(shard.counts, shard.arrays["node_offsets"], shard.arrays["csr_tokens"])
            for shard in shards
        ]
        trie = join_tries(tries, first.vocab_sizes, out)
        rules = join_rules([_rule_source(shard) for shard in shards], out)
        progress(1)
        ads = _join_ads(shards, rules.new_of, out)
        progress(2)
        matchers = _join_all_matchers(shards, out, progress)
    mode = MatcherMode(first.matchers.mode)
    return Snapshot(facts, first.schema, trie, mode, matchers, ads, rules.rules, rules.set_values)


def _rule_source(shard: StoredShard) -> RuleSource:
    names = shard.manifest.set_names
    arrays = shard.arrays
    rule_sets = arrays.get("rule_sets")
    no_sets = np.empty((shard.manifest.counts.rules, 0), np.int32)
    return RuleSource(
        arrays["rule_bitmask"],
        arrays["rule_bitmask_table"],
        no_sets if rule_sets is None else rule_sets,
        tuple(
            SetRuleSource(
                InternedValues(arrays[f"value_offsets.{name}"][:], arrays[f"value_utf8.{name}"][:]),
                arrays[f"set_include_offsets.{name}"],
                arrays[f"set_include_values.{name}"],
                arrays[f"set_exclude_offsets.{name}"],
                arrays[f"set_exclude_values.{name}"],
            )
            for name in names
        ),
    )


def _join_ads(
    shards: Sequence[StoredShard], new_rules: Sequence[npt.NDArray[np.int32]], out: OutputFolder
) -> SidToAds:
    offsets = out.array("ad_offsets", "<i8")
    ids, weights = out.array("ad_ids", "<i8"), out.array("ad_weight", "<f4")
    rules = out.array("ad_rule", "<i4")
    for shard, new_rule in zip(shards, new_rules, strict=True):
        arrays, base = shard.arrays, ids.rows
        leaves = shard.manifest.counts.nodes_per_level[-1]
        for block in blocks(arrays["ad_offsets"], 0, leaves):
            offsets.append(block + base)
        for block in blocks(arrays["ad_ids"]):
            ids.append(block)
        for block in blocks(arrays["ad_weight"]):
            weights.append(block)
        for block in blocks(arrays["ad_rule"]):
            rules.append(new_rule[block])
    offsets.append([ids.rows])
    lookup = _join_lookup(shards, out)
    return SidToAds(offsets.finish(), ids.finish(), rules.finish(), weights.finish(), lookup)


def _join_lookup(shards: Sequence[StoredShard], out: OutputFolder) -> npt.NDArray[Any]:
    """Ordinals by ad id: the shards' sorted ids are cut at the same ids, and each cut is sorted."""
    in_order, samples = [], []
    for s, shard in enumerate(shards):
        ids = shard.arrays["ad_ids"][:]
        sorted_ids = out.array(f"ids_in_order{s}", "<i8")
        for block in blocks(shard.arrays["ad_lookup"]):
            sorted_ids.append(ids[block])
        in_order.append(sorted_ids.finish())
        samples.append(np.array(in_order[-1][::SAMPLE_STEP]))
    sample = np.sort(np.concatenate(samples))
    step = max(1, LOOKUP_ADS // SAMPLE_STEP)
    cuts = [np.searchsorted(ids, sample[step::step]) for ids in in_order]
    borders = [[0, *cut.tolist(), len(ids)] for cut, ids in zip(cuts, in_order, strict=True)]
    bases = np.cumsum([0, *(len(ids) for ids in in_order)])
    lookup = out.array("ad_lookup", "<i4")
    for cut in range(len(borders[0]) - 1):
        ids_of_cut: list[npt.NDArray[np.int64]] = []
        ordinals = []
        for s, shard in enumerate(shards):
            rows = slice(borders[s][cut], borders[s][cut + 1])
            ids_of_cut.extend(
                np.array(block) for block in blocks(in_order[s], rows.start, rows.stop)
            )
            ordinals.append(shard.arrays["ad_lookup"][rows] + np.int32(bases[s]))
        order = np.argsort(np.concatenate(ids_of_cut))
        lookup.append(np.concatenate(ordinals)[order])
    return lookup.finish()


def _join_all_matchers(
    shards: Sequence[StoredShard], out: OutputFolder, progress: Callable[[int], None]
) -> Matchers | None:
    first = shards[0].manifest
    if first.matchers.mode == MatcherMode.CD:
        return None
    bitmask = join_node_matchers(
        [
            _matcher_source(shard, "bitmask", "", shard.manifest.matchers.bitmask_level_rows)
            for shard in shards
        ],
        "bitmask",
        out,
    )
    progress(3)
    blooms = []
    for s, target_set in enumerate(first.schema.sets):
        name = target_set.name
        rows = join_node_matchers(
            [
                _matcher_source(
                    shard, "bloom", f".{name}", shard.manifest.matchers.bloom_level_rows[name]
                )
                for shard in shards
            ],
            f"bloom{s}",
            out,
        )
        star = out.array(f"bloom_star{s}", "|u1")
        for block in blocks(rows.table):
            star.append(star_rows(block, target_set, first.schema.hash_seed))
        blooms.append(BloomMatchers(rows, star.finish()))
        progress(4 + s)
    return Matchers(bitmask, tuple(blooms), first.matchers.k_way)


def _matcher_source(
    shard: StoredShard, kind: str, suffix: str, level_rows: tuple[int, ...]
) -> MatcherSource:
    static = shard.manifest.matchers.static
    return MatcherSource(
        shard.counts,
        shard.arrays[f"{kind}_index{suffix}"],
        shard.arrays[f"{kind}_table{suffix}"],
        level_rows,
        None if static is None else static.widths,
        shard.arrays.get(f"{kind}_offsets{suffix}"),
    )
