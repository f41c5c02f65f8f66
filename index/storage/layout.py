"""Which arrays a snapshot consists of: their files, dtypes and shapes, and their way to and fro."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.configs.errors import SnapshotError
from grace.index.matchers.modes import DynamicKWay, MatcherMode, StaticKWay
from grace.index.matchers.node_matchers import BloomMatchers, Matchers, NodeMatchers
from grace.index.matching.ads import SidToAds
from grace.index.snapshot import Snapshot, SnapshotFacts
from grace.index.storage.manifest import Counts, FileEntry, Manifest, MatcherRows
from grace.index.targeting.rules import SetRules, TargetingRules
from grace.index.targeting.schema import TargetSet
from grace.index.trie import SidTrie
from grace.index.users.values import InternedValues

__all__ = [
    "arrays_of",
    "counts_of",
    "expected_arrays",
    "matcher_rows_of",
    "require_expected",
    "snapshot_of",
]

Array = npt.NDArray[Any]

ArrayShape = tuple[str, tuple[int | None, ...]]
"""A dtype and a shape; None where only the array itself knows its length."""


def expected_arrays(manifest: Manifest) -> dict[str, ArrayShape]:
    """File name -> what the counts of the manifest say that it holds."""
    counts, words, sets = manifest.counts, manifest.schema.words, manifest.schema.sets
    nodes = sum(counts.nodes_per_level)
    leaves = counts.nodes_per_level[-1]
    arrays: dict[str, ArrayShape] = {
        "node_offsets.npy": ("<i4", (nodes - leaves + 1,)),
        "csr_tokens.npy": ("<u2", (nodes - 1,)),
        "ad_offsets.npy": ("<i8", (leaves + 1,)),
        "ad_ids.npy": ("<i8", (counts.ads,)),
        "ad_rule.npy": ("<i4", (counts.ads,)),
        "ad_weight.npy": ("<f4", (counts.ads,)),
        "ad_lookup.npy": ("<i4", (counts.ads,)),
        "rule_bitmask.npy": ("<i4", (counts.rules,)),
        "rule_bitmask_table.npy": ("<u8", (counts.rule_bitmasks, words)),
    }
    if manifest.matchers.mode != MatcherMode.CD:
        rows = sum(manifest.matchers.bitmask_level_rows)
        arrays |= _expected_ids(manifest, "bitmask", "")
        arrays["bitmask_table.npy"] = ("<u8", (rows, words))
    if sets:
        arrays["rule_sets.npy"] = ("<i4", (counts.rules, len(sets)))
    for target_set in sets:
        arrays |= _expected_of_set(manifest, target_set)
    return arrays


def _expected_of_set(manifest: Manifest, target_set: TargetSet) -> dict[str, ArrayShape]:
    name, counts = target_set.name, manifest.counts
    arrays: dict[str, ArrayShape] = {
        f"set_include_offsets.{name}.npy": ("<i8", (counts.set_rules[name] + 1,)),
        f"set_include_values.{name}.npy": ("<i4", (None,)),
        f"set_exclude_offsets.{name}.npy": ("<i8", (counts.set_rules[name] + 1,)),
        f"set_exclude_values.{name}.npy": ("<i4", (None,)),
        f"value_offsets.{name}.npy": ("<i8", (counts.set_values[name] + 1,)),
        f"value_utf8.{name}.npy": ("|u1", (None,)),
    }
    if manifest.matchers.mode != MatcherMode.CD:
        rows = sum(manifest.matchers.bloom_level_rows[name])
        arrays |= _expected_ids(manifest, "bloom", f".{name}")
        arrays[f"bloom_table.{name}.npy"] = ("<u8", (rows, target_set.words))
        arrays[f"bloom_star.{name}.npy"] = ("|u1", (rows,))
    return arrays


def _expected_ids(manifest: Manifest, kind: str, suffix: str) -> dict[str, ArrayShape]:
    """One row id per child entry, or those of its partitions."""
    nodes, matchers = manifest.counts.nodes_per_level[1:], manifest.matchers
    ids: int | None = sum(nodes)
    if matchers.static is not None:
        ids = sum(n * width for n, width in zip(nodes, matchers.static.widths, strict=True))
    if matchers.dynamic is None:
        return {f"{kind}_index{suffix}.npy": ("<i4", (ids,))}
    return {
        f"{kind}_offsets{suffix}.npy": ("<i4", (sum(nodes) + 1,)),
        f"{kind}_index{suffix}.npy": ("<i4", (None,)),
    }


def require_expected(manifest: Manifest) -> dict[str, FileEntry]:
    """The manifest's entries of the expected arrays; other arrays may be listed beside them."""
    listed = {entry.file: entry for entry in manifest.files}
    expected = expected_arrays(manifest)
    for file, (dtype, shape) in expected.items():
        if file not in listed:
            raise SnapshotError(file, "not listed in the manifest")
        entry = listed[file]
        if entry.dtype != dtype:
            raise SnapshotError(file, f"dtype must be {dtype}, the manifest says {entry.dtype}")
        fits = len(shape) == len(entry.shape) and all(
            wanted in (None, size) for wanted, size in zip(shape, entry.shape, strict=True)
        )
        if not fits:
            wanted = ", ".join("any" if size is None else str(size) for size in shape)
            raise SnapshotError(
                file,
                f"shape must be [{wanted}] by the counts, the manifest says {list(entry.shape)}",
            )
    return {file: listed[file] for file in expected}


