"""The catalogue as a snapshot in memory, without Parquet.

The ads go into the builder's collected form, and their rules through its rule table, each distinct
rule once instead of once per ad. From there on it is the builder's own path, so the snapshot is the
one that `grace build` makes of the catalogue's files, array for array.
"""

import numpy as np
import numpy.typing as npt

from grace.catalogues.paper.catalogue import PaperCatalogue
from grace.catalogues.paper.schema import location_names
from grace.catalogues.paper.spec import SID_LENGTH, VOCAB
from grace.catalogues.paper.threads import ahead
from grace.index.builder.arrange import Arranged, arrange
from grace.index.builder.collect import CollectedAds
from grace.index.builder.kway import checked_k_way, k_way_matchers
from grace.index.builder.rule_table import RuleTable
from grace.index.builder.unions import union_matchers
from grace.index.matchers.modes import KWay, MatcherMode
from grace.index.snapshot import Snapshot, SnapshotFacts
from grace.index.targeting.rules import TargetingRules

__all__ = [
    "CREATED_AT",
    "VOCAB_SIZES",
    "arranged_ads",
    "collected_ads",
    "rule_table",
    "snapshot_of",
]

VOCAB_SIZES = (VOCAB,) * SID_LENGTH
_ADS_AT_ONCE = 1 << 18
_RULES_AT_ONCE = 1 << 18
CREATED_AT = "2026-01-01T00:00:00Z"


def collected_ads(catalogue: PaperCatalogue, threads: int) -> CollectedAds:
    ads = catalogue.num_ads
    ids, weights = np.empty(ads, np.int64), np.empty(ads, np.float32)
    tokens, keys = np.empty((ads, SID_LENGTH), np.uint16), np.empty(ads, np.int32)
    used = np.zeros(catalogue.campaigns.num_rules, np.bool_)

    def fill(begin: int) -> None:
        run = slice(begin, min(begin + _ADS_AT_ONCE, ads))
        rows = catalogue.rows(np.arange(run.start, run.stop))
        ids[run], tokens[run], weights[run] = rows.ids, rows.tokens, rows.weights
        keys[run] = rows.rules
        used[rows.rules] = True

    for _ in ahead(fill, range(0, ads, _ADS_AT_ONCE), threads):
        pass
    rules, rule_of_key = rule_table(catalogue, used, threads)
    names = location_names(catalogue.spec.knobs)
    return CollectedAds(ids, tokens, weights, rule_of_key[keys], rules, (names,))


def arranged_ads(catalogue: PaperCatalogue, threads: int) -> Arranged:
    return arrange(collected_ads(catalogue, threads), VOCAB_SIZES, threads)


def snapshot_of(
    catalogue: PaperCatalogue,
    arranged: Arranged,
    mode: MatcherMode,
    threads: int,
    k_way: KWay | None = None,
    version: int = 1,
) -> Snapshot:
    """`arranged` is the same for every matcher mode."""
    k_way, schema = checked_k_way(mode, k_way, SID_LENGTH), catalogue.schema
    matchers = None
    if k_way is not None:
        matchers = k_way_matchers(arranged, schema, k_way, threads, lambda done: None)
    elif mode is MatcherMode.UNION:
        matchers = union_matchers(arranged, schema, threads, lambda done: None)
    return Snapshot(
        SnapshotFacts(version, CREATED_AT, catalogue.spec.sid_space, 0, 0),
        schema,
        arranged.trie,
        mode,
        matchers,
        arranged.ads,
        arranged.rules,
        arranged.set_values,
    )


def rule_table(
    catalogue: PaperCatalogue, used: npt.NDArray[np.bool_], threads: int
) -> tuple[TargetingRules, npt.NDArray[np.int32]]:
    """The rules, and for each used key of the catalogue its rule."""
    rule_of_key = np.full(len(used), -1, np.int32)
    keys = np.flatnonzero(used)
    runs = [keys[begin : begin + _RULES_AT_ONCE] for begin in range(0, len(keys), _RULES_AT_ONCE)]
    with RuleTable(catalogue.schema, threads) as table:
        drawn = ahead(catalogue.rules.columns, runs, threads)
        for run, columns in zip(runs, drawn, strict=True):
            rules = np.zeros(len(run), np.int32)
            table.add([side for column in columns for side in (column, None)], rules)
            rule_of_key[run] = rules
        return table.take(), rule_of_key
