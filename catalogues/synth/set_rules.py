"""The set rules of campaigns: locations and audiences, as ranges of neighbouring values."""

from enum import IntEnum

import numpy as np

from grace.catalogues.arrays import Int64Array, draw_option, draw_share
from grace.catalogues.synth.places import Places, slug
from grace.catalogues.synth.rules import (
    REACHES,
    TOPIC_REACH,
    Background,
    Ranges,
    RuleColumn,
    ranged_column,
)
from grace.catalogues.synth.spec import TargetingKnobs
from grace.catalogues.synth.topics import AUDIENCES_PER_TOPIC, TOPICS


class _Grain(IntEnum):
    COUNTRY = 0
    REGION = 1
    CITY = 2
    DISTRICT = 3


_GRAIN_ODDS = (  # by reach: local, national, global
    (0.00, 0.10, 0.60, 0.30),
    (0.25, 0.55, 0.20, 0.00),
    (0.70, 0.30, 0.00, 0.00),
)
_LIST_SIZES = np.array([1, 2, 3, 5, 8, 12, 20])
_LIST_SIZE_ODDS = (0.34, 0.20, 0.16, 0.12, 0.08, 0.06, 0.04)
_EXCLUDED_CITIES = 3  # at most
_LOOKALIKE_SHARE = 0.35

_NAMED = AUDIENCES_PER_TOPIC * len(TOPICS)


def audience_values(lookalikes: int) -> tuple[str, ...]:
    """Interests, topic by topic; then recent buyers, one a topic; then numbered lookalikes."""
    interests = [slug(name) for topic in TOPICS for name in topic.audiences]
    buyers = [f"recent-buyers-of-{slug(topic.name)}" for topic in TOPICS]
    numbered = [f"lookalike-{number + 1:05}" for number in range(lookalikes)]
    return tuple(f"audience:{name}" for name in (*interests, *buyers, *numbered))


def location_columns(
    background: Background, places: Places, knobs: TargetingKnobs, rng: np.random.Generator
) -> tuple[RuleColumn, RuleColumn]:
    """Include places around the campaign's city; exclude a few cities of its region."""
    grain = draw_option(rng, _GRAIN_ODDS, TOPIC_REACH[background.topic])
    if not places.districts_per_city:
        grain = np.minimum(grain, _Grain.CITY)
    include = _location_ranges(background, places, grain, rng)
    wide = ~background.located | (grain <= _Grain.REGION)
    excludes = draw_share(rng, knobs.location_exclude, wide & background.targeted)
    return (
        ranged_column("location", places.values, include, background.located),
        ranged_column(
            "location_exclude", places.values, _excluded_cities(background, places, rng), excludes
        ),
    )


def _location_ranges(
    background: Background, places: Places, grain: Int64Array, rng: np.random.Generator
) -> Ranges:
    """A local business stays within its region; others cover the whole country."""
    country, city = background.country, background.city
    region = places.city_region[city]
    local = TOPIC_REACH[background.topic] == REACHES.index("local")
    districts = max(1, places.districts_per_city)
    zero, one = np.zeros(len(city), np.int64), np.ones(len(city), np.int64)
    region_span = _span(places.country_regions, country)
    city_span = np.where(
        local, _span(places.region_cities, region), _span(places.country_cities, country)
    )
    start = np.choose(
        grain,
        [
            country,
            places.first_region + region_span[0],
            places.first_city + city_span[0],
            places.first_district + city * districts,
        ],
    )
    window = np.choose(grain, [one, region_span[1], city_span[1], districts * one])
    district = rng.integers(districts, size=len(city))
    first = np.choose(grain, [zero, region - region_span[0], city - city_span[0], district])
    size = _LIST_SIZES[draw_option(rng, [_LIST_SIZE_ODDS], zero)]
    return Ranges(start, window, first, np.minimum(size, window))


def _span(offsets: Int64Array, parent: Int64Array) -> Int64Array:
    """[2, rows]: the first child of each row's parent, and how many children it has."""
    return np.stack([offsets[parent], offsets[parent + 1] - offsets[parent]])


def _excluded_cities(background: Background, places: Places, rng: np.random.Generator) -> Ranges:
    """Some cities of the home region, but never all of several."""
    region = places.city_region[background.city]
    first_city, window = _span(places.region_cities, region)
    count = np.minimum(rng.integers(1, _EXCLUDED_CITIES + 1, size=len(region)), window - 1)
    first = rng.integers(window)
    return Ranges(places.first_city + first_city, window, first, np.maximum(count, 1))


def audience_columns(
    background: Background, lookalikes: int, knobs: TargetingKnobs, rng: np.random.Generator
) -> tuple[RuleColumn, RuleColumn]:
    """Include interests of the topic or the brand's lookalike; exclude its recent buyers."""
    values = audience_values(lookalikes)
    topic, targeted = background.topic, background.targeted
    size = len(topic)
    one = np.ones(size, np.int64)
    interest = Ranges(
        window_start=AUDIENCES_PER_TOPIC * topic,
        window=AUDIENCES_PER_TOPIC * one,
        first=rng.integers(AUDIENCES_PER_TOPIC, size=size),
        count=rng.integers(1, AUDIENCES_PER_TOPIC + 1, size=size),
    )
    lookalike = rng.random(size) < (_LOOKALIKE_SHARE if lookalikes else 0.0)
    numbered = _NAMED + len(TOPICS) + background.brand % max(1, lookalikes)
    include = Ranges(
        window_start=np.where(lookalike, numbered, interest.window_start),
        window=np.where(lookalike, 1, interest.window),
        first=np.where(lookalike, 0, interest.first),
        count=np.where(lookalike, 1, interest.count),
    )
    buyers = Ranges(_NAMED + topic, one, one * 0, one)
    has_rule = draw_share(rng, knobs.audience, targeted)
    excludes = draw_share(rng, knobs.audience_exclude, targeted)
    return (
        ranged_column("audience", values, include, has_rule),
        ranged_column("audience_exclude", values, buyers, excludes),
    )
