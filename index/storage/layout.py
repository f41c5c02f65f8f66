"""Which arrays a snapshot consists of: their files, dtypes and shapes, and how they are read."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.configs.errors import SnapshotError
from grace.index.entities import Entities
from grace.index.matchers.exact_lists import ExactLists, Postings
from grace.index.matchers.modes import MATCHERLESS_MODES, DynamicKWay, MatcherMode, StaticKWay
from grace.index.matchers.node_matchers import BloomMatchers, Matchers, NodeMatchers
from grace.index.matching.ads import SidToAds
from grace.index.snapshot import Snapshot, SnapshotFacts
from grace.index.storage.manifest import Counts, FileEntry, Manifest, MatcherRows
from grace.index.targeting.rules import SetRules, TargetingRules
from grace.index.trie import SidTrie
from grace.index.users.values import InternedValues

Array = npt.NDArray[Any]

ArrayShape = tuple[str, tuple[int | None, ...]]
"""A dtype and a shape; None where only the array itself knows its length."""


def expected_arrays(manifest: Manifest) -> dict[str, ArrayShape]:
    """File name -> what the manifest's counts say that the file holds, in the order of writing."""
    counts, matchers, words = manifest.counts, manifest.matchers, manifest.schema.words
    nodes, leaves = sum(counts.nodes_per_level), counts.nodes_per_level[-1]
    has_matchers = matchers.mode not in MATCHERLESS_MODES
    is_exact = matchers.mode == MatcherMode.EXACT
    arrays: dict[str, ArrayShape] = {
        "node_offsets": ("<i4", (nodes - leaves + 1,)),
        "csr_tokens": ("<u2", (nodes - 1,)),
        "ad_offsets": ("<i8", (leaves + 1,)),
        "ad_ids": ("<i8", (counts.ads,)),
        "ad_rule": ("<i4", (counts.ads,)),
        "ad_weight": ("<f4", (counts.ads,)),
        "ad_lookup": ("<i4", (counts.ads,)),
        "rule_bitmask": ("<i4", (counts.rules,)),
        "rule_bitmask_table": ("<u8", (counts.rule_bitmasks, words)),
    }
    if has_matchers:
        rows = sum(matchers.bitmask_level_rows)
        arrays |= _expected_matchers(manifest, "bitmask", "", rows, words)
    if is_exact:
        arrays["leaf_rule_offsets"] = ("<i4", (leaves + 1,))
        arrays["leaf_rules"] = ("<i4", (None,))
    if manifest.schema.sets:
        arrays["rule_sets"] = ("<i4", (counts.rules, len(manifest.schema.sets)))
    for target_set in manifest.schema.sets:
        name = target_set.name
        for kind in ("include", "exclude"):
            arrays[f"set_{kind}_offsets.{name}"] = ("<i8", (counts.set_rules[name] + 1,))
            arrays[f"set_{kind}_values.{name}"] = ("<i4", (None,))
        arrays[f"value_offsets.{name}"] = ("<i8", (counts.set_values[name] + 1,))
        arrays[f"value_utf8.{name}"] = ("|u1", (None,))
        if has_matchers:
            rows = sum(matchers.bloom_level_rows[name])
            arrays |= _expected_matchers(manifest, "bloom", f".{name}", rows, target_set.words)
            arrays[f"bloom_star.{name}"] = ("|u1", (rows,))
        if is_exact:
            for kind in ("include", "exclude"):
                offsets = ("<i8", (counts.set_values[name] + 1,))
                arrays[f"{kind}_posting_offsets.{name}"] = offsets
                arrays[f"{kind}_postings.{name}"] = ("<i4", (None,))
    for name in manifest.schema.entities:
        entities = counts.entities[name]
        arrays[f"entity_ids.{name}"] = ("<i8", (entities,))
        arrays[f"entity_of_ad.{name}"] = ("<i4", (counts.ads,))
        arrays[f"entity_offsets.{name}"] = ("<i8", (entities + 1,))
        arrays[f"entity_ads.{name}"] = ("<i4", (None,))
    return {f"{name}.npy": shape for name, shape in arrays.items()}


def _expected_matchers(
    manifest: Manifest, kind: str, suffix: str, rows: int, words: int
) -> dict[str, ArrayShape]:
    """One row id per child entry, or those of its partitions; and the rows."""
    nodes, matchers = manifest.counts.nodes_per_level[1:], manifest.matchers
    arrays: dict[str, ArrayShape] = {}
    ids: int | None = sum(nodes)
    if matchers.static is not None:
        ids = sum(n * width for n, width in zip(nodes, matchers.static.widths, strict=True))
    if matchers.dynamic is not None:
        arrays[f"{kind}_offsets{suffix}"] = ("<i4", (sum(nodes) + 1,))
        ids = None
    arrays[f"{kind}_index{suffix}"] = ("<i4", (ids,))
    arrays[f"{kind}_table{suffix}"] = ("<u8", (rows, words))
    return arrays


def require_expected(manifest: Manifest) -> dict[str, FileEntry]:
    """Return the manifest's entries, which must be those of the expected arrays."""
    listed = {entry.file: entry for entry in manifest.files}
    expected = expected_arrays(manifest)
    for file in listed:
        if file not in expected:
            raise SnapshotError(
                file,
                "an array that this GRACE does not know, from a newer GRACE or from elsewhere: "
                "upgrade, or build the snapshot again",
            )
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
        entities={entities.name: len(entities) for entities in snapshot.entities},
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
    return {f"{name}.npy": array for name, array in _arrays(snapshot) if array is not None}


