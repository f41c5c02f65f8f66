"""The size of a catalogue and the shares of ads that carry each rule: all knobs in one place."""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from math import prod

import numpy as np

from grace.catalogues.synth.topics import TOPICS
from grace.configs.errors import InputError

SID_LENGTH = 4
SIDS_PER_LINE = 2.7  # children of a three-token prefix, as in the paper's index
LINES_PER_BRAND = 3  # children of a two-token prefix, until those are used up
MIN_SIDS = 64
MIN_VOCAB = 8


class Stream(IntEnum):
    """Independent sources of randomness: the draws of one never shift those of another."""

    SIDS = 0
    CAMPAIGNS = 1
    ADS = 2
    USERS = 3
    REQUESTS = 4
    VECTORS = 5
    CLUSTERS = 6
    POPULARITY = 7
    LOG = 8


class Preset(StrEnum):
    TINY = "tiny"
    SMALL = "small"
    DEMO = "demo"


@dataclass(frozen=True, slots=True)
class _Size:
    sids: int
    users: int
    vocab: int  # tokens per position
    log_users: int = 0
    learned_tokens: bool = False
    clicks_only: bool = False


_PRESETS = {
    Preset.TINY: _Size(2_000, 64, 64, log_users=3_000),
    Preset.SMALL: _Size(100_000, 512, 512),
    Preset.DEMO: _Size(2_000, 64, 64, log_users=8_000, learned_tokens=True, clicks_only=True),
}


@dataclass(frozen=True, slots=True)
class TargetingKnobs:
    """Shares of campaigns (nearly those of ads) with a rule, and the contents of the rules."""

    country: float = 0.60
    country_exclude: float = 0.04
    age: float = 0.15  # in topics that do not lean young, older or adult
    age_if_leaning: float = 0.50
    gender: float = 0.02  # in topics that do not lean female or male
    gender_if_leaning: float = 0.50
    gender_exclude: float = 0.02
    device: float = 0.15
    device_exclude: float = 0.06
    language: float = 0.30
    language_exclude: float = 0.02
    location: float = 0.41
    location_exclude: float = 0.05
    audience: float = 0.10
    audience_exclude: float = 0.03

    market_group: float = 0.25  # country rules that also name the neighbouring markets
    country_if_located: float = 0.80  # with a location rule, as far as `country` allows
    home_market_kept: float = 0.90  # campaigns in the home country of their brand
    main_campaign: float = 0.84  # ads with the campaign of their three-token prefix
    open_ads: float = 0.03  # ads without any rule; the rest use a sibling's campaign


@dataclass(frozen=True, slots=True)
class CatalogueSpec:
    """Everything a catalogue depends on; equal specs make equal bytes."""

    sid_space: str
    num_sids: int
    num_users: int
    vocab_sizes: tuple[int, int, int, int]
    seed: int
    targeting: TargetingKnobs = field(default_factory=TargetingKnobs)
    log_users: int = 0  # users whose interactions are logged; 0 for no log
    learned_tokens: bool = False  # residual k-means, instead of the hierarchy itself
    clicks_only: bool = False  # requests have the one feature that the demonstration's model reads

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise InputError(f"--seed {self.seed} is negative; give 0 or more")
        if any(not MIN_VOCAB <= size <= 2**16 for size in self.vocab_sizes):
            raise InputError(f"vocab_sizes {self.vocab_sizes}: use {MIN_VOCAB} to 65536 each")
        if self.vocab_sizes[0] % len(TOPICS):
            raise InputError(
                f"vocab_sizes[0] {self.vocab_sizes[0]} is not a multiple of {len(TOPICS)}, the "
                "number of topics"
            )
        if not MIN_SIDS <= self.num_sids <= self.max_sids:
            raise InputError(
                f"--sids {self.num_sids} is outside {MIN_SIDS} to {self.max_sids}, what "
                f"vocab_sizes {self.vocab_sizes} can hold; choose a number or preset that fits"
            )

    def rng(self, stream: Stream) -> np.random.Generator:
        return np.random.default_rng(self.seed).spawn(len(Stream))[stream]

    @property
    def num_lines(self) -> int:
        """The number of three-token prefixes: product lines."""
        return round(self.num_sids / SIDS_PER_LINE)

    @property
    def num_brands(self) -> int:
        """The number of two-token prefixes: brands, at most three quarters of those possible."""
        return min(self.num_lines // LINES_PER_BRAND, 3 * prod(self.vocab_sizes[:2]) // 4)

    @property
    def num_tiers(self) -> int:
        """The number of one-token prefixes: topics or their tiers, nearly the whole vocabulary."""
        return min(self.num_brands, self.vocab_sizes[0] * 63 // 64)

    @property
    def max_sids(self) -> int:
        """The size at which every two-token prefix has half of its possible children."""
        most_brands = 3 * prod(self.vocab_sizes[:2]) // 4
        return int(most_brands * self.vocab_sizes[2] // 2 * SIDS_PER_LINE)

    @property
    def districts_per_city(self) -> int:
        """Places grow in number with the catalogue: none if tiny, over 100 a city at 3 M SIDs."""
        return self.num_sids // 25_000

    @property
    def lookalikes(self) -> int:
        """The number of audiences that have a number instead of a name."""
        return self.num_sids // 500


def preset_spec(preset: str, sids: int | None = None, seed: int = 1) -> CatalogueSpec:
    """Return the spec of a preset. Another number of SIDs makes another SID space with its name."""
    if preset not in set(Preset):
        raise InputError(f"--preset {preset} is unknown; known: {', '.join(Preset)}, paper")
    size = _PRESETS[Preset(preset)]
    name, num_sids = f"synth-{preset}-{seed}", size.sids
    if sids is not None and sids != num_sids:
        name, num_sids = f"{name}-{sids}", sids
    return CatalogueSpec(
        sid_space=name,
        num_sids=num_sids,
        num_users=size.users,
        vocab_sizes=(size.vocab, size.vocab, size.vocab, size.vocab),
        seed=seed,
        log_users=size.log_users,
        learned_tokens=size.learned_tokens,
        clicks_only=size.clicks_only,
    )