def counts_of(snapshot: Snapshot) -> Counts:
    names = [target_set.name for target_set in snapshot.schema.sets]
    rules, values = snapshot.rules, snapshot.set_values
    return Counts(
        nodes_per_level=tuple(map(int, snapshot.trie.level_counts)),
        ads=snapshot.ads.num_ads,
        rules=rules.num_rules,
        rule_bitmasks=len(rules.bitmask_table),
        set_rules={n: s.num_rules for n, s in zip(names, rules.sets, strict=True)},
        set_values={n: len(interned) for n, interned in zip(names, values, strict=True)},
    )


def matcher_rows_of(snapshot: Snapshot) -> MatcherRows:
    matchers = snapshot.matchers
    if matchers is None:
        return MatcherRows(snapshot.mode.value, (), {})
    return MatcherRows(
        snapshot.mode.value,
        tuple(map(int, matchers.bitmask.level_rows)),
        {
            target_set.name: tuple(map(int, bloom.rows.level_rows))
            for target_set, bloom in zip(snapshot.schema.sets, matchers.blooms, strict=True)
        },
        static=matchers.k_way if isinstance(matchers.k_way, StaticKWay) else None,
        dynamic=matchers.k_way if isinstance(matchers.k_way, DynamicKWay) else None,
    )


def arrays_of(snapshot: Snapshot) -> dict[str, Array]:
    """File name -> array, in the order in which they are written."""
    trie, ads, rules, matchers = snapshot.trie, snapshot.ads, snapshot.rules, snapshot.matchers
    arrays: dict[str, Array] = {
        "node_offsets": trie.node_offsets,
        "csr_tokens": trie.csr_tokens,
        "ad_offsets": ads.ad_offsets,
        "ad_ids": ads.ad_ids,
        "ad_rule": ads.ad_rule,
        "ad_weight": ads.ad_weight,
        "ad_lookup": ads.ad_lookup,
        "rule_bitmask": rules.bitmask,
        "rule_bitmask_table": rules.bitmask_table,
    }
    if matchers is not None:
        arrays |= _arrays_of_ids(matchers.bitmask, "bitmask", "")
        arrays["bitmask_table"] = matchers.bitmask.table
    if snapshot.schema.sets:
        arrays["rule_sets"] = rules.set_rules
    for i, target_set in enumerate(snapshot.schema.sets):
        arrays |= _arrays_of_set(snapshot, i, target_set.name)
    return {f"{name}.npy": array for name, array in arrays.items()}


