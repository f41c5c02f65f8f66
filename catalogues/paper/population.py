"""What the ads are targeted by, 448 bits in seven words and one set, and the users who have it."""

import numpy as np

from grace.catalogues.arrays import FloatArray
from grace.catalogues.paper.draws import Draws, Stream
from grace.catalogues.paper.spec import PaperKnobs
from grace.index.targeting.schema import Attribute, TargetingSchema, TargetSet

REGION = "region"
LOCATION = "location"
NUM_REGIONS = 398
MAX_LOCATIONS = 64

SMALL = {"age": 10, "gender": 2, "device": 4, "system": 5, "language": 12, "placement": 10}
"""The small attributes and how many values each has."""


def region_name(region: int) -> str:
    return f"region-{region:03}"


def location_name(location: int) -> str:
    return f"place-{location:05}"


def paper_schema() -> TargetingSchema:
    small = (
        Attribute(name, tuple(f"{name}-{value}" for value in range(values)))
        for name, values in SMALL.items()
    )
    regions = Attribute(REGION, tuple(region_name(region) for region in range(NUM_REGIONS)))
    return TargetingSchema(
        attributes=(regions, *small),
        sets=(TargetSet(LOCATION, 256, 4, MAX_LOCATIONS),),
        hash_seed=7,
        entities=("campaign", "advertiser"),
    )


def location_names(knobs: PaperKnobs) -> list[str]:
    return [location_name(location) for location in range(knobs.locations)]


def region_shares(knobs: PaperKnobs) -> FloatArray:
    """The population by region: a home region, and a Zipf law over the others."""
    others = np.arange(1.0, NUM_REGIONS) ** -knobs.region_power
    shares: FloatArray = np.append(
        knobs.home_region, (1 - knobs.home_region) * others / others.sum()
    )
    return shares


def make_users(count: int, draws: Draws, knobs: PaperKnobs) -> list[dict[str, list[str]]]:
    """Regions by population; the small attributes evenly; locations evenly and without repeats."""
    numbers = np.arange(count)
    cumulative = np.cumsum(region_shares(knobs))
    drawn = np.searchsorted(cumulative, draws.uniform(Stream.USER, numbers << 4))
    regions = np.minimum(drawn, NUM_REGIONS - 1)
    users = [{REGION: [region_name(region)]} for region in regions.tolist()]
    for place, (name, values) in enumerate(SMALL.items(), 1):
        chosen = draws.below(Stream.USER, numbers << 4 | place, values)
        for user, value in zip(users, chosen.tolist(), strict=True):
            user[name] = [f"{name}-{value}"]
    keys = numbers[:, np.newaxis] << 8 | np.arange(2 * MAX_LOCATIONS)
    visited = draws.below(Stream.USER_LOCATION, keys, knobs.locations)
    for user, places in zip(users, visited.tolist(), strict=True):
        distinct = list(dict.fromkeys(places))[:MAX_LOCATIONS]
        user[LOCATION] = [location_name(place) for place in distinct]
    return users
