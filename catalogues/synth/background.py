"""What the rules of a campaign follow from: its brand, topic, home market, city, and reach."""

from dataclasses import dataclass
from typing import get_args

import numpy as np

from grace.catalogues.synth.arrays import BoolArray, Int64Array, offsets_of, pick_by_share
from grace.catalogues.synth.draws import draw_share
from grace.catalogues.synth.places import COUNTRIES, Places
from grace.catalogues.synth.sid_tree import SidTree
from grace.catalogues.synth.spec import TargetingKnobs
from grace.catalogues.synth.topics import TOPICS, Reach

REACHES = get_args(Reach)
TOPIC_REACH = np.array([REACHES.index(topic.reach) for topic in TOPICS])
_LOCATED_ODDS = {"local": 1.0, "national": 0.35, "global": 0.08}

OPEN_CAMPAIGN = 0  # the one without any rule
_LINES_PER_CAMPAIGN = 2  # product lines of a brand that share a campaign


@dataclass(frozen=True, slots=True)
class Background:
    """One row per campaign; those of a brand are adjacent. Row OPEN_CAMPAIGN belongs to none."""

    brand_campaigns: Int64Array  # [brands + 1] offsets into the campaigns
    brand: Int64Array
    topic: Int64Array
    country: Int64Array
    city: Int64Array
    located: BoolArray  # has a location list
    targeted: BoolArray  # may have rules: all but OPEN_CAMPAIGN


def make_background(
    tree: SidTree, places: Places, knobs: TargetingKnobs, rng: np.random.Generator
) -> Background:
    per_brand = 1 + np.diff(tree.brand_lines) // _LINES_PER_CAMPAIGN
    brand_campaigns = offsets_of(per_brand) + 1
    brand = np.concatenate([[0], np.repeat(np.arange(len(per_brand)), per_brand)])
    size = len(brand)
    topic = tree.brand_topic[brand]
    market_shares = np.array([country.weight for country in COUNTRIES])
    brand_home = pick_by_share(rng, market_shares, len(per_brand))
    elsewhere = pick_by_share(rng, market_shares, size)
    stays = rng.random(size) < knobs.home_market_kept
    country = np.where(stays, brand_home[brand], elsewhere)
    targeted = np.arange(size) != OPEN_CAMPAIGN
    odds = np.array([_LOCATED_ODDS[reach] for reach in REACHES])[TOPIC_REACH[topic]]
    return Background(
        brand_campaigns=brand_campaigns,
        brand=brand,
        topic=topic,
        country=country,
        city=pick_cities(places, country, rng),
        located=draw_share(rng, knobs.location, odds * targeted),
        targeted=targeted,
    )


def pick_cities(places: Places, country: Int64Array, rng: np.random.Generator) -> Int64Array:
    """A city of each row's country, the large ones more often."""
    # Shares sum to 1 in each country, so the cumulative sum passes c at the end of country c - 1.
    cumulative = np.cumsum(places.city_shares)
    city = np.searchsorted(cumulative, country + rng.random(len(country)), side="right")
    return np.clip(city, places.country_cities[country], places.country_cities[country + 1] - 1)
