"""What decoding needs of the catalogue: its trie and union matchers, without the ads.

100 million SIDs have 170 million ads. Their ids and weights, and the orders of both, are most of a
snapshot's making, and nothing to who only measures a decoder. The trie is that of the snapshot with
ads, array for array; matchers number their rows otherwise, node for node they are the same rows.
"""

import numpy as np
import numpy.typing as npt

from grace.catalogues.paper.catalogue import PaperCatalogue
from grace.catalogues.paper.direct import CREATED_AT, VOCAB_SIZES, rule_table
from grace.catalogues.paper.schema import location_names
from grace.catalogues.paper.spec import SID_LENGTH
from grace.catalogues.paper.threads import ahead, in_chunks
from grace.catalogues.synth.arrays import Int64Array
from grace.index.builder.arrange import Arranged, renumber_rules
from grace.index.builder.unions import union_matchers
from grace.index.matchers.modes import MatcherMode
from grace.index.matching.ads import SidToAds
from grace.index.snapshot import Snapshot, SnapshotFacts
from grace.index.targeting.rules import TargetingRules
from grace.index.trie import SidTrie
from grace.index.users.values import InternedValues

__all__ = ["decode_snapshot"]

_ADS_AT_ONCE = 1 << 18


def decode_snapshot(catalogue: PaperCatalogue, threads: int) -> Snapshot:
    """In mode `union`, for decoding alone: no leaf of it has ads."""
    trie = _trie(catalogue, threads)
    rules, rule_of = _rules(catalogue, threads)
    arranged = Arranged(trie, _ads(catalogue.tree.ads, rule_of), *rules)
    matchers = union_matchers(arranged, catalogue.schema, threads, lambda done: None)
    none = np.zeros(0, np.int32)
    return Snapshot(
        SnapshotFacts(1, CREATED_AT, catalogue.spec.sid_space, 0, 0),
        catalogue.schema,
        trie,
        MatcherMode.UNION,
        matchers,
        _ads(np.zeros(trie.num_leaves + 1, np.int64), none),
        arranged.rules,
        arranged.set_values,
    )


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
) -> tuple[tuple[TargetingRules, tuple[InternedValues, ...]], npt.NDArray[np.int32]]:
    """Targeting rules and interned values; and each ad's rule, ads in SID order."""
    ads = catalogue.num_ads
    keys = np.empty(ads, np.int32)
    used = np.zeros(catalogue.campaigns.num_rules, np.bool_)

    def fill(begin: int) -> None:
        numbers = np.arange(begin, min(begin + _ADS_AT_ONCE, ads))
        sids = np.searchsorted(catalogue.tree.ads, numbers, side="right") - 1
        drawn = catalogue.campaigns.rules_of(sids, numbers)
        keys[numbers[0] : numbers[-1] + 1] = drawn
        used[drawn] = True

    for _ in ahead(fill, range(0, ads, _ADS_AT_ONCE), threads):
        pass
    raw, rule_of_key = rule_table(catalogue, used, threads)
    names = location_names(catalogue.spec.knobs)
    in_order = np.arange(raw.num_rules, dtype=np.int32)
    return renumber_rules(raw, (names,), in_order), rule_of_key[keys]


def _ads(offsets: Int64Array, rule_of: npt.NDArray[np.int32]) -> SidToAds:
    """Ads that have nothing but their rules."""
    return SidToAds(
        offsets, np.zeros(0, np.int64), rule_of, np.zeros(0, np.float32), np.zeros(0, np.int32)
    )
