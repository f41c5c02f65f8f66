"""Users of the population that the ads target, each with 64 random locations."""

import numpy as np

from grace.catalogues.paper.draws import Draws, Stream
from grace.catalogues.paper.rules import region_shares
from grace.catalogues.paper.schema import (
    LOCATION,
    MAX_LOCATIONS,
    NUM_REGIONS,
    REGION,
    SMALL,
    location_name,
    region_name,
)
from grace.catalogues.paper.spec import PaperKnobs

__all__ = ["make_users"]


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
