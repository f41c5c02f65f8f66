"""The size of the `paper` catalogue and the knobs of its statistics, each with its reason."""

from dataclasses import dataclass, field

from grace.configs.errors import InputError

SID_LENGTH = 4
VOCAB = 512
PAPER_SIDS = 30_000_000
MIN_SIDS = 1_000
MAX_SIDS = 10 * PAPER_SIDS
_MIN_FIRST_TOKENS = 16


@dataclass(frozen=True, slots=True)
class PaperKnobs:
    """Calibrated at 30 M SIDs, in the order fan-out and ads per SID, CD-only pass rates, storage,
    fill rates; docs/eligibility-calibration.md has the results. Levels: 1 first token .. 4 SID."""

    # The tree. The mean fan-outs are those of the paper's storage table.
    fan_out_2: float = 384.0  # 11 MB / 56 B of bitmask rows over 512 first tokens
    fan_out_3: float = 56.3  # 620 MB over 11 MB
    fan_out_4: float = 2.71  # 30 M SIDs over 620 MB / 56 B
    spread_3: float = 1.0  # sigma of the log-normal fan-outs: a few prefixes reach 512
    spread_4: float = 1.0
    popular_grow: float = 0.5  # correlation of a prefix's fan-out with its popularity

    # Ads per SID: 1 for one_ad of them, 2 up to two_ads, then a power law. p50/p90/p99 are 1/2/11.
    one_ad: float = 0.85
    two_ads: float = 0.905
    tail_power: float = 1.37  # P(more than n ads) falls as n^-1.37, so that p99 is 11
    most_ads: int = 4096
    # A SID's place in that distribution: how much of its variance each level of its path explains.
    popularity_shares: tuple[float, float, float, float] = (0.05, 0.15, 0.20, 0.60)

    # Campaigns: the ads below a two-token prefix share them, so rows repeat and unions stay small.
    campaigns: float = 1.5  # per two-token prefix with n children: campaigns * n^campaign_growth
    campaign_growth: float = 0.75
    campaign_skew: float = 2.0  # a uniform draw to this power picks the campaign: few have most
    sid_keeps: float = 0.90  # SIDs with the campaign of their three-token prefix
    ad_keeps: float = 0.87  # ads with the campaign of their SID
    alternates: int = 2  # other campaigns of a SID, however many ads it has
    variants: int = 12  # of a campaign's small attributes, as an advertiser's ad sets differ
    first_variant: float = 0.5  # ads with the campaign's first variant

    # Regions: the attribute of a few hundred values. Every ad names its regions.
    home_region: float = 0.72  # of the population
    region_power: float = 1.0  # the others follow a Zipf law
    region_in_market: float = 0.70  # chance that a first token's ads know a region: root fill
    packages: int = 160  # region lists that the campaigns below one first token choose from
    package_mean: float = 18.0  # regions in a list, geometric
    package_share: float = 0.42  # campaigns with such a list; the others name one region
    package_follows: float = 0.6  # correlation with popularity: popular prefixes sell widely
    package_noise: float = 1.0  # how far a list strays from the most populous regions

    small_rule: float = 0.105  # chance of a rule, for each small attribute

    # Locations: the set.
    locations: int = 1 << 15
    located: float = 0.715  # campaigns with a location list
    located_follows: float = -0.15  # popular prefixes are less local
    location_mean: float = 3.7  # values in a list, geometric
    most_locations: int = 60


@dataclass(frozen=True, slots=True)
class PaperSpec:
    """Everything the catalogue depends on; equal specs make equal ads, in any process."""

    num_sids: int = PAPER_SIDS
    seed: int = 1
    knobs: PaperKnobs = field(default_factory=PaperKnobs)

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise InputError(f"--seed {self.seed} is negative; give 0 or more")
        if not MIN_SIDS <= self.num_sids <= MAX_SIDS:
            raise InputError(f"--sids {self.num_sids} is outside {MIN_SIDS} to {MAX_SIDS}")

    @property
    def sid_space(self) -> str:
        return f"paper-{self.seed}-{self.num_sids}"

    @property
    def level_counts(self) -> tuple[int, int, int, int]:
        """Prefixes of 1 to 4 tokens.

        A smaller catalogue has fewer first tokens, down to 16, so that what lies below one keeps
        its shape; a still smaller one has fewer second tokens.
        """
        third = round(self.num_sids / self.knobs.fan_out_4)
        second = max(1, round(third / self.knobs.fan_out_3))
        first = min(VOCAB, max(_MIN_FIRST_TOKENS, round(second / self.knobs.fan_out_2)), second)
        return first, second, third, self.num_sids
