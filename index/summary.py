"""The paper's index summary of any snapshot: counts, storage and deduplication, fill rates."""

from dataclasses import dataclass

import numpy as np

from grace.index.codebook.report import percentiles
from grace.index.coverage import Coverage, coverage
from grace.index.matchers.exact_lists import ExactLists
from grace.index.matchers.node_matchers import NodeMatchers
from grace.index.matching.ads import Entities
from grace.index.snapshot import Snapshot, bytes_of
from grace.index.storage.arrays import counts_of
from grace.index.targeting.schema import TargetingSchema
from grace.index.trie import SidTrie

_BLOCK = 1 << 22


@dataclass(frozen=True, slots=True)
class LevelSummary:
    """One decode position: the child entries that lead from prefixes of length `position`."""

    position: int
    entries: int
    mean_fan_out: float
    max_fan_out: int


@dataclass(frozen=True, slots=True)
class MatcherSummary:
    """One matcher kind at one decode position. `fill` averages over partitions, not distinct rows,
    and over the empty ones of static k-way too."""

    kind: str  # "bitmask", or the set's name
    position: int
    partitions: int  # in mode `union` one per entry
    rows: int  # distinct
    bytes_before: int  # one row per partition
    bytes_after: int
    id_bytes: int  # the ids that give an entry its rows
    fill: float


@dataclass(frozen=True, slots=True)
class EntitySummary:
    name: str
    distinct: int
    ads_per_entity: dict[str, int]  # p50, p99, max; all 0 if there is no entity
    ads_without: int


@dataclass(frozen=True, slots=True)
class PostingSummary:
    """The posting lists of one set or property: a list per value, for a set of excludes, too."""

    name: str
    values: int
    include_entries: int
    exclude_entries: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ExactSummary:
    """What mode `exact` has in place of matchers."""

    rules_per_sid: dict[str, int]  # distinct: p50, p90, p99, max
    leaf_rules: int  # pairs of SID and distinct rule
    leaf_rule_bytes: int
    postings: tuple[PostingSummary, ...]


@dataclass(frozen=True, slots=True)
class IndexSummary:
    version: int
    created_at: str
    sid_space: str
    mode: str
    k_way: str  # the numbers of a k-way mode, as `--eligibility` has them
    vocab_sizes: tuple[int, ...]
    sids: int
    ads: int
    ads_per_sid: dict[str, int]  # p50, p90, p99, max
    rejects: int
    coverage: Coverage
    updates_watermark: int
    levels: tuple[LevelSummary, ...]
    matcher_words: dict[str, int]
    matchers: tuple[MatcherSummary, ...]
    exact: ExactSummary | None  # in mode `exact`
    rules: int
    rule_bitmask_rows: int
    alternatives: int
    rule_rows: dict[str, int]
    groups: dict[str, int]
    values: dict[str, int]
    entities: tuple[EntitySummary, ...]
    bytes: dict[str, int]  # by what reads them


def summarize(snapshot: Snapshot) -> IndexSummary:
    facts, schema, trie = snapshot.facts, snapshot.schema, snapshot.trie
    counts = counts_of(snapshot)
    return IndexSummary(
        version=facts.version,
        created_at=facts.created_at,
        sid_space=facts.sid_space,
        mode=snapshot.mode.value,
        k_way=str((snapshot.matchers and snapshot.matchers.k_way) or ""),
        vocab_sizes=trie.vocab_sizes,
        sids=trie.num_leaves,
        ads=counts.ads,
        ads_per_sid=percentiles(np.diff(snapshot.ads.ad_offsets), 50, 90, 99),
        rejects=facts.rejects,
        coverage=coverage(snapshot),
        updates_watermark=facts.updates_watermark,
        levels=tuple(_level(trie, position) for position in range(trie.sid_length)),
        matcher_words={"bitmask": schema.words} | {s.name: s.words for s in schema.sets},
        matchers=_matchers(snapshot),
        exact=None if snapshot.exact is None else _exact(snapshot.schema, snapshot.exact),
        rules=counts.rules,
        rule_bitmask_rows=counts.rule_bitmasks,
        alternatives=counts.alternatives,
        rule_rows=counts.rule_rows,
        groups=counts.groups,
        values=counts.values,
        entities=tuple(_entities(entities, counts.ads) for entities in snapshot.entities),
        bytes={
            reader: sum(bytes_of(getattr(snapshot, part)) for part in parts)
            for reader, parts in _READ.items()
        },
    )


