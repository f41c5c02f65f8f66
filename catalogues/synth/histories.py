"""The clicks behind a request: the person's tastes, near home where there is something."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from grace.catalogues.synth.arrays import Int64Array, offsets_of
from grace.catalogues.synth.browsing import MOST_TASTES, Browsing
from grace.catalogues.synth.catalogue import Catalogue
from grace.catalogues.synth.topics import TOPICS

_SAME_LINE = 0.35  # clicks that stay with the product line of the click before
_TRIES_NEAR_HOME = 4  # draws from a topic until one is from the user's country
_MOST_CLICKS = 80


class Histories(Protocol):
    def draw(self, tastes: list[int], home: int, rng: np.random.Generator) -> Int64Array:
        """Indices of SIDs, oldest first, for one person of these topics and this country."""


def histories_over(catalogue: Catalogue) -> Histories:
    """As the interaction log where tokens are learned: what a trained model can continue."""
    if catalogue.spec.learned_tokens:
        return BrowsedHistories(Browsing.over(catalogue))
    return ShelfHistories.over(catalogue)


@dataclass(frozen=True, slots=True)
class BrowsedHistories:
    browsing: Browsing

    def draw(self, tastes: list[int], home: int, rng: np.random.Generator) -> Int64Array:
        row = (tastes + tastes[:1] * MOST_TASTES)[:MOST_TASTES]
        people = self.browsing.with_favourites(np.array([home]), np.array([row]), rng)
        items, _ = self.browsing.walk(people, _count(rng), rng)
        clicks: Int64Array = items[0]
        return clicks


@dataclass(frozen=True, slots=True)
class ShelfHistories:
    """SIDs of the tastes, often one product line in a row."""

    topic_sids: Int64Array  # [num_sids] by topic
    topic_offsets: Int64Array  # [topics + 1]
    country: Int64Array  # [num_sids] that each SID's first ad is at home in
    sid_line: Int64Array  # [num_sids]
    line_offsets: Int64Array  # [lines + 1] offsets into the SIDs, which are in order of lines

    @classmethod
    def over(cls, catalogue: Catalogue) -> "ShelfHistories":
        tree, topic = catalogue.tree, catalogue.tree.sid_topic
        every = np.arange(catalogue.num_sids)
        homes = catalogue.home_cities(every, catalogue.ad_offsets[:-1])
        return cls(
            topic_sids=np.argsort(topic, kind="stable"),
            topic_offsets=offsets_of(np.bincount(topic, minlength=len(TOPICS))),
            country=catalogue.places.city_country[homes],
            sid_line=tree.sid_line,
            line_offsets=offsets_of(np.bincount(tree.sid_line, minlength=len(tree.line_brand))),
        )

    def draw(self, tastes: list[int], home: int, rng: np.random.Generator) -> Int64Array:
        count = _count(rng)
        clicks = np.empty(count, np.int64)
        for at in range(count):
            if at and rng.random() < _SAME_LINE:
                line = self.sid_line[clicks[at - 1]]
                clicks[at] = rng.integers(*self.line_offsets[line : line + 2])
                continue
            taste = tastes[min(int(rng.exponential(0.8)), len(tastes) - 1)]
            shelf = self.topic_sids[self.topic_offsets[taste] : self.topic_offsets[taste + 1]]
            tried = shelf[rng.integers(len(shelf), size=_TRIES_NEAR_HOME)]
            clicks[at] = tried[int(np.argmax(self.country[tried] == home))]
        return clicks


def _count(rng: np.random.Generator) -> int:
    return int(np.clip(rng.lognormal(2.6, 0.8), 3, _MOST_CLICKS))
