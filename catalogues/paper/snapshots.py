"""The catalogue as a snapshot in memory, without Parquet.

The ads go into the builder's collected form, and each distinct rule into its rule table once. The
rest is the builder's own path, so the snapshot equals, array for array, what `grace build` makes of
the catalogue's files. `decode_snapshot` leaves the ads out: 100 million SIDs have 170 million ads,
most of the work, and measuring a decoder needs none of them.
"""

from contextlib import closing
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from grace.catalogues.arrays import Int64Array, ahead, in_chunks
from grace.catalogues.paper.catalogue import PaperCatalogue
from grace.catalogues.paper.population import location_names
from grace.catalogues.paper.spec import SID_LENGTH, VOCAB
from grace.configs.eligibility import Eligibility, MatcherMode
from grace.index.builder.arrange import arrange, only_used
from grace.index.builder.batches import AdColumns
from grace.index.builder.collect import CollectedAds
from grace.index.builder.rule_table import RuleTable
from grace.index.matchers.derive import derive
from grace.index.matching.ads import SidToAds
from grace.index.snapshot import Snapshot, SnapshotFacts
from grace.index.targeting.rules import TargetingRules
from grace.index.trie import SidTrie
from grace.index.users.values import InternedValues

VOCAB_SIZES = (VOCAB,) * SID_LENGTH
_ADS_AT_ONCE = 1 << 18
_RULES_AT_ONCE = 1 << 18
CREATED_AT = "2026-01-01T00:00:00Z"


def collected_ads(catalogue: PaperCatalogue, threads: int) -> CollectedAds:
    ads = catalogue.num_ads
    columns = AdColumns.empty(ads, SID_LENGTH, len(catalogue.schema.entities))
    used = np.zeros(catalogue.campaigns.num_rules, np.bool_)

    def fill(begin: int) -> None:
        run = slice(begin, min(begin + _ADS_AT_ONCE, ads))
        rows = catalogue.rows(np.arange(run.start, run.stop))
        of_run = columns.where(run)
        of_run.ad_ids[:], of_run.tokens[:], of_run.weights[:] = rows.ids, rows.tokens, rows.weights
        of_run.rule_of[:] = rows.rules
        of_run.entity_ids[:] = np.stack(catalogue.campaigns.entities_of(rows.rules), axis=1)
        used[rows.rules] = True

    for _ in ahead(fill, range(0, ads, _ADS_AT_ONCE), threads):
        pass
    rules, rule_of_key = rule_table(catalogue, used, threads)
    columns.rule_of[:] = rule_of_key[columns.rule_of]
    return CollectedAds(columns, rules, (location_names(catalogue.spec.knobs),))


def paper_snapshot(catalogue: PaperCatalogue, threads: int) -> Snapshot:
    """Return the snapshot's facts; `derive` makes what a mode reads."""
    collected = collected_ads(catalogue, threads)
    return arrange(collected, _facts(catalogue), catalogue.schema, VOCAB_SIZES, threads)


def _facts(catalogue: PaperCatalogue) -> SnapshotFacts:
    return SnapshotFacts(1, CREATED_AT, catalogue.spec.sid_space, 0, 0)


def rule_table(
    catalogue: PaperCatalogue, used: npt.NDArray[np.bool_], threads: int
) -> tuple[TargetingRules, npt.NDArray[np.int32]]:
    """Return the rules, and the rule of each used key of the catalogue."""
    rule_of_key = np.full(len(used), -1, np.int32)
    keys = np.flatnonzero(used)
    runs = [keys[begin : begin + _RULES_AT_ONCE] for begin in range(0, len(keys), _RULES_AT_ONCE)]
    with closing(RuleTable(catalogue.schema, threads)) as table:
        drawn = ahead(catalogue.rules.columns, runs, threads)
        for run, columns in zip(runs, drawn, strict=True):
            rules = np.zeros(len(run), np.int32)
            table.add([side for column in columns for side in (column, None)], rules)
            rule_of_key[run] = rules
        return table.take(), rule_of_key


def decode_snapshot(
    catalogue: PaperCatalogue, threads: int, mode: MatcherMode = MatcherMode.UNION
) -> Snapshot:
    """Return a snapshot for decoding alone, in mode `union` or `exact`: its leaves have no ads."""
    trie = _trie(catalogue, threads)
    rules, set_values, rule_of = _rules(catalogue, threads)
    schema = replace(catalogue.schema, entities=())
    ads = _ads(catalogue.tree.ads, rule_of)
    snapshot = Snapshot(_facts(catalogue), schema, trie, ads, rules, set_values)
    no_ads = _ads(np.zeros(trie.num_leaves + 1, np.int64), np.zeros(0, np.int32))
    return replace(derive(snapshot, Eligibility.of(mode), threads), ads=no_ads)


def _trie(catalogue: PaperCatalogue, threads: int) -> SidTrie:
    tree, counts = catalogue.tree, catalogue.tree.level_counts
    starts = np.cumsum(counts)  # entries before those below level 1, 2, ..
    offsets = [np.zeros(1, np.int64)]
    offsets += [tree.children[level][:-1] + starts[level - 1] for level in range(1, SID_LENGTH)]
    node_offsets = np.concatenate([*offsets, starts[-1:]]).astype(np.int32)
    csr_tokens = np.empty(starts[-1], np.uint16)
    for level, (end, count) in enumerate(zip(starts, counts, strict=True), start=1):

        def tokens(nodes: Int64Array, level: int = level) -> npt.NDArray[np.uint16]:
            return tree.tokens(catalogue.draws, level, nodes)

        in_chunks(csr_tokens[end - count : end], tokens, threads)
    return SidTrie(VOCAB_SIZES, (1, *counts), node_offsets, csr_tokens)


def _rules(
    catalogue: PaperCatalogue, threads: int
) -> tuple[TargetingRules, tuple[InternedValues, ...], npt.NDArray[np.int32]]:
    """Return targeting rules with interned values, and the rule of each ad in SID order."""

    def rules_of(ads: Int64Array) -> Int64Array:
        sids = np.searchsorted(catalogue.tree.ads, ads, side="right") - 1
        return catalogue.campaigns.rules_of(sids, ads)

    keys = np.empty(catalogue.num_ads, np.int32)
    in_chunks(keys, rules_of, threads)
    used = np.zeros(catalogue.campaigns.num_rules, np.bool_)
    used[keys] = True
    raw, rule_of_key = rule_table(catalogue, used, threads)
    names, columns = location_names(catalogue.spec.knobs), AdColumns.empty(0, SID_LENGTH, 0)
    in_order = np.arange(raw.num_rules, dtype=np.int32)
    _, rules, set_values = only_used(CollectedAds(columns, raw, (names,)), in_order)
    return rules, set_values, rule_of_key[keys]


def _ads(offsets: Int64Array, rule_of: npt.NDArray[np.int32]) -> SidToAds:
    """Ads that have only their rules."""
    return SidToAds(
        offsets, np.zeros(0, np.int64), rule_of, np.zeros(0, np.float32), np.zeros(0, np.int32)
    )
