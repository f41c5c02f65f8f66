"""Which campaign, and which variant of it, each ad follows: a rule is named by both."""

from dataclasses import dataclass

import numpy as np

from grace.catalogues.paper.draws import Draws, Stream
from grace.catalogues.paper.spec import PaperKnobs
from grace.catalogues.paper.tree import PaperTree
from grace.catalogues.synth.arrays import Int64Array, offsets_of

__all__ = ["Campaigns"]


@dataclass(frozen=True, slots=True)
class Campaigns:
    """Campaigns are numbered by their two-token prefix: first[i] .. first[i + 1] are i's."""

    tree: PaperTree
    draws: Draws
    knobs: PaperKnobs
    first: Int64Array

    @staticmethod
    def of(tree: PaperTree, draws: Draws, knobs: PaperKnobs) -> "Campaigns":
        children = np.diff(tree.children[2])
        count = np.maximum(1, np.rint(knobs.campaigns * children**knobs.campaign_growth))
        return Campaigns(tree, draws, knobs, offsets_of(count.astype(np.int64)))

    @property
    def num_rules(self) -> int:
        return int(self.first[-1]) * self.knobs.variants

    def rules_of(self, sids: Int64Array, ads: Int64Array) -> Int64Array:
        """A rule per ad: campaign * variants + variant.   the ads' SIDs [n], ads [n] -> [n]"""
        draws, knobs = self.draws, self.knobs
        triples = self.tree.parents(4, sids)
        pairs = self.tree.parents(3, triples)
        # Whether an ad keeps its SID's campaign, and which of the SID's few others it has if not.
        strays = (draws.uniform(Stream.AD_CAMPAIGN, ads) - knobs.ad_keeps) / (1 - knobs.ad_keeps)
        keeps_sid = strays < 0
        alternate = (strays * knobs.alternates).astype(np.int64)
        keeps_triple = draws.uniform(Stream.SID_CAMPAIGN, sids) < knobs.sid_keeps
        chooser = np.where(
            keeps_sid,
            np.where(keeps_triple, triples | (np.int64(1) << 40), sids | (np.int64(2) << 40)),
            sids * knobs.alternates + alternate | (np.int64(3) << 40),
        )
        place = draws.uniform(Stream.CAMPAIGN_CHOICE, chooser) ** knobs.campaign_skew
        first = self.first[pairs]
        campaign = first + (place * (self.first[pairs + 1] - first)).astype(np.int64)
        drawn = draws.uniform(Stream.VARIANT, ads)
        others = (drawn - knobs.first_variant) / (1 - knobs.first_variant)
        variant = np.where(others < 0, 0, 1 + (others * (knobs.variants - 1)).astype(np.int64))
        rules: Int64Array = campaign * knobs.variants + variant
        return rules
