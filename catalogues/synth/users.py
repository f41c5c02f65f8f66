"""The users and their requests: people at home where the ads are, with tastes and a history.

Nearly one in two has what real traffic has and tidy data lacks: a country or an attribute that the
schema does not know, no location, dozens of places, missing attributes, no history.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from grace.catalogues.synth.browsing import MOST_CLICKS, NOTHING, Browsing, Kind, User, click_count
from grace.catalogues.synth.catalogue import Catalogue
from grace.catalogues.synth.places import COUNTRIES, Places, slug
from grace.catalogues.synth.spec import (
    ACTION_IDS,
    ACTION_ODDS,
    AGES,
    DEVICES,
    HOUR_MS,
    MAX_REQUEST_VALUES,
    NOW_MS,
    Stream,
)
from grace.catalogues.synth.topics import TOPICS, Topic

# Of every 16 users, each special kind once.
_KINDS = {
    1: Kind.TRAVELLER,
    3: Kind.ABROAD,
    5: Kind.UNPLACED,
    7: Kind.ANONYMOUS,
    9: Kind.MIGRANT,
    11: Kind.NEWCOMER,
    13: Kind.MEMBER,
}
_ABROAD = ("BR", "pt", "sao-paulo", ("br", "br/sp", "br/sp/sao-paulo"))

_AGE_ODDS = {
    "young": (0.50, 0.30, 0.10, 0.05, 0.03, 0.02),
    "older": (0.03, 0.07, 0.15, 0.25, 0.25, 0.25),
    "adult": (0.02, 0.28, 0.25, 0.20, 0.15, 0.10),
}
_USUAL_AGES = (0.18, 0.26, 0.20, 0.15, 0.12, 0.09)
_DEVICE_ODDS = (0.62, 0.08, 0.25, 0.05)
_NO_CLICKS = np.zeros(0, np.int64)


def make_users(catalogue: Catalogue) -> list[User]:
    """Return `spec.num_users` people, whose clicks are made like those of the log."""
    rng = catalogue.spec.rng(Stream.USERS)
    kinds = [_KINDS.get(number % 16, Kind.ORDINARY) for number in range(catalogue.spec.num_users)]
    users, browsing = draw_users(catalogue, kinds, rng), Browsing.over(catalogue)
    people = browsing.people(users, np.arange(len(users)), rng)
    items, _ = browsing.walk(people, MOST_CLICKS, rng)
    return [
        user
        if user.kind is Kind.NEWCOMER or history[0] == NOTHING
        else replace(user, clicks=history[: click_count(rng)])
        for user, history in zip(users, items, strict=True)
    ]


def draw_users(catalogue: Catalogue, kinds: Sequence[Kind], rng: np.random.Generator) -> list[User]:
    """Draw people without clicks, each with the home of a random ad."""
    ads = rng.integers(catalogue.num_ads, size=len(kinds))
    ad_sids = np.searchsorted(catalogue.ad_offsets, ads, side="right") - 1
    cities = catalogue.home_cities(ad_sids, ads)
    topics, tastes = np.unique(catalogue.tree.sid_topic), catalogue.tree.sid_topic[ad_sids].tolist()
    return [
        _user(catalogue, kind, city, [taste, *rng.choice(topics, rng.integers(0, 3)).tolist()], rng)
        for kind, city, taste in zip(kinds, cities.tolist(), tastes, strict=True)
    ]


def _user(
    catalogue: Catalogue, kind: Kind, city: int, tastes: list[int], rng: np.random.Generator
) -> User:
    tastes = list(dict.fromkeys(tastes))
    topics = [TOPICS[taste] for taste in tastes]
    home = int(catalogue.places.city_country[city])
    device = DEVICES[rng.choice(len(DEVICES), p=_DEVICE_ODDS)]
    attributes = _attributes(kind, home, topics, device, rng)
    attributes["location"] = _location(kind, catalogue.places, city, rng)
    attributes["audience"] = _audiences(topics, catalogue.spec.lookalikes, rng)
    town = _ABROAD[2] if kind is Kind.ABROAD else slug(catalogue.places.city_names[city])
    parts = [slug(topics[0].name), town, str(kind)]
    return User(
        name="-".join(part for part in parts if part),
        kind=kind,
        attributes=attributes,
        device=device,
        hour=int(rng.integers(24)),
        tastes=tastes,
        clicks=_NO_CLICKS,
    )


def _attributes(
    kind: Kind, home: int, topics: list[Topic], device: str, rng: np.random.Generator
) -> dict[str, tuple[str, ...]]:
    country = COUNTRIES[home]
    lean = topics[0].lean
    age = AGES[rng.choice(len(AGES), p=_AGE_ODDS.get(lean, _USUAL_AGES))]
    gender = lean if lean in ("female", "male") else str(rng.choice(["female", "male"]))
    attributes: dict[str, tuple[str, ...]] = {
        "country": (country.code,),
        "age": (age,),
        "gender": (gender if rng.random() < 0.9 else "unknown",),
        "device": (device,) if rng.random() < 0.95 else (),
        "language": (country.language,),
    }
    if kind is Kind.ANONYMOUS:
        del attributes["age"]
        attributes["gender"] = ()
    elif kind is Kind.ABROAD:
        attributes["country"], attributes["language"] = (_ABROAD[0],), (_ABROAD[1],)
    elif kind is Kind.MIGRANT:
        second = COUNTRIES[(home + 1) % len(COUNTRIES)]
        attributes["country"] = (country.code, second.code)
        attributes["language"] = tuple(dict.fromkeys((country.language, second.language)))
    elif kind is Kind.MEMBER:
        attributes["loyalty"] = ("gold",)
    return attributes


def _location(kind: Kind, places: Places, city: int, rng: np.random.Generator) -> tuple[str, ...]:
    """The home, from country to district, then places visited."""
    if kind is Kind.UNPLACED:
        return ()
    if kind is Kind.ABROAD:
        return _ABROAD[3]
    at_home = places.path(city, int(rng.integers(max(1, places.districts_per_city))))
    if kind is Kind.TRAVELLER:
        visited = rng.permutation(len(places.city_names))
        found = dict.fromkeys(at_home)
        for other in visited:
            found.update(dict.fromkeys(places.path(int(other))))
        return tuple(found)[:MAX_REQUEST_VALUES]
    country = int(places.city_country[city])
    cities = places.country_cities
    visited = rng.integers(cities[country], cities[country + 1], size=rng.integers(0, 4))
    elsewhere = [place for other in visited for place in places.path(int(other))]
    return tuple(dict.fromkeys([*at_home, *elsewhere]))


def _audiences(topics: list[Topic], lookalikes: int, rng: np.random.Generator) -> tuple[str, ...]:
    """One interest per taste; for some users also recent purchases and numbered audiences."""
    found = [f"audience:{slug(str(rng.choice(topic.audiences)))}" for topic in topics]
    if rng.random() < 0.3:
        found.append(f"audience:recent-buyers-of-{slug(topics[0].name)}")
    if lookalikes:
        numbers = rng.integers(1, lookalikes + 1, size=rng.integers(0, 6))
        found += [f"audience:lookalike-{number:05}" for number in numbers]
    return tuple(dict.fromkeys(found)) if rng.random() < 0.85 else ()


MAX_ADS = 100
DEVICE_MODELS = 40  # cardinality of the categorical feature; ids run from 1
_MODELS_PER_DEVICE = (DEVICE_MODELS - 1) // len(DEVICES)
_DENIED_ADS = 5


def make_requests(catalogue: Catalogue) -> Iterator[dict[str, Any]]:
    """One request for each user, in the JSON form of the Retrieve API."""
    rng = catalogue.spec.rng(Stream.REQUESTS)
    for number, user in enumerate(make_users(catalogue)):
        request: dict[str, Any] = {
            "request_id": f"u{number:03}-{user.name}",
            "sid_space": catalogue.spec.sid_space,
            "user": {name: {"values": list(values)} for name, values in user.attributes.items()},
            "features": _features(catalogue, user, rng),
            "max_ads": MAX_ADS,
        }
        if user.kind is Kind.MEMBER:
            seen = np.unique(catalogue.ad_offsets[user.clicks])
            denied = catalogue.ad_ids[seen[:_DENIED_ADS]]
            request["exclude_ads"] = [str(ad_id) for ad_id in denied]
        if number % 4 == 0:
            request["include_sids"] = True
        yield request


def _features(catalogue: Catalogue, user: User, rng: np.random.Generator) -> dict[str, Any]:
    count = len(user.clicks)
    first_model = 1 + DEVICES.index(user.device) * _MODELS_PER_DEVICE
    model = rng.integers(first_model, first_model + _MODELS_PER_DEVICE)
    features: dict[str, Any] = {}
    if not catalogue.spec.clicks_only:
        features["dense"] = {"hour": {"values": [user.hour]}}
        features["categorical"] = {"device": {"ids": [str(model)]}}
    if count:
        ages_ms = np.cumsum(rng.exponential(8 * HOUR_MS, count) + 1000).astype(np.int64)
        actions = rng.choice(ACTION_IDS, count, p=ACTION_ODDS)
        clicks: dict[str, Any] = {
            "sids": catalogue.tree.sids[user.clicks].reshape(-1).tolist(),
            "timestamps_ms": [str(NOW_MS - age) for age in ages_ms[::-1]],
        }
        if not catalogue.spec.clicks_only:
            clicks["side"] = {"action": {"ids": [str(action) for action in actions]}}
        features["sequences"] = {"clicks": clicks}
    return features
