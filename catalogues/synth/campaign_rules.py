"""The rules of campaigns: attributes, then sets, as ranges of neighbouring values."""

from collections.abc import Sequence
from typing import TypeAlias, get_args

import numpy as np

from grace.catalogues.arrays import BoolArray, Int64Array, draw_option, draw_share, frozen
from grace.catalogues.synth.places import COUNTRIES, LANGUAGES, Places, slug
from grace.catalogues.synth.rules import (
    REACHES,
    TOPIC_REACH,
    Background,
    Ranges,
    RuleColumn,
    listed_column,
    ranged_column,
)
from grace.catalogues.synth.spec import (
    AGES,
    COUNTRY_CODES,
    DAY_MS,
    DEVICES,
    GENDERS,
    HOURS,
    NOW_MS,
    Share,
)
from grace.catalogues.synth.topics import AUDIENCES_PER_TOPIC, TOPICS, Lean

_LEANS = get_args(Lean)
_TOPIC_LEAN = np.array([_LEANS.index(topic.lean) for topic in TOPICS])

_AGE_RANGES = [
    range(first, last)
    for first in range(len(AGES))
    for last in range(first + 1, len(AGES) + 1)
    if last - first < len(AGES)
]
_DEVICE_LISTS = ([0], [0, 1], [2], [1, 2], [3])  # phone, phone and tablet, desktop, ..., tv
_DEVICE_ODDS = (0.45, 0.25, 0.15, 0.10, 0.05)
_DEVICE_EXCLUDE_LISTS = ([3], [0], [2, 3])
_DEVICE_EXCLUDE_ODDS = (0.7, 0.2, 0.1)


def campaign_columns(
    background: Background,
    places: Places,
    lookalikes: int,
    rng: np.random.Generator,
    times: np.random.Generator,
) -> tuple[RuleColumn, ...]:
    """Return the columns in the order of RULE_COLUMNS."""
    return (
        *_country_columns(background, rng),
        *_age_columns(background, rng),
        *_gender_columns(background, rng),
        *_device_columns(background, rng),
        *_language_columns(background, rng),
        *_hour_columns(background, times),
        *_location_columns(background, places, rng),
        *_audience_columns(background, lookalikes, rng),
    )


Pair: TypeAlias = tuple[RuleColumn, RuleColumn]
"""The column of what campaigns include, and that of what they exclude."""

Rule: TypeAlias = tuple[Sequence[Sequence[int]], BoolArray, Int64Array]
"""The lists of values, a mask of the campaigns that have one, and each campaign's list number."""


def _columns(name: str, values: Sequence[str], include: Rule, exclude: Rule) -> Pair:
    return (
        listed_column(name, values, *include),
        listed_column(f"{name}_exclude", values, *exclude),
    )


def _leans(background: Background, *leans: Lean) -> BoolArray:
    return np.isin(_TOPIC_LEAN[background.topic], [_LEANS.index(lean) for lean in leans])


def _country_columns(background: Background, rng: np.random.Generator) -> Pair:
    """Include the home country or its market; exclude a neighbour in it, or some other country.

    An exclude never names the home country, so include minus exclude is never empty.
    """
    home, count = background.country, len(COUNTRIES)
    located, elsewhere = background.located, background.targeted & ~background.located
    beside_location = min(Share.COUNTRY, Share.COUNTRY_IF_LOCATED * float(located.mean()))
    has_rule = draw_share(rng, beside_location, located)
    has_rule |= draw_share(rng, Share.COUNTRY - beside_location, elsewhere)
    markets = [[COUNTRY_CODES.index(code) for code in country.market] for country in COUNTRIES]
    has_market = np.array([len(market) > 1 for market in markets])[home]
    grouped = has_rule & has_market & (rng.random(len(home)) < Share.MARKET_GROUP)
    alone = [[each] for each in range(count)]
    include = alone + markets, has_rule, np.where(grouped, home + count, home)
    neighbour = np.array([market[-1] for market in markets])[home]
    other = (home + rng.integers(1, count, size=len(home))) % count
    excludes = draw_share(rng, Share.COUNTRY_EXCLUDE, grouped | (elsewhere & ~has_rule))
    exclude = alone, excludes, np.where(grouped, neighbour, other)
    return _columns("country", COUNTRY_CODES, include, exclude)


def _age_columns(background: Background, rng: np.random.Generator) -> Pair:
    """Include adjacent age bands; topics for adults (alcohol, loans) exclude the youngest."""
    leaning, adult = _leans(background, "young", "older"), _leans(background, "adult")
    share = np.where(leaning, Share.AGE_IF_LEANING, Share.AGE)
    has_rule = background.targeted & (rng.random(len(share)) < share)
    suits: dict[Lean, list[float]] = {
        "young": [len(ages) * (ages.stop <= 2) for ages in _AGE_RANGES],
        "older": [len(ages) * (ages.start >= 3) for ages in _AGE_RANGES],
        "adult": [ages.stop >= 2 for ages in _AGE_RANGES],  # an age above 24 stays
    }
    odds = [suits.get(lean, [1.0] * len(_AGE_RANGES)) for lean in _LEANS]
    chosen = draw_option(rng, odds, _TOPIC_LEAN[background.topic])
    exclude = [[0]], adult & background.targeted, np.zeros(len(share), np.int64)
    return _columns("age", AGES, (_AGE_RANGES, has_rule, chosen), exclude)


