"""The catalogue: the tree, its campaigns and their rules, and the ads as rows."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace.catalogues.arrays import Float32Array, Int64Array
from grace.catalogues.paper.draws import Draws, Stream
from grace.catalogues.paper.population import paper_schema
from grace.catalogues.paper.rules import Campaigns, RuleLists
from grace.catalogues.paper.spec import PaperSpec
from grace.catalogues.paper.tree import PaperTree, make_tree
from grace.index.targeting.schema import TargetingSchema

_ID_FACTOR = 0x9E3779B1  # odd: multiplying by it permutes the numbers below a power of two


@dataclass(frozen=True, slots=True)
class AdRows:
    """
    ids int64 [n], tokens uint16 [n, 4], weights float32 [n], rules int64 [n]
    """

    ids: Int64Array
    tokens: npt.NDArray[np.uint16]
    weights: Float32Array
    rules: Int64Array


@dataclass(frozen=True, slots=True)
class PaperCatalogue:
    spec: PaperSpec
    draws: Draws
    schema: TargetingSchema
    tree: PaperTree
    campaigns: Campaigns
    rules: RuleLists

    @property
    def num_ads(self) -> int:
        return self.tree.num_ads

    @property
    def id_bound(self) -> int:
        """The power of two that all ids are below. They are sparse, as a table's are."""
        return 1 << (8 * self.num_ads - 1).bit_length()

    def rows(self, ads: Int64Array) -> AdRows:
        """The rows of ascending ads, numbered in SID order."""
        sids = np.searchsorted(self.tree.ads, ads, side="right") - 1
        fresh = np.concatenate([[True], sids[1:] != sids[:-1]])
        tokens = self.tree.sids(self.draws, sids[fresh])[np.cumsum(fresh) - 1]
        modulus = self.id_bound
        ids = (ads + self.spec.seed % modulus) * _ID_FACTOR & (modulus - 1)
        weights = self.draws.uniform(Stream.WEIGHT, ads).astype(np.float32)
        return AdRows(ids, tokens, weights, self.campaigns.rules_of(sids, ads))


def make_paper_catalogue(spec: PaperSpec, threads: int) -> PaperCatalogue:
    draws = Draws(spec.seed)
    tree = make_tree(spec, draws, threads)
    campaigns = Campaigns.of(tree, draws, spec.knobs)
    return PaperCatalogue(spec, draws, paper_schema(), tree, campaigns, RuleLists.of(campaigns))
