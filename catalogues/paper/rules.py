"""The campaign and variant that each ad follows, and what the rules of both say."""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from grace.catalogues.arrays import BoolArray, FloatArray, Int64Array, offsets_of, position_in_run
from grace.catalogues.paper.draws import Draws, Stream
from grace.catalogues.paper.population import NUM_REGIONS, SMALL, region_shares
from grace.catalogues.paper.spec import PaperKnobs
from grace.catalogues.paper.tree import PaperTree
from grace.index.forms.component import ListColumn
from grace.index.forms.lists import list_column
from grace.index.targeting.rules import Lists, take_lists


@dataclass(frozen=True, slots=True)
class Campaigns:
    """Campaigns are numbered by their two-token prefix, which is their advertiser: i's are
    first[i] .. first[i + 1]."""

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
        # Whether an ad keeps its SID's campaign; if not, which of the SID's few others it has.
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

    def entities_of(self, rules: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The campaign and advertiser of each rule.   [n] -> [n], [n]"""
        campaign = rules // self.knobs.variants
        return campaign, np.searchsorted(self.first, campaign, side="right") - 1


_SMALL_BITS = 4  # rule keys of the small attributes: rule << 4 | attribute
_TRIES = 4


@dataclass(frozen=True, slots=True)
class RuleLists:
    campaigns: Campaigns
    market: BoolArray  # [first tokens, regions] the regions in which their ads sell
    packages: Lists  # single regions, then `packages` lists per first token
    windows: tuple[Lists, ...]  # per small attribute all runs of its values, but the whole

    @staticmethod
    def of(campaigns: Campaigns) -> "RuleLists":
        draws, knobs = campaigns.draws, campaigns.knobs
        firsts = campaigns.tree.level_counts[0]
        keys = np.arange(firsts * NUM_REGIONS)
        known = draws.uniform(Stream.MARKET, keys) < knobs.region_in_market
        market = known.reshape(firsts, NUM_REGIONS)
        market[:, 0] = True
        packages = _packages(market, draws, knobs)
        return RuleLists(campaigns, market, packages, tuple(map(_windows, SMALL.values())))

    def columns(self, rules: Int64Array) -> list[ListColumn]:
        """Include lists of the given rules: region, the small attributes, location."""
        campaign = rules // self.campaigns.knobs.variants
        pair = np.searchsorted(self.campaigns.first, campaign, side="right") - 1
        small = [self._small(rules, number) for number in range(len(SMALL))]
        return [self._regions(campaign, pair), *small, self._locations(campaign, pair)]

    def _follows(
        self, pair: Int64Array, stream: int, campaign: Int64Array, share: float, correlation: float
    ) -> BoolArray:
        """True for `share` of the campaigns, more or fewer where the prefix is popular."""
        latent = correlation * self.campaigns.tree.popularity[pair]
        latent += np.sqrt(1 - correlation**2) * self.campaigns.draws.normal(stream, campaign)
        return latent > NormalDist().inv_cdf(1 - share)

    def _regions(self, campaign: Int64Array, pair: Int64Array) -> ListColumn:
        draws, knobs = self.campaigns.draws, self.campaigns.knobs
        first = np.searchsorted(self.campaigns.tree.children[1], pair, side="right") - 1
        wide = self._follows(
            pair, Stream.REGION_KIND, campaign, knobs.package_share, knobs.package_follows
        )
        single = np.full(len(campaign), -1)
        cumulative = np.cumsum(region_shares(knobs))
        for attempt in range(_TRIES):  # the first drawn region that the market knows, or the home
            drawn = draws.uniform(Stream.REGION, campaign * _TRIES + attempt)
            region = np.minimum(np.searchsorted(cumulative, drawn), NUM_REGIONS - 1)
            single = np.where((single < 0) & self.market[first, region], region, single)
        single = np.maximum(single, 0)
        package = draws.below(Stream.PACKAGE, campaign, knobs.packages)
        package += NUM_REGIONS + first * knobs.packages
        return _take(self.packages, np.where(wide, package, single))

    def _small(self, rules: Int64Array, number: int) -> ListColumn:
        draws, windows = self.campaigns.draws, self.windows[number]
        keys = rules << _SMALL_BITS | number
        ruled = draws.uniform(Stream.SMALL_RULE, keys) < self.campaigns.knobs.small_rule
        window = draws.below(Stream.SMALL_WINDOW, keys, len(windows.offsets) - 1)
        return _take(windows, np.where(ruled, window, -1))

    def _locations(self, campaign: Int64Array, pair: Int64Array) -> ListColumn:
        """A list walks the vocabulary in an odd stride: distinct, as its size is a power of two."""
        draws, knobs = self.campaigns.draws, self.campaigns.knobs
        located = self._follows(
            pair, Stream.LOCATED, campaign, knobs.located, knobs.located_follows
        )
        count = _geometric(draws.uniform(Stream.LOCATION_COUNT, campaign), knobs.location_mean)
        count = np.where(located, np.minimum(count, knobs.most_locations), 0)
        offsets = offsets_of(count)
        bits = draws.bits(Stream.LOCATION, campaign)
        start = (bits & np.uint64(0xFFFFFFFF)).astype(np.int64)
        stride = (bits >> np.uint64(32)).astype(np.int64) | 1
        walked = np.repeat(start, count) + np.repeat(stride, count) * position_in_run(offsets)
        codes = walked.astype(np.int64) & (knobs.locations - 1)
        return ListColumn(offsets, located.astype(np.uint8), codes.astype(np.int32))


def _packages(market: BoolArray, draws: Draws, knobs: PaperKnobs) -> Lists:
    """Lists of the most populous regions of a market, blurred by noise (Gumbel top-k)."""
    firsts = len(market)
    keys = np.arange(firsts * knobs.packages)
    sizes = _geometric(draws.uniform(Stream.PACKAGE_SIZE, keys), knobs.package_mean)
    sizes = np.minimum(sizes, np.repeat(market.sum(axis=1), knobs.packages))
    lists = [np.arange(NUM_REGIONS)]
    population = np.log(region_shares(knobs))
    for first in range(firsts):
        mine = np.arange(first * knobs.packages, (first + 1) * knobs.packages)
        cells = mine[:, np.newaxis] * NUM_REGIONS + np.arange(NUM_REGIONS)
        blurred = draws.uniform(Stream.PACKAGE, cells + (1 << 40))
        blurred = population - knobs.package_noise * np.log(-np.log(blurred + 1e-12) + 1e-12)
        blurred[:, ~market[first]] = -np.inf
        least = np.take_along_axis(-np.sort(-blurred, axis=1), sizes[mine, np.newaxis] - 1, axis=1)
        lists.append(np.nonzero(blurred >= least)[1])
    offsets = offsets_of(np.concatenate([np.ones(NUM_REGIONS, np.int64), sizes]))
    return Lists(offsets, np.concatenate(lists).astype(np.int32))


def _windows(values: int) -> Lists:
    """Every run of at least half of an attribute's values, but the whole."""
    runs = [
        np.arange(begin, begin + size)
        for size in range((values + 1) // 2, values)
        for begin in range(values - size + 1)
    ]
    return Lists(
        offsets_of(np.array([len(run) for run in runs])), np.concatenate(runs).astype(np.int32)
    )


def _geometric(drawn: FloatArray, mean: float) -> Int64Array:
    """1, 2, 3 .. with the given mean, from uniform draws."""
    steps: Int64Array = np.floor(np.log1p(-drawn) / np.log1p(-1 / mean)).astype(np.int64)
    return steps + 1


def _take(lists: Lists, chosen: Int64Array) -> ListColumn:
    """The chosen lists, none of which is empty, side by side; -1 is no rule."""
    with_none = lists._replace(offsets=np.append(lists.offsets, lists.offsets[-1]))
    return list_column(take_lists(with_none, np.where(chosen < 0, len(lists.offsets) - 1, chosen)))