def _entities(entities: Entities, ads: int) -> EntitySummary:
    counts = np.diff(entities.offsets) if len(entities) else np.zeros(1, np.int64)
    per_entity = percentiles(counts, 50, 99)
    return EntitySummary(entities.name, len(entities), per_entity, ads - len(entities.ads))


def _level(trie: SidTrie, position: int) -> LevelSummary:
    begin, end = trie.level_starts[position], trie.level_starts[position + 1]
    fan_out = np.diff(trie.node_offsets[begin : end + 1])
    return LevelSummary(position, int(fan_out.sum()), float(fan_out.mean()), int(fan_out.max()))


def _exact(schema: TargetingSchema, lists: ExactLists) -> ExactSummary:
    return ExactSummary(
        rules_per_sid=percentiles(np.diff(lists.leaf_offsets), 50, 90, 99),
        leaf_rules=len(lists.leaf_rules),
        leaf_rule_bytes=lists.leaf_offsets.nbytes + lists.leaf_rules.nbytes,
        postings=tuple(
            PostingSummary(
                name=name,
                values=len(include.offsets) - 1,
                include_entries=len(include.values),
                exclude_entries=sum(len(each.values) for each in exclude),
                bytes=bytes_of((include, *exclude)),
            )
            for name, (include, *exclude) in zip(schema.valued_names, lists.postings, strict=True)
        ),
    )


def _matchers(snapshot: Snapshot) -> tuple[MatcherSummary, ...]:
    if snapshot.matchers is None:
        return ()
    schema, trie = snapshot.schema, snapshot.trie
    found = _kind("bitmask", snapshot.matchers.bitmask, trie, schema.bitmask_bits)
    for target_set, bloom in zip(schema.sets, snapshot.matchers.blooms, strict=True):
        found += _kind(target_set.name, bloom.rows, trie, target_set.bloom_bits)
    return tuple(found)


def _kind(kind: str, matchers: NodeMatchers, trie: SidTrie, bits: int) -> list[MatcherSummary]:
    """`bits` are those that a row may set: the padding of its last word is no room to fill."""
    set_bits = np.bitwise_count(matchers.table).sum(axis=1, dtype=np.int64)
    row_bytes = matchers.table.shape[1] * matchers.table.itemsize
    found, borders = [], matchers.borders(trie)
    for level, rows in enumerate(matchers.level_rows, start=1):
        begin, end = (int(borders[entry]) for entry in trie.entries_of_level(level))
        # Jagged ids need an offset per entry, too.
        entries = 0 if matchers.offsets is None else trie.level_counts[level]
        # Block by block: the ids may be gigabytes.
        blocks = (matchers.index[at : min(at + _BLOCK, end)] for at in range(begin, end, _BLOCK))
        mean_bits = sum(int(set_bits[block].sum()) for block in blocks) / (end - begin)
        found.append(
            MatcherSummary(
                kind=kind,
                position=level - 1,
                partitions=end - begin,
                rows=rows,
                bytes_before=(end - begin) * row_bytes,
                bytes_after=rows * row_bytes,
                id_bytes=(end - begin + entries) * matchers.index.itemsize,
                fill=mean_bits / max(1, bits),
            )
        )
    return found


_READ = {
    "decoding": ("trie", "matchers", "exact"),
    "sid_to_ads": ("ads", "entities"),
    "exact_targeting": ("rules", "set_values"),
}
"""The parts of a snapshot by what reads them."""
