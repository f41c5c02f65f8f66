"""The size of a catalogue, its schema, and the shares of ads that carry each rule."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from math import prod

import numpy as np

from grace.catalogues.synth.places import COUNTRIES, LANGUAGES
from grace.catalogues.synth.topics import TOPICS
from grace.configs.errors import InputError
from grace.index.targeting.schema import (
    CLOCKS,
    Attribute,
    Flight,
    Property,
    TargetingSchema,
    TargetSet,
)

SID_LENGTH = 4
SIDS_PER_LINE = 2.7  # children of a three-token prefix, as in the paper's index
LINES_PER_BRAND = 3  # children of a two-token prefix, until those are used up
MIN_SIDS = 64


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
    TIMES = 9


COUNTRY_CODES = tuple(country.code for country in COUNTRIES)
AGES = ("18-24", "25-34", "35-44", "45-54", "55-64", "65+")
GENDERS = ("female", "male", "unknown")
DEVICES = ("phone", "tablet", "desktop", "tv")
HOURS = tuple(map(str, range(CLOCKS["hour_of_week"])))

MAX_REQUEST_VALUES = 64

SCHEMA = TargetingSchema(
    attributes=(
        Attribute("country", COUNTRY_CODES),
        Attribute("age", AGES),
        Attribute("gender", GENDERS, missing="unknown"),
        Attribute("device", DEVICES, missing_passes_exclude=True),
        Attribute("language", LANGUAGES),
        Attribute("hour", HOURS, clock="hour_of_week"),
    ),
    sets=(
        TargetSet("location", 256, 4, MAX_REQUEST_VALUES),
        TargetSet("audience", 256, 4, MAX_REQUEST_VALUES, missing_passes_exclude=True),
    ),
    hash_seed=7,
    entities=("campaign", "advertiser"),
    flights=(Flight("flight"),),
    properties=(Property("category"),),
)

LISTED: tuple[Attribute | TargetSet, ...] = (*SCHEMA.attributes, *SCHEMA.sets)
RULE_COLUMNS = tuple(name for each in LISTED for name in (each.name, f"{each.name}_exclude"))
"""The columns of lists."""


# Events: an action, and the time.
ACTION_IDS = (1, 2, 3, 4)  # view, click, save, buy
ACTION_ODDS = (0.45, 0.40, 0.10, 0.05)

NOW_MS = 1_788_264_000_000  # 2026-09-01 12:00 UTC: no file depends on the clock
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


class Share:
    """Shares of campaigns (nearly those of ads) with a rule, and the contents of the rules."""

    COUNTRY = 0.60
    COUNTRY_EXCLUDE = 0.04
    AGE = 0.15  # in topics that do not lean young, older or adult
    AGE_IF_LEANING = 0.50
    GENDER = 0.02  # in topics that do not lean female or male
    GENDER_IF_LEANING = 0.50
    GENDER_EXCLUDE = 0.02
    DEVICE = 0.15
    DEVICE_EXCLUDE = 0.06
    LANGUAGE = 0.30
    LANGUAGE_EXCLUDE = 0.02
    HOUR = 0.12
    HOUR_EXCLUDE = 0.04
    LOCATION = 0.41
    LOCATION_EXCLUDE = 0.05
    AUDIENCE = 0.10
    AUDIENCE_EXCLUDE = 0.03

    MARKET_GROUP = 0.25  # country rules that also name the neighbouring markets
    COUNTRY_IF_LOCATED = 0.80  # with a location rule, as far as COUNTRY allows
    HOME_MARKET_KEPT = 0.90  # campaigns in the home country of their brand
    MAIN_CAMPAIGN = 0.84  # ads with the campaign of their three-token prefix
    OPEN_ADS = 0.03  # ads without any rule; the rest use a sibling's campaign


@dataclass(frozen=True, slots=True)
class CatalogueSpec:
    """Everything a catalogue depends on; equal specs make equal bytes."""

    sid_space: str
    num_sids: int
    num_users: int
    vocab_sizes: tuple[int, int, int, int]
    seed: int
    log_users: int = 0  # users whose interactions are logged; 0 for no log
    learned_tokens: bool = False  # residual k-means, instead of the hierarchy itself
    clicks_only: bool = False  # requests have the one feature that the demonstration's model reads

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise InputError(f"--seed {self.seed} is negative; give 0 or more")
        assert self.vocab_sizes[0] % len(TOPICS) == 0
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


_TINY = CatalogueSpec("synth-tiny", 2_000, 64, (64,) * 4, seed=1, log_users=3_000)
PRESETS: Mapping[str, CatalogueSpec] = {
    "tiny": _TINY,
    "small": CatalogueSpec("synth-small", 100_000, 512, (512,) * 4, seed=1),
    "demo": replace(
        _TINY, sid_space="synth-demo", log_users=8_000, learned_tokens=True, clicks_only=True
    ),
}


def preset_spec(preset: str, sids: int | None = None, seed: int = 1) -> CatalogueSpec:
    """Return the spec of a preset. Another number of SIDs makes another SID space with its name."""
    if preset not in PRESETS:
        raise InputError(f"--preset {preset} is unknown; known: {', '.join(PRESETS)}, paper")
    usual = PRESETS[preset]
    name = f"{usual.sid_space}-{seed}"
    if sids is None or sids == usual.num_sids:
        return replace(usual, sid_space=name, seed=seed)
    return replace(usual, sid_space=f"{name}-{sids}", num_sids=sids, seed=seed)
