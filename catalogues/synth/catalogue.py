"""A whole catalogue in memory: its SIDs, the ads of each, and the campaign that each ad follows."""

from dataclasses import dataclass

import numpy as np

from grace.catalogues.arrays import Float32Array, Int32Array, Int64Array, frozen, offsets_of
from grace.catalogues.synth.campaign_rules import campaign_columns, campaign_flights
from grace.catalogues.synth.learned_tokens import learn_tokens
from grace.catalogues.synth.places import Places, make_places
from grace.catalogues.synth.rules import OPEN_CAMPAIGN, RuleColumn, make_background
from grace.catalogues.synth.sid_tree import SidTree, make_sid_tree
from grace.catalogues.synth.spec import CatalogueSpec, Share, Stream


@dataclass(frozen=True, slots=True)
class Campaigns:
    """`columns` are in the order of schema.RULE_COLUMNS; all arrays are [campaigns]."""

    columns: tuple[RuleColumn, ...]
    flights: Int64Array  # [2, campaigns] start and end in milliseconds since 1970, or OPEN
    topic: Int64Array
    city: Int64Array  # the campaign's home, whether or not it targets it
    brand_campaigns: Int64Array  # [brands + 1] offsets into the campaigns

    def rule(self, campaign: int) -> dict[str, list[str]]:
        """The lists of one campaign by column; columns without a rule are absent."""
        return {
            column.name: column.lists.strings(column.choice[campaign])
            for column in self.columns
            if column.choice[campaign] >= 0
        }


def make_campaigns(
    spec: CatalogueSpec, tree: SidTree, places: Places, rng: np.random.Generator
) -> Campaigns:
    background, times = make_background(tree, places, rng), spec.rng(Stream.TIMES)
    return Campaigns(
        columns=campaign_columns(background, places, spec.lookalikes, rng, times),
        flights=campaign_flights(background, times),
        topic=frozen(background.topic),
        city=frozen(background.city),
        brand_campaigns=background.brand_campaigns,
    )


def campaigns_of_ads(
    campaigns: Campaigns, tree: SidTree, ad_line: Int64Array, rng: np.random.Generator
) -> Int32Array:
    """Most ads of a product line have its main campaign, others a sibling's, a few none."""
    first = campaigns.brand_campaigns[:-1]
    count = np.diff(campaigns.brand_campaigns)
    line_brand, ad_brand = tree.line_brand, tree.line_brand[ad_line]
    main = first[line_brand] + rng.integers(count[line_brand])
    sibling = first[ad_brand] + rng.integers(count[ad_brand])
    kind = rng.random(len(ad_line))
    chosen = np.where(kind < Share.MAIN_CAMPAIGN, main[ad_line], sibling)
    chosen[kind >= 1.0 - Share.OPEN_ADS] = OPEN_CAMPAIGN
    return frozen(chosen.astype(np.int32))


# Ads per SID, with p50/p90/p99 = 1/2/11 and a mean of 1.67: (first, last, share) of each span. The
# share falls off as a power within a span.
_ADS_PER_SID = ((1, 1, 0.78), (2, 2, 0.13), (3, 10, 0.0785), (11, 11, 0.003), (12, 36, 0.0085))
_FALL_OFF = 1.1

_MEDIAN_BID = 0.8
_BID_SPREAD = 0.9  # sigma of the log-normal; a few ads bid ten times the median
_FIRST_AD_ID = 1_000_000_000
_AD_ID_GAP = 97  # at most, between neighbouring ids


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Read-only arrays; ads are in SID order and, within a SID, by id."""

    spec: CatalogueSpec
    places: Places
    tree: SidTree
    campaigns: Campaigns
    ad_offsets: Int64Array  # [num_sids + 1] offsets into the ads
    ad_ids: Int64Array  # [num_ads] unique, in no order and with gaps
    ad_weights: Float32Array  # [num_ads] bids
    ad_campaigns: Int32Array  # [num_ads]

    @property
    def num_sids(self) -> int:
        return len(self.ad_offsets) - 1

    @property
    def num_ads(self) -> int:
        return len(self.ad_ids)

    @property
    def ad_sids(self) -> Int64Array:
        """[num_ads] the index of each ad's SID."""
        return np.repeat(np.arange(self.num_sids), np.diff(self.ad_offsets))

    def home_cities(self, sids: Int64Array, ads: Int64Array) -> Int64Array:
        """Return the home city of the advertiser of each ad, given with its SID's index."""
        campaign = self.ad_campaigns[ads]
        brand = self.tree.line_brand[self.tree.sid_line[sids]]
        open_ad = campaign == OPEN_CAMPAIGN
        known = np.where(open_ad, self.campaigns.brand_campaigns[brand], campaign)
        return self.campaigns.city[known]


def make_catalogue(spec: CatalogueSpec) -> Catalogue:
    """Return the catalogue of a spec, the same on every call. 3 M SIDs take some seconds."""
    ad_rng = spec.rng(Stream.ADS)
    places = make_places(spec.districts_per_city)
    tree = make_sid_tree(spec, spec.rng(Stream.SIDS))
    if spec.learned_tokens:
        tree = learn_tokens(spec, tree)
    campaigns = make_campaigns(spec, tree, places, spec.rng(Stream.CAMPAIGNS))
    per_sid = ads_per_sid(spec.num_sids, ad_rng)
    offsets = offsets_of(per_sid)
    ad_line = np.repeat(tree.sid_line, per_sid)
    return Catalogue(
        spec=spec,
        places=places,
        tree=tree,
        campaigns=campaigns,
        ad_offsets=offsets,
        ad_ids=_ad_ids(per_sid, ad_rng),
        ad_weights=_bids(len(ad_line), ad_rng),
        ad_campaigns=campaigns_of_ads(campaigns, tree, ad_line, ad_rng),
    )


def ads_per_sid(num_sids: int, rng: np.random.Generator) -> Int64Array:
    """Evenly spaced quantiles of the distribution, shuffled: its percentiles hold at any size."""
    spans = [np.arange(low, high + 1) for low, high, _ in _ADS_PER_SID]
    sizes, falling = np.concatenate(spans), [span**-_FALL_OFF for span in spans]
    shares = [x[2] * each / each.sum() for x, each in zip(_ADS_PER_SID, falling, strict=True)]
    quantiles = (np.arange(num_sids) + 0.5) / num_sids
    index = np.searchsorted(np.cumsum(np.concatenate(shares)), quantiles)
    return rng.permutation(sizes[np.minimum(index, len(sizes) - 1)])


def _ad_ids(per_sid: Int64Array, rng: np.random.Generator) -> Int64Array:
    total = int(per_sid.sum())
    ids = _FIRST_AD_ID + np.cumsum(rng.integers(1, _AD_ID_GAP + 1, size=total))
    rng.shuffle(ids)
    sid = np.repeat(np.arange(len(per_sid)), per_sid)
    return frozen(ids[np.lexsort((ids, sid))])


def _bids(size: int, rng: np.random.Generator) -> Float32Array:
    """Draw bids in whole cents, never zero."""
    bids = np.maximum(_MEDIAN_BID * rng.lognormal(0, _BID_SPREAD, size), 0.01)
    return frozen(np.round(bids, 2).astype(np.float32))
