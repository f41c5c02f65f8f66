"""Decide who may see which ad: people in a log meet no other ads.

The rules are those of docs/targeting.md; tests/support/oracle.py defines them on plain sets. The
log ignores flights and hours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from grace.catalogues.arrays import BoolArray, Int64Array
from grace.catalogues.synth.catalogue import Catalogue
from grace.catalogues.synth.rules import ValueLists
from grace.catalogues.synth.spec import LISTED
from grace.index.targeting.rules import places_of
from grace.index.targeting.schema import Attribute, TargetSet

_RULES = tuple(each for each in LISTED if each.name != "hour")


@dataclass(frozen=True, slots=True)
class Eligibility:
    """Which campaigns each user satisfies."""

    catalogue: Catalogue
    sees: BoolArray  # [users, campaigns]

    @classmethod
    def of(
        cls, catalogue: Catalogue, users: Sequence[Mapping[str, Sequence[str]]]
    ) -> "Eligibility":
        columns = {column.name: column for column in catalogue.campaigns.columns}
        sees = np.ones((len(users), len(catalogue.campaigns.topic)), np.bool_)
        for rule in _RULES:
            include, exclude = columns[rule.name], columns[f"{rule.name}_exclude"]
            numbers = {value: number for number, value in enumerate(include.lists.values)}
            for row, user in zip(sees, users, strict=True):
                values = _values(rule, user, numbers)
                # The last element is that of campaigns without a list: NO_RULE is -1.
                row &= np.append(_included(rule, values, include.lists), True)[include.choice]
                row &= np.append(_not_excluded(rule, values, exclude.lists), True)[exclude.choice]
        return cls(catalogue, sees)

    def of_items(self, users: Int64Array, items: Int64Array) -> BoolArray:
        """Return whether users may see any ad of items.   [rows], [rows, n] -> [rows, n]"""
        pairs, offsets, ads = self._ads_of(items.reshape(-1))
        may_see = self._of_ads(np.repeat(users, items.shape[1])[pairs], ads)
        return np.logical_or.reduceat(may_see, offsets[:-1]).reshape(items.shape)

    def draw_ads(
        self, users: Int64Array, items: Int64Array, rng: np.random.Generator
    ) -> Int64Array:
        """Draw an ad of each item that the user may see: there is one.   [pairs]"""
        pairs, offsets, ads = self._ads_of(items)
        order = np.where(self._of_ads(users[pairs], ads), rng.random(len(ads)), 2.0)
        first = np.lexsort((order, pairs))[offsets[:-1]]
        return ads[first]

    def _of_ads(self, users: Int64Array, ads: Int64Array) -> BoolArray:
        may_see: BoolArray = self.sees[users, self.catalogue.ad_campaigns[ads]]
        return may_see

    def _ads_of(self, items: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return the ads of all items, one item after another: item's place, offsets, ads."""
        offsets, ads = places_of(self.catalogue.ad_offsets, items)
        return np.repeat(np.arange(len(items)), np.diff(offsets)), offsets, ads


def _values(
    rule: Attribute | TargetSet, user: Mapping[str, Sequence[str]], numbers: Mapping[str, int]
) -> set[int]:
    """Return the numbers of the user's values. Those without a number share the next one."""
    given = user.get(rule.name, ())
    if isinstance(rule, Attribute):
        given = given or (rule.missing or "",)
    return {numbers.get(value, len(numbers)) for value in given}


def _included(rule: Attribute | TargetSet, values: set[int], lists: ValueLists) -> BoolArray:
    """Return which lists name all values of an attribute, or any of a set.   [lists]"""
    named = _count_named(values, lists)
    return named == len(values) if isinstance(rule, Attribute) else named > 0


def _not_excluded(rule: Attribute | TargetSet, values: set[int], lists: ValueLists) -> BoolArray:
    """Return which lists name none of the values.   [lists]"""
    is_attribute = isinstance(rule, Attribute)
    unknown = len(lists.values) in values if is_attribute else not values
    if unknown and not rule.missing_passes_exclude:
        return np.zeros(len(lists), np.bool_)
    named_none: BoolArray = _count_named(values, lists) == 0
    return named_none


def _count_named(values: set[int], lists: ValueLists) -> Int64Array:
    """Return how many of the values each list names.   [lists]"""
    is_given = np.zeros(len(lists.values) + 1, np.bool_)
    is_given[list(values)] = True
    sums = np.concatenate([[0], np.cumsum(is_given[lists.items])])
    counts: Int64Array = np.diff(sums[lists.offsets])
    return counts