def _arrays(snapshot: Snapshot) -> Iterator[tuple[str, Array | None]]:
    trie, ads, rules = snapshot.trie, snapshot.ads, snapshot.rules
    matchers, exact = snapshot.matchers, snapshot.exact
    yield from (("node_offsets", trie.node_offsets), ("csr_tokens", trie.csr_tokens))
    yield from ((field, getattr(ads, field)) for field in _AD_FIELDS)
    yield from (("rule_bitmask", rules.bitmask), ("rule_bitmask_table", rules.bitmask_table))
    if matchers is not None:
        yield from _matcher_arrays(matchers.bitmask, "bitmask", "")
    if exact is not None:
        yield from (("leaf_rule_offsets", exact.leaf_offsets), ("leaf_rules", exact.leaf_rules))
    yield "rule_sets", rules.set_rules if rules.sets else None
    for s, target_set in enumerate(snapshot.schema.sets):
        name, of_set, values = target_set.name, rules.sets[s], snapshot.set_values[s]
        yield from ((f"set_{field}.{name}", getattr(of_set, field)) for field in _SET_FIELDS)
        yield from ((f"value_offsets.{name}", values.offsets), (f"value_utf8.{name}", values.utf8))
        if matchers is not None:
            yield from _matcher_arrays(matchers.blooms[s].rows, "bloom", f".{name}")
            yield f"bloom_star.{name}", matchers.blooms[s].star
        if exact is not None:
            yield from (
                (f"{file}.{name}", getattr(exact.postings[s], field))
                for field, file in _POSTING_FILES.items()
            )
    for kind in snapshot.entities:
        yield from (
            (f"entity_{field}.{kind.name}", getattr(kind, field)) for field in _ENTITY_FIELDS
        )


_AD_FIELDS = ("ad_offsets", "ad_ids", "ad_rule", "ad_weight", "ad_lookup")
_SET_FIELDS = ("include_offsets", "include_values", "exclude_offsets", "exclude_values")
_POSTING_FILES = {
    "include_offsets": "include_posting_offsets",
    "include_rules": "include_postings",
    "exclude_offsets": "exclude_posting_offsets",
    "exclude_rules": "exclude_postings",
}
_ENTITY_FIELDS = ("ids", "of_ad", "offsets", "ads")


def _matcher_arrays(
    rows: NodeMatchers, kind: str, suffix: str
) -> Iterator[tuple[str, Array | None]]:
    yield f"{kind}_offsets{suffix}", rows.offsets
    yield f"{kind}_index{suffix}", rows.index
    yield f"{kind}_table{suffix}", rows.table


def snapshot_of(manifest: Manifest, files: Mapping[str, Array]) -> Snapshot:
    """Return the snapshot of arrays that have the expected dtypes and shapes."""
    arrays = {file.removesuffix(".npy"): array for file, array in files.items()}
    no_sets = np.empty((manifest.counts.rules, 0), np.int32)
    sets = manifest.set_names
    return Snapshot(
        facts=SnapshotFacts(
            int(manifest.version),
            manifest.created_at,
            manifest.sid_space,
            manifest.rejects,
            manifest.updates_watermark,
        ),
        schema=manifest.schema,
        trie=SidTrie(
            manifest.vocab_sizes,
            manifest.counts.nodes_per_level,
            arrays["node_offsets"],
            arrays["csr_tokens"],
        ),
        mode=MatcherMode(manifest.matchers.mode),
        matchers=_matchers(manifest, arrays),
        ads=SidToAds(*(arrays[field] for field in _AD_FIELDS)),
        rules=TargetingRules(
            arrays["rule_bitmask"],
            arrays["rule_bitmask_table"],
            arrays.get("rule_sets", no_sets),
            tuple(SetRules(*(arrays[f"set_{f}.{n}"] for f in _SET_FIELDS)) for n in sets),
        ),
        set_values=tuple(
            InternedValues(arrays[f"value_offsets.{n}"], arrays[f"value_utf8.{n}"]) for n in sets
        ),
        entities=tuple(
            Entities(n, *(arrays[f"entity_{f}.{n}"] for f in _ENTITY_FIELDS))
            for n in manifest.schema.entities
        ),
        exact=_exact_lists(manifest, arrays),
    )


def _exact_lists(manifest: Manifest, arrays: Mapping[str, Array]) -> ExactLists | None:
    if manifest.matchers.mode != MatcherMode.EXACT:
        return None
    postings = (
        Postings(*(arrays[f"{file}.{name}"] for file in _POSTING_FILES.values()))
        for name in manifest.set_names
    )
    return ExactLists(
        arrays["leaf_rule_offsets"],
        arrays["leaf_rules"],
        tuple(postings),
        manifest.counts.rules,
    )


def _matchers(manifest: Manifest, arrays: Mapping[str, Array]) -> Matchers | None:
    rows = manifest.matchers
    if rows.mode in MATCHERLESS_MODES:
        return None

    def node_matchers(kind: str, suffix: str, level_rows: tuple[int, ...]) -> NodeMatchers:
        return NodeMatchers(
            arrays[f"{kind}_index{suffix}"],
            arrays[f"{kind}_table{suffix}"],
            level_rows,
            None if rows.static is None else rows.static.widths,
            arrays.get(f"{kind}_offsets{suffix}"),
        )

    blooms = (
        BloomMatchers(
            node_matchers("bloom", f".{name}", rows.bloom_level_rows[name]),
            arrays[f"bloom_star.{name}"],
        )
        for name in manifest.set_names
    )
    bitmask = node_matchers("bitmask", "", rows.bitmask_level_rows)
    return Matchers(bitmask, tuple(blooms), rows.k_way)
