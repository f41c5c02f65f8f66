"""The users of the study: the catalogue's population, and users for a sweep of selectivity.

The population has a home region and 64 locations each, so most of its users see a quarter of the
ads, and few see one percent. The sweep has as many users in each range of the share of ads that
they may see. Their regions are rarer, and some have more locations.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from grace.catalogues.paper import population as paper
from grace.catalogues.paper.catalogue import PaperCatalogue
from grace.index.matching.exact import ExactMatcher
from grace.index.users.user_rows import UserAttributes, UserEncoder

POPULATION_RANGES = ((0.0, 2.0), (2.0, 10.0), (10.0, 100.0))
SWEEP_RANGES = (
    (0.1, 0.3), (0.3, 1.0), (1.0, 3.0), (3.0, 10.0), (10.0, 30.0), (30.0, 60.0), (60.0, 100.0),
)  # fmt: skip
"""Ranges of the eligible share of all ads, in percent."""

MOST_LOCATIONS = 16384
"""The most locations of a user of the sweep: half of all that ads name."""

AT_ONCE = 16

_SWEEP_SEED = 11
_FIRST_OF_SWEEP = 1 << 20
_CANDIDATES = 24  # per wanted user; some ranges are rare
_SAMPLED_SIDS = 1_000_000
_LEAST_LOCATIONS = 64


class Person(NamedTuple):
    """
    number    the seed of the user's tastes
    share     the share of all ads that this user may see, estimated, in percent
    in_sweep  whether the user was drawn for the sweep; the others were drawn for the population
    """

    number: int
    attributes: UserAttributes
    share: float
    in_sweep: bool


def with_many_locations(catalogue: PaperCatalogue) -> PaperCatalogue:
    """Raise the limit of locations for the sweep, which changes no array of a snapshot."""
    sets = tuple(replace(each, max_request_values=MOST_LOCATIONS) for each in catalogue.schema.sets)
    return replace(catalogue, schema=replace(catalogue.schema, sets=sets))


def make_audience(
    users: int, catalogue: PaperCatalogue, encoder: UserEncoder, matcher: ExactMatcher, sids: int
) -> list[Person]:
    """Return `users` of the population and an eighth as many for each range of the sweep."""
    population = list(paper.make_users(users, catalogue.draws, catalogue.spec.knobs))
    shares = eligible_shares(population, encoder, matcher, sids)
    people = [
        Person(number, user, share, in_sweep=False)
        for number, (user, share) in enumerate(zip(population, shares, strict=True))
    ]
    return people + _sweep(max(1, users // 8), catalogue, encoder, matcher, sids)


def eligible_shares(
    users: Sequence[UserAttributes], encoder: UserEncoder, matcher: ExactMatcher, sids: int
) -> Iterator[float]:
    """Yield the share of ads that each user may see, in percent, over at most a million SIDs."""
    leaves = np.arange(0, sids, -(-sids // _SAMPLED_SIDS), dtype=np.int32)
    for first in range(0, len(users), AT_ONCE):
        some = users[first : first + AT_ONCE]
        scores = np.zeros(len(some) * len(leaves), np.float32)
        offsets = np.arange(len(some) + 1) * len(leaves)
        reply = matcher.match(encoder.encode(some), offsets, np.tile(leaves, len(some)), scores, 0)
        yield from (100 * reply.counts.matched / reply.counts.generated).tolist()


def _sweep(
    wanted: int, catalogue: PaperCatalogue, encoder: UserEncoder, matcher: ExactMatcher, sids: int
) -> list[Person]:
    rng = np.random.default_rng(_SWEEP_SEED)
    found: dict[tuple[float, float], list[Person]] = {each: [] for each in SWEEP_RANGES}
    for _ in range(0, _CANDIDATES * wanted, AT_ONCE):
        candidates = [_candidate(rng, catalogue) for _ in range(AT_ONCE)]
        shares = eligible_shares(candidates, encoder, matcher, sids)
        for user, share in zip(candidates, shares, strict=True):
            for (least, below), own in found.items():
                if least <= share < below and len(own) < wanted:
                    # The same tastes in each range, so that ranges differ in eligibility alone.
                    number = _FIRST_OF_SWEEP + len(own)
                    own.append(Person(number, user, share, in_sweep=True))
        if all(len(own) == wanted for own in found.values()):
            break
    return [person for own in found.values() for person in own]


def _candidate(rng: np.random.Generator, catalogue: PaperCatalogue) -> UserAttributes:
    knobs = catalogue.spec.knobs
    shares = paper.region_shares(knobs)
    rare = shares[1:] ** 0.5  # flatter than the population
    others = 1 + rng.choice(paper.NUM_REGIONS - 1, size=2, replace=False, p=rare / rare.sum())
    regions = ([0], [int(others[0])], others.tolist())[rng.choice(3, p=(0.5, 0.4, 0.1))]
    user = {paper.REGION: [paper.region_name(region) for region in regions]}
    for name, values in paper.SMALL.items():
        user[name] = [f"{name}-{rng.integers(values)}"]
    doublings = (MOST_LOCATIONS // _LEAST_LOCATIONS).bit_length()
    count = _LEAST_LOCATIONS << int(rng.integers(doublings))
    places = rng.choice(knobs.locations, size=count, replace=False)
    user[paper.LOCATION] = [paper.location_name(place) for place in places.tolist()]
    return user
