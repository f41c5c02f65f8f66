"""The catalogue as a snapshot in memory, without Parquet.

The ads go into the builder's collected form, and each distinct rule into its rule table once. The
rest is the builder's own path, so the snapshot equals, array for array, what `grace build` makes of
the catalogue's files.
"""

from contextlib import closing
from itertools import chain

import numpy as np
import numpy.typing as npt

from grace.catalogues.arrays import ahead
from grace.catalogues.paper.catalogue import PaperCatalogue
from grace.catalogues.paper.population import location_names
from grace.catalogues.paper.spec import SID_LENGTH, VOCAB
from grace.index.builder.arrange import arrange
from grace.index.builder.batches import AdColumns
from grace.index.builder.collect import CollectedAds
from grace.index.builder.rule_table import RuleTable
from grace.index.snapshot import Snapshot, SnapshotFacts
from grace.index.targeting.rules import TargetingRules

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
    facts = SnapshotFacts(1, CREATED_AT, catalogue.spec.sid_space, 0, 0)
    return arrange(collected, facts, catalogue.schema, VOCAB_SIZES, threads)


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
            of_names = zip(columns, catalogue.schema.columns.values(), strict=True)
            padded = [(own, *[None] * (len(names) - 1)) for own, names in of_names]
            table.add_rows([*chain.from_iterable(padded)], rules)
            rule_of_key[run] = rules
        return table.take(rule_of_key)
