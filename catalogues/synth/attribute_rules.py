"""The attribute rules of campaigns: countries, ages, genders, devices and languages."""

from collections.abc import Sequence
from typing import get_args

import numpy as np

from grace.catalogues.arrays import BoolArray, Int64Array, draw_option, draw_share
from grace.catalogues.synth.places import COUNTRIES, LANGUAGES
from grace.catalogues.synth.rules import Background, RuleColumn, listed_column
from grace.catalogues.synth.schema import AGES, COUNTRY_CODES, DEVICES, GENDERS
from grace.catalogues.synth.spec import TargetingKnobs
from grace.catalogues.synth.topics import TOPICS, Lean

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


def attribute_columns(
    background: Background, knobs: TargetingKnobs, rng: np.random.Generator
) -> tuple[RuleColumn, ...]:
    return (
        *_country_columns(background, knobs, rng),
        *_age_columns(background, knobs, rng),
        *_gender_columns(background, knobs, rng),
        *_device_columns(background, knobs, rng),
        *_language_columns(background, knobs, rng),
    )


Rule = tuple[Sequence[Sequence[int]], BoolArray, Int64Array]
"""The lists of values, a mask of the campaigns that have one, and each campaign's list number."""


def _columns(
    name: str, values: Sequence[str], include: Rule, exclude: Rule
) -> tuple[RuleColumn, RuleColumn]:
    return (
        listed_column(name, values, *include),
        listed_column(f"{name}_exclude", values, *exclude),
    )


def _leans(background: Background, *leans: Lean) -> BoolArray:
    return np.isin(_TOPIC_LEAN[background.topic], [_LEANS.index(lean) for lean in leans])


def _country_columns(
    background: Background, knobs: TargetingKnobs, rng: np.random.Generator
) -> tuple[RuleColumn, RuleColumn]:
    """Include the home country or its market; exclude a neighbour in it, or some other country.

    An exclude never names the home country, so include minus exclude is never empty.
    """
    home, count = background.country, len(COUNTRIES)
    located, elsewhere = background.located, background.targeted & ~background.located
    beside_location = min(knobs.country, knobs.country_if_located * float(located.mean()))
    has_rule = draw_share(rng, beside_location, located)
    has_rule |= draw_share(rng, knobs.country - beside_location, elsewhere)
    markets = [[COUNTRY_CODES.index(code) for code in country.market] for country in COUNTRIES]
    has_market = np.array([len(market) > 1 for market in markets])[home]
    grouped = has_rule & has_market & (rng.random(len(home)) < knobs.market_group)
    alone = [[each] for each in range(count)]
    include = alone + markets, has_rule, np.where(grouped, home + count, home)
    neighbour = np.array([market[-1] for market in markets])[home]
    other = (home + rng.integers(1, count, size=len(home))) % count
    excludes = draw_share(rng, knobs.country_exclude, grouped | (elsewhere & ~has_rule))
    exclude = alone, excludes, np.where(grouped, neighbour, other)
    return _columns("country", COUNTRY_CODES, include, exclude)


def _age_columns(
    background: Background, knobs: TargetingKnobs, rng: np.random.Generator
) -> tuple[RuleColumn, RuleColumn]:
    """Include adjacent age bands; topics for adults (alcohol, loans) exclude the youngest."""
    leaning, adult = _leans(background, "young", "older"), _leans(background, "adult")
    share = np.where(leaning, knobs.age_if_leaning, knobs.age)
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


def _gender_columns(
    background: Background, knobs: TargetingKnobs, rng: np.random.Generator
) -> tuple[RuleColumn, RuleColumn]:
    female, leaning = _leans(background, "female"), _leans(background, "female", "male")
    size = len(female)
    share = np.where(leaning, knobs.gender_if_leaning, knobs.gender)
    has_rule = background.targeted & (rng.random(size) < share)
    male = np.where(leaning, ~female, rng.random(size) < 0.5).astype(np.int64)
    or_unknown = rng.random(size) < 0.3
    include = [[0], [1], [0, 2], [1, 2]], has_rule, male + 2 * or_unknown
    excludes = draw_share(rng, knobs.gender_exclude, background.targeted & ~has_rule)
    return _columns("gender", GENDERS, include, ([[1], [0]], excludes, male))


def _device_columns(
    background: Background, knobs: TargetingKnobs, rng: np.random.Generator
) -> tuple[RuleColumn, RuleColumn]:
    targeted = background.targeted
    everyone = np.zeros(len(targeted), np.int64)
    has_rule = draw_share(rng, knobs.device, targeted)
    chosen = draw_option(rng, [_DEVICE_ODDS], everyone)
    excludes = draw_share(rng, knobs.device_exclude, targeted & ~has_rule)
    excluded = draw_option(rng, [_DEVICE_EXCLUDE_ODDS], everyone)
    include, exclude = (
        (_DEVICE_LISTS, has_rule, chosen),
        (_DEVICE_EXCLUDE_LISTS, excludes, excluded),
    )
    return _columns("device", DEVICES, include, exclude)


def _language_columns(
    background: Background, knobs: TargetingKnobs, rng: np.random.Generator
) -> tuple[RuleColumn, RuleColumn]:
    """Include the language of the home country, often with English."""
    count, english = len(LANGUAGES), LANGUAGES.index("en")
    spoken = np.array([LANGUAGES.index(country.language) for country in COUNTRIES])
    own, targeted = spoken[background.country], background.targeted
    has_rule = draw_share(rng, knobs.language, targeted)
    with_english = (own != english) & (rng.random(len(own)) < 0.4)
    alone = [[each] for each in range(count)]
    paired = [[each, english] for each in range(count)]
    include = alone + paired, has_rule, own + count * with_english
    other = (own + rng.integers(1, count, size=len(own))) % count
    excludes = draw_share(rng, knobs.language_exclude, targeted & ~has_rule)
    return _columns("language", LANGUAGES, include, (alone, excludes, other))