def _gender_columns(background: Background, rng: np.random.Generator) -> Pair:
    female, leaning = _leans(background, "female"), _leans(background, "female", "male")
    size = len(female)
    share = np.where(leaning, Share.GENDER_IF_LEANING, Share.GENDER)
    has_rule = background.targeted & (rng.random(size) < share)
    male = np.where(leaning, ~female, rng.random(size) < 0.5).astype(np.int64)
    or_unknown = rng.random(size) < 0.3
    include = [[0], [1], [0, 2], [1, 2]], has_rule, male + 2 * or_unknown
    excludes = draw_share(rng, Share.GENDER_EXCLUDE, background.targeted & ~has_rule)
    return _columns("gender", GENDERS, include, ([[1], [0]], excludes, male))


def _device_columns(background: Background, rng: np.random.Generator) -> Pair:
    targeted = background.targeted
    everyone = np.zeros(len(targeted), np.int64)
    has_rule = draw_share(rng, Share.DEVICE, targeted)
    chosen = draw_option(rng, [_DEVICE_ODDS], everyone)
    excludes = draw_share(rng, Share.DEVICE_EXCLUDE, targeted & ~has_rule)
    excluded = draw_option(rng, [_DEVICE_EXCLUDE_ODDS], everyone)
    include = _DEVICE_LISTS, has_rule, chosen
    exclude = _DEVICE_EXCLUDE_LISTS, excludes, excluded
    return _columns("device", DEVICES, include, exclude)


def _language_columns(background: Background, rng: np.random.Generator) -> Pair:
    """Include the language of the home country, often with English."""
    count, english = len(LANGUAGES), LANGUAGES.index("en")
    spoken = np.array([LANGUAGES.index(country.language) for country in COUNTRIES])
    own, targeted = spoken[background.country], background.targeted
    has_rule = draw_share(rng, Share.LANGUAGE, targeted)
    with_english = (own != english) & (rng.random(len(own)) < 0.4)
    alone = [[each] for each in range(count)]
    paired = [[each, english] for each in range(count)]
    include = alone + paired, has_rule, own + count * with_english
    other = (own + rng.integers(1, count, size=len(own))) % count
    excludes = draw_share(rng, Share.LANGUAGE_EXCLUDE, targeted & ~has_rule)
    return _columns("language", LANGUAGES, include, (alone, excludes, other))


_WEEK = [divmod(hour, 24) for hour in range(len(HOURS))]  # the day and the hour of the day
_OFFICE = [at for at, (day, hour) in enumerate(_WEEK) if day < 5 and 8 <= hour < 18]
_EVENING = [at for at, (_, hour) in enumerate(_WEEK) if hour >= 18]
_WEEKEND = [at for at, (day, _) in enumerate(_WEEK) if day >= 5]
_NIGHT = [at for at, (_, hour) in enumerate(_WEEK) if hour < 6]
_HOUR_ODDS = ((0.7, 0.2, 0.1), (0.2, 0.5, 0.3), (0.1, 0.6, 0.3))  # local, national, global


def _hour_columns(background: Background, rng: np.random.Generator) -> Pair:
    """Local ads are mostly for office hours, others for the evening; some are not for the night."""
    reach = TOPIC_REACH[background.topic]
    local = 1.0 + 2.0 * (reach == REACHES.index("local"))
    has_rule = draw_share(rng, Share.HOUR, local * background.targeted)
    excludes = draw_share(rng, Share.HOUR_EXCLUDE, background.targeted & ~has_rule)
    include = (_OFFICE, _EVENING, _WEEKEND), has_rule, draw_option(rng, _HOUR_ODDS, reach)
    return _columns("hour", HOURS, include, ([_NIGHT], excludes, np.zeros_like(reach)))


OPEN = -1  # no start, or no end
_FLIGHT_ODDS = ((0.55, 0.21, 0.08, 0.08, 0.08),)
_FLIGHT_DAYS = np.array(  # first and last start, first and last end, in days from NOW_MS
    [[0, 0, 0, 0], [-365, -1, 0, 0], [-60, -1, 1, 60], [-120, -60, -59, -1], [1, 60, 61, 120]]
)
_OPEN_START, _OPEN_END = 1, 2  # kinds below these numbers have no start, or no end


def campaign_flights(background: Background, rng: np.random.Generator) -> Int64Array:
    """Draw the start and the end of each campaign, at midnight or OPEN.   [2, campaigns]

    Most are open, or have only a start in the past: at any later time, they run.
    """
    kind = draw_option(rng, _FLIGHT_ODDS, np.zeros(len(background.topic), np.int64))
    kind[~background.targeted] = 0
    first_start, last_start, first_end, last_end = _FLIGHT_DAYS[kind].T
    start, end = rng.integers(first_start, last_start + 1), rng.integers(first_end, last_end + 1)
    is_open = np.stack([kind < _OPEN_START, kind < _OPEN_END])
    return frozen(np.where(is_open, OPEN, (NOW_MS // DAY_MS + np.stack([start, end])) * DAY_MS))


_REGION, _CITY = 1, 2
_GRAIN_ODDS = (  # of countries, regions, cities and districts; by reach: local, national, global
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


def _location_columns(background: Background, places: Places, rng: np.random.Generator) -> Pair:
    """Include places around the campaign's city; exclude a few cities of its region."""
    grain = draw_option(rng, _GRAIN_ODDS, TOPIC_REACH[background.topic])
    if not places.districts_per_city:
        grain = np.minimum(grain, _CITY)
    include = _location_ranges(background, places, grain, rng)
    wide = ~background.located | (grain <= _REGION)
    excludes = draw_share(rng, Share.LOCATION_EXCLUDE, wide & background.targeted)
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


def _audience_columns(background: Background, lookalikes: int, rng: np.random.Generator) -> Pair:
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
    has_rule = draw_share(rng, Share.AUDIENCE, targeted)
    excludes = draw_share(rng, Share.AUDIENCE_EXCLUDE, targeted)
    return (
        ranged_column("audience", values, include, has_rule),
        ranged_column("audience_exclude", values, buyers, excludes),
    )
