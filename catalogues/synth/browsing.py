"""Simulate people in a catalogue: tastes, favourites, sessions, and items seen before.

A session opens with one of the person's tastes: a topic, often a favourite brand in it. A further
step starts from one of the items just seen, mostly the last one, and goes to the same product line,
brand, product, topic or family. Within such a group an item is drawn by its popularity, which is
Zipf's law over the catalogue, preferably of a favourite brand. Some steps return to an item seen
before. A person meets only items with an ad that the person may see.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from grace.catalogues.arrays import BoolArray, FloatArray, Int64Array, offsets_of, pick_by_share
from grace.catalogues.synth.catalogue import Catalogue
from grace.catalogues.synth.eligibility import Eligibility
from grace.catalogues.synth.learned_tokens import TOPIC_FAMILY
from grace.catalogues.synth.spec import Stream
from grace.catalogues.synth.topics import PRODUCTS_PER_TOPIC, TOPICS

ZIPF_EXPONENT = 0.8  # of the items' popularity by rank
MOST_TASTES = 3
NO_BRAND = -1
NOTHING = -1  # the item of a person who may see none

_NEW_SESSION = 0.25
_STEPS = ("line", "brand", "product", "topic", "family")
_STEP_ODDS = np.array([0.30, 0.25, 0.25, 0.14, 0.06])
_TASTE_ODDS = np.array([0.6, 0.28, 0.12])  # the first taste is the strongest
_HAS_FAVOURITE = 0.6  # tastes that have a favourite brand
_KEEPS_TO_FAVOURITE = 0.7  # sessions of such a taste that open with it
_TRIES = 6  # draws from a group, of which one that the person may see is chosen
_ROUNDS = 50  # of tries over the catalogue, until the person may see one
_RETURNS = 0.15  # steps, and openings of sessions, that go back to an item seen before
# Of the items seen before the last one, newest first.
_RETURN_ODDS: FloatArray = np.power(0.85, np.arange(9))
# Of the items seen, newest first, as the start of a step.
_START_ODDS: FloatArray = np.power(0.6, np.arange(6))

MOST_CLICKS = 80  # in a request


class Kind(StrEnum):
    ORDINARY = ""
    ABROAD = "abroad"  # lives in a country that the schema does not know
    UNPLACED = "unplaced"  # no location at all
    ANONYMOUS = "anonymous"  # neither age nor gender
    TRAVELLER = "traveller"  # as many places as a request may name
    NEWCOMER = "newcomer"  # no history
    MIGRANT = "migrant"  # two countries and two languages
    MEMBER = "member"  # an attribute that the schema does not know, and ads seen too often


@dataclass(frozen=True, slots=True)
class User:
    name: str  # as in a request id: tastes first, then home
    kind: Kind
    attributes: dict[str, tuple[str, ...]]  # attributes and sets; an empty tuple is a missing value
    device: str  # what the request came from, whether or not its targeting attribute is set
    hour: int
    tastes: list[int]  # topics, the strongest first
    clicks: Int64Array  # indices of SIDs, oldest first


@dataclass(frozen=True, slots=True)
class People:
    """One row per person; a person with fewer tastes repeats the first one."""

    eligibility: Eligibility
    user: Int64Array  # [people] rows of the eligibility
    topics: Int64Array  # [people, MOST_TASTES]
    brands: Int64Array  # [people, MOST_TASTES] the taste's favourite brand, or NO_BRAND

    def __len__(self) -> int:
        return len(self.topics)

    def rows(self, which: Int64Array) -> "People":
        return People(self.eligibility, self.user[which], self.topics[which], self.brands[which])


@dataclass(frozen=True, slots=True)
class _Shelf:
    """Items by group, to be drawn by popularity."""

    group_of: Int64Array  # [items]
    items: Int64Array  # [items] by group
    offsets: Int64Array  # [groups + 1] offsets into `items`
    ends: FloatArray  # [items + 1] popularity before each of `items`, and in all

    @classmethod
    def of(cls, group_of: Int64Array, popularity: FloatArray) -> "_Shelf":
        items = np.argsort(group_of, kind="stable")
        ends = np.concatenate([[0.0], np.cumsum(popularity[items])])
        return cls(group_of, items, offsets_of(np.bincount(group_of)), ends)

    def draw(self, group: Int64Array, rng: np.random.Generator) -> Int64Array:
        """Draw _TRIES items of each group, which is not empty.   [n] -> [n, tries]"""
        first, last = self.offsets[group, np.newaxis], self.offsets[group + 1, np.newaxis] - 1
        low, high = self.ends[first], self.ends[last + 1]
        drawn = low + rng.random((len(group), _TRIES)) * (high - low)
        place = np.searchsorted(self.ends, drawn, side="right") - 1
        return self.items[np.clip(place, first, last)]


@dataclass(frozen=True, slots=True)
class Browsing:
    """The process on one catalogue; an item is the index of a SID."""

    catalogue: Catalogue
    brand: Int64Array  # [items]
    topic_brands: Int64Array  # [topics + 1] offsets into the brands
    shelves: dict[str, _Shelf]  # by the names of _STEPS, and the whole catalogue

    @classmethod
    def over(cls, catalogue: Catalogue) -> "Browsing":
        tree, rng = catalogue.tree, catalogue.spec.rng(Stream.POPULARITY)
        by_rank = np.power(np.arange(1.0, catalogue.num_sids + 1), -ZIPF_EXPONENT)
        popularity = by_rank[rng.permutation(catalogue.num_sids)]
        brand = tree.line_brand[tree.sid_line]
        topic = tree.brand_topic[brand]
        groups = {
            "line": tree.sid_line,
            "brand": brand,
            "product": topic * PRODUCTS_PER_TOPIC + tree.line_product[tree.sid_line],
            "topic": topic,
            "family": TOPIC_FAMILY[topic],
            "catalogue": np.zeros_like(topic),
        }
        return cls(
            catalogue=catalogue,
            brand=brand,
            topic_brands=offsets_of(np.bincount(tree.brand_topic, minlength=len(TOPICS))),
            shelves={name: _Shelf.of(group, popularity) for name, group in groups.items()},
        )

    def people(
        self, persons: Sequence[User], which: Int64Array, rng: np.random.Generator
    ) -> People:
        """Make people like the persons of each row, with favourite brands of their own."""
        topics = np.array([(each.tastes + each.tastes[:1] * 2)[:MOST_TASTES] for each in persons])
        eligibility = Eligibility.of(self.catalogue, [each.attributes for each in persons])
        topics = topics[which]
        first, brands = self.topic_brands[topics], np.diff(self.topic_brands)[topics]
        favourite = first + rng.integers(brands)
        has_favourite = rng.random(topics.shape) < _HAS_FAVOURITE
        brands = np.where(has_favourite, favourite, NO_BRAND)
        return People(eligibility, which, topics, brands)

    def walk(
        self, people: People, steps: int, rng: np.random.Generator
    ) -> tuple[Int64Array, BoolArray]:
        """Return items, and which of them open a session.   [people, steps] each

        All items of a person who may see none are NOTHING.
        """
        items = np.empty((len(people), steps), np.int64)
        opens = rng.random((len(people), steps)) < _NEW_SESSION
        opens[:, 0] = True
        items[:, 0] = self._first(people, rng)
        for step in range(1, steps):
            seen, before, opening = items[:, :step], items[:, step - 1], self._opening(people, rng)
            start = _one_of(seen, _START_ODDS, rng)
            tries = np.where(opens[:, step, np.newaxis], opening, self._like(start, rng))
            items[:, step] = self._preferred(tries, before, people)
            if step > 1:
                returns = rng.random(len(people)) < _RETURNS
                items[returns, step] = _one_of(seen[returns, :-1], _RETURN_ODDS, rng)
            # Small groups may hold no other item for this person.
            for name in ("family", "catalogue"):
                self._replace(items[:, step], before, people, name, rng)
        return items, opens

    def _first(self, people: People, rng: np.random.Generator) -> Int64Array:
        nothing = np.full(len(people), NOTHING)
        items = self._preferred(self._opening(people, rng), nothing, people)
        for _ in range(_ROUNDS):
            self._replace(items, nothing, people, "catalogue", rng)
        return items

    def _replace(
        self,
        items: Int64Array,
        before: Int64Array,
        people: People,
        shelf: str,
        rng: np.random.Generator,
    ) -> None:
        """Draw the items that equal those before again, in place, from groups of a shelf."""
        if len(same := np.flatnonzero(items == before)):
            group = self.shelves[shelf].group_of[before[same]]
            tries = self.shelves[shelf].draw(group, rng)
            items[same] = self._preferred(tries, before[same], people.rows(same))

    def _opening(self, people: People, rng: np.random.Generator) -> Int64Array:
        """Draw items that a session may open with.   [people, tries]"""
        row, taste = np.arange(len(people)), pick_by_share(rng, _TASTE_ODDS, len(people))
        topic, brand = people.topics[row, taste], people.brands[row, taste]
        tries = self.shelves["topic"].draw(topic, rng)
        keeps = (rng.random(len(people)) < _KEEPS_TO_FAVOURITE) & (brand != NO_BRAND)
        tries[keeps] = self.shelves["brand"].draw(brand[keeps], rng)
        return tries

    def _like(self, before: Int64Array, rng: np.random.Generator) -> Int64Array:
        """Draw items that are like those before.   [people] -> [people, tries]"""
        kind = pick_by_share(rng, _STEP_ODDS, len(before))
        tries = np.empty((len(before), _TRIES), np.int64)
        for number, name in enumerate(_STEPS):
            shelf, rows = self.shelves[name], np.flatnonzero(kind == number)
            tries[rows] = shelf.draw(shelf.group_of[before[rows]], rng)
        return tries

    def _preferred(self, tries: Int64Array, before: Int64Array, people: People) -> Int64Array:
        """Choose another item that the person may see, preferably of a favourite brand.

        [people, tries] -> [people]: the item before, if none of the tries is one.
        """
        may_see = people.eligibility.of_items(people.user, tries)
        suits = (tries != before[:, np.newaxis]) & may_see
        of_brand = self.brand[tries][:, :, np.newaxis] == people.brands[:, np.newaxis]
        best = np.argmax(2 * suits + suits * of_brand.any(axis=2), axis=1)
        row = np.arange(len(tries))
        return np.where(suits[row, best], tries[row, best], before)


def _one_of(seen: Int64Array, odds: FloatArray, rng: np.random.Generator) -> Int64Array:
    """Draw one of the newest items that each person saw.   [people, n] -> [people]"""
    newest_first = seen[:, ::-1][:, : len(odds)]
    which = pick_by_share(rng, odds[: newest_first.shape[1]], len(seen))
    chosen: Int64Array = newest_first[np.arange(len(seen)), which]
    return chosen


def click_count(rng: np.random.Generator) -> int:
    return int(np.clip(rng.lognormal(2.6, 0.8), 3, MOST_CLICKS))