def _arrays_of_set(snapshot: Snapshot, i: int, name: str) -> dict[str, Array]:
    rules, values = snapshot.rules.sets[i], snapshot.set_values[i]
    arrays: dict[str, Array] = {
        f"set_include_offsets.{name}": rules.include_offsets,
        f"set_include_values.{name}": rules.include_values,
        f"set_exclude_offsets.{name}": rules.exclude_offsets,
        f"set_exclude_values.{name}": rules.exclude_values,
        f"value_offsets.{name}": values.offsets,
        f"value_utf8.{name}": values.utf8,
    }
    if snapshot.matchers is not None:
        bloom = snapshot.matchers.blooms[i]
        arrays |= _arrays_of_ids(bloom.rows, "bloom", f".{name}")
        arrays[f"bloom_table.{name}"] = bloom.rows.table
        arrays[f"bloom_star.{name}"] = bloom.star
    return arrays


def _arrays_of_ids(rows: NodeMatchers, kind: str, suffix: str) -> dict[str, Array]:
    offsets = {} if rows.offsets is None else {f"{kind}_offsets{suffix}": rows.offsets}
    return {**offsets, f"{kind}_index{suffix}": rows.index}


def snapshot_of(manifest: Manifest, arrays: Mapping[str, Array]) -> Snapshot:
    """The snapshot of arrays that have the expected dtypes and shapes."""
    counts, schema = manifest.counts, manifest.schema
    no_sets = np.empty((counts.rules, 0), np.int32)
    return Snapshot(
        facts=SnapshotFacts(
            int(manifest.version),
            manifest.created_at,
            manifest.sid_space,
            manifest.rejects,
            manifest.updates_watermark,
        ),
        schema=schema,
        trie=SidTrie(
            manifest.vocab_sizes,
            counts.nodes_per_level,
            arrays["node_offsets.npy"],
            arrays["csr_tokens.npy"],
        ),
        mode=MatcherMode(manifest.matchers.mode),
        matchers=_matchers(manifest, arrays),
        ads=SidToAds(
            *(arrays[f"ad_{field}.npy"] for field in ("offsets", "ids", "rule", "weight", "lookup"))
        ),
        rules=TargetingRules(
            arrays["rule_bitmask.npy"],
            arrays["rule_bitmask_table.npy"],
            arrays.get("rule_sets.npy", no_sets),
            tuple(_set_rules(name, arrays) for name in manifest.set_names),
        ),
        set_values=tuple(
            InternedValues(arrays[f"value_offsets.{name}.npy"], arrays[f"value_utf8.{name}.npy"])
            for name in manifest.set_names
        ),
    )


def _set_rules(name: str, arrays: Mapping[str, Array]) -> SetRules:
    return SetRules(
        arrays[f"set_include_offsets.{name}.npy"],
        arrays[f"set_include_values.{name}.npy"],
        arrays[f"set_exclude_offsets.{name}.npy"],
        arrays[f"set_exclude_values.{name}.npy"],
    )


def _matchers(manifest: Manifest, arrays: Mapping[str, Array]) -> Matchers | None:
    rows = manifest.matchers
    if rows.mode == MatcherMode.CD:
        return None

    def node_matchers(kind: str, suffix: str, level_rows: tuple[int, ...]) -> NodeMatchers:
        return NodeMatchers(
            arrays[f"{kind}_index{suffix}.npy"],
            arrays[f"{kind}_table{suffix}.npy"],
            level_rows,
            None if rows.static is None else rows.static.widths,
            None if rows.dynamic is None else arrays[f"{kind}_offsets{suffix}.npy"],
        )

    blooms = (
        BloomMatchers(
            node_matchers("bloom", f".{name}", rows.bloom_level_rows[name]),
            arrays[f"bloom_star.{name}.npy"],
        )
        for name in manifest.set_names
    )
    bitmask = node_matchers("bitmask", "", rows.bitmask_level_rows)
    return Matchers(bitmask, tuple(blooms), rows.k_way)
