"""Targeting rules as columns: which campaign names which list of values, each list stored once.

The background of a campaign is what its rules follow from: brand, topic, home market and city.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from grace.catalogues.arrays import (
    BoolArray,
    Int32Array,
    Int64Array,
    draw_share,
    frozen,
    offsets_of,
    pick_by_share,
    position_in_run,
)
from grace.catalogues.synth.places import COUNTRIES, Places
from grace.catalogues.synth.sid_tree import SidTree
from grace.catalogues.synth.spec import Share
from grace.catalogues.synth.topics import TOPICS, Reach

NO_RULE = -1


@dataclass(frozen=True, slots=True)
class ValueLists:
    """Distinct lists over `values`: list i holds values[items[offsets[i]:offsets[i + 1]]]."""

    values: tuple[str, ...]
    offsets: Int64Array  # [lists + 1]
    items: Int32Array

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def strings(self, index: int) -> list[str]:
        chosen = self.items[self.offsets[index] : self.offsets[index + 1]]
        return [self.values[item] for item in chosen]


@dataclass(frozen=True, slots=True)
class RuleColumn:
    """One Parquet column: `choice[c]` is campaign c's list in `lists`, or NO_RULE."""

    name: str
    lists: ValueLists
    choice: Int32Array  # [campaigns]


@dataclass(frozen=True, slots=True)
class Ranges:
    """One list per row: `count` neighbours from `first` on, wrapping inside a window of values.

    Places and audiences are numbered so that what belongs together is adjacent: "five cities of
    Bayern from Augsburg on" is such a range. All arrays are [rows]; `count` <= `window`.
    """

    window_start: Int64Array
    window: Int64Array
    first: Int64Array  # 0 <= first < window
    count: Int64Array


def listed_column(
    name: str,
    values: Sequence[str],
    lists: Sequence[Sequence[int]],
    has_rule: BoolArray,
    chosen: Int64Array,
) -> RuleColumn:
    """Return a column of the given lists; campaigns with a rule have the list number `chosen`."""
    choice = np.where(has_rule, chosen, NO_RULE)
    items = np.array([item for each in lists for item in each], np.int32)
    offsets = offsets_of(np.array([len(each) for each in lists], np.int64))
    table = ValueLists(tuple(values), offsets, frozen(items))
    return RuleColumn(name, table, frozen(choice.astype(np.int32)))


def ranged_column(
    name: str, values: Sequence[str], ranges: Ranges, has_rule: BoolArray
) -> RuleColumn:
    """A column of ranges, for the campaigns that have a rule; equal ranges become one list."""
    keys = np.stack(_normal_form(ranges), axis=1)[has_rule]
    distinct, list_of_row = np.unique(keys, axis=0, return_inverse=True)
    window_start, window, first, count = distinct.T
    offsets = offsets_of(count)
    row = np.repeat(np.arange(len(distinct)), count)
    items = window_start[row] + (first[row] + position_in_run(offsets)) % window[row]
    choice = np.full(len(has_rule), NO_RULE, np.int32)
    choice[has_rule] = list_of_row.reshape(-1)
    table = ValueLists(tuple(values), offsets, frozen(items.astype(np.int32)))
    return RuleColumn(name, table, frozen(choice))


def _normal_form(ranges: Ranges) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """(window_start, window, first, count), the window no wider than a range without a wrap."""
    first = np.where(ranges.count == ranges.window, 0, ranges.first)
    straight = first + ranges.count <= ranges.window
    return (
        np.where(straight, ranges.window_start + first, ranges.window_start),
        np.where(straight, ranges.count, ranges.window),
        np.where(straight, 0, first),
        ranges.count,
    )


REACHES = get_args(Reach)
TOPIC_REACH = np.array([REACHES.index(topic.reach) for topic in TOPICS])
_LOCATED_ODDS = {"local": 1.0, "national": 0.35, "global": 0.08}

OPEN_CAMPAIGN = 0  # the campaign without any rule
_LINES_PER_CAMPAIGN = 2  # product lines of a brand that share a campaign


@dataclass(frozen=True, slots=True)
class Background:
    """One row per campaign, adjacent for a brand. Row OPEN_CAMPAIGN belongs to no brand."""

    brand_campaigns: Int64Array  # [brands + 1] offsets into the campaigns
    brand: Int64Array
    topic: Int64Array
    country: Int64Array
    city: Int64Array
    located: BoolArray  # has a location list
    targeted: BoolArray  # may have rules: all but OPEN_CAMPAIGN


def make_background(tree: SidTree, places: Places, rng: np.random.Generator) -> Background:
    per_brand = 1 + np.diff(tree.brand_lines) // _LINES_PER_CAMPAIGN
    brand_campaigns = offsets_of(per_brand) + 1
    brand = np.concatenate([[0], np.repeat(np.arange(len(per_brand)), per_brand)])
    size = len(brand)
    topic = tree.brand_topic[brand]
    market_shares = np.array([country.weight for country in COUNTRIES])
    brand_home = pick_by_share(rng, market_shares, len(per_brand))
    elsewhere = pick_by_share(rng, market_shares, size)
    stays = rng.random(size) < Share.HOME_MARKET_KEPT
    country = np.where(stays, brand_home[brand], elsewhere)
    targeted = np.arange(size) != OPEN_CAMPAIGN
    odds = np.array([_LOCATED_ODDS[reach] for reach in REACHES])[TOPIC_REACH[topic]]
    return Background(
        brand_campaigns=brand_campaigns,
        brand=brand,
        topic=topic,
        country=country,
        city=pick_cities(places, country, rng),
        located=draw_share(rng, Share.LOCATION, odds * targeted),
        targeted=targeted,
    )


def pick_cities(places: Places, country: Int64Array, rng: np.random.Generator) -> Int64Array:
    """Draw a city of each row's country, large ones more often."""
    # Shares sum to 1 in each country, so the cumulative sum passes c at the end of country c - 1.
    cumulative = np.cumsum(places.city_shares)
    city = np.searchsorted(cumulative, country + rng.random(len(country)), side="right")
    return np.clip(city, places.country_cities[country], places.country_cities[country + 1] - 1)
