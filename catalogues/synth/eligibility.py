"""Decide who may see which ad, on arrays: people in a log meet no other ads.

The rules are those of docs/targeting.md; tests/support/oracle.py defines them on plain sets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from grace.catalogues.arrays import BoolArray, Int64Array, offsets_of, position_in_run
from grace.catalogues.synth.catalogue import Catalogue
from grace.catalogues.synth.rules import NO_RULE, RuleColumn
from grace.catalogues.synth.spec import SCHEMA
from grace.index.targeting.schema import Attribute, TargetSet

UNNAMED = -1  # a value that no rule names; also fills rows up
OTHER = -2  # an attribute's value that the schema does not know, or no value at all
_RULES: tuple[Attribute | TargetSet, ...] = (*SCHEMA.attributes, *SCHEMA.sets)

Values = dict[str, Int64Array]
"""For each attribute and set [people, most values]: a value's number in its rule column."""


@dataclass(frozen=True, slots=True)
class _Test:
    """One list of an attribute's or set's rules, and the values that each campaign names in it."""

    rule: Attribute | TargetSet
    include: bool
    column: RuleColumn
    named: Int64Array  # list number * number of values + value, ascending

    @classmethod
    def of(cls, rule: Attribute | TargetSet, column: RuleColumn) -> "_Test":
        lists = column.lists
        list_of = np.repeat(np.arange(len(lists)), np.diff(lists.offsets))
        named = list_of * len(lists.values) + lists.items
        return cls(rule, rule.name == column.name, column, np.sort(named))

    def passes(self, campaigns: Int64Array, values: Int64Array) -> BoolArray:
        """Test campaigns that have such a list.   [pairs], [pairs, most values] -> [pairs]"""
        lists = self.column.choice[campaigns, np.newaxis].astype(np.int64)
        keys = lists * len(self.column.lists.values) + values
        place = np.minimum(np.searchsorted(self.named, keys), len(self.named) - 1)
        named = (values >= 0) & (self.named[place] == keys)
        passes: BoolArray
        if not self.include:
            fails = (values == OTHER) & (not self.rule.missing_passes_exclude)
            passes = ~(named | fails).any(axis=1)
        elif isinstance(self.rule, TargetSet):
            passes = named.any(axis=1)
        else:
            passes = (named | (values == UNNAMED)).all(axis=1)
        return passes


class Eligibility:
    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        columns = {column.name: column for column in catalogue.campaigns.columns}
        self._tests = [
            _Test.of(rule, columns[name])
            for rule in _RULES
            for name in (rule.name, f"{rule.name}_exclude")
        ]
        self._numbers = {
            name: {value: number for number, value in enumerate(columns[name].lists.values)}
            for name in SCHEMA.names
        }

    def values_of(self, users: Sequence[Mapping[str, Sequence[str]]]) -> Values:
        """Return the values of users, whose attributes and sets are strings."""
        values = {}
        for rule in _RULES:
            numbers, unknown, missing = self._numbers[rule.name], UNNAMED, OTHER
            if isinstance(rule, Attribute):
                unknown, missing = OTHER, numbers.get(rule.missing or "", OTHER)
            rows = [
                [numbers.get(value, unknown) for value in user.get(rule.name, ())] or [missing]
                for user in users
            ]
            values[rule.name] = np.array(list(zip_longest(*rows, fillvalue=UNNAMED))).T
        return values

    def of_ads(self, values: Values, people: Int64Array, ads: Int64Array) -> BoolArray:
        """Return for each pair of a person and an ad whether the person may see it.   [pairs]"""
        campaigns, left = self.catalogue.ad_campaigns[ads], np.arange(len(ads))
        for test in self._tests:
            kept = test.column.choice[campaigns[left]] == NO_RULE
            rows = left[~kept]
            kept[~kept] = test.passes(campaigns[rows], values[test.rule.name][people[rows]])
            left = left[kept]
        may_see = np.zeros(len(ads), np.bool_)
        may_see[left] = True
        return may_see

    def of_items(self, values: Values, items: Int64Array) -> BoolArray:
        """Return whether people may see any ad of items.   [people, n]"""
        people = np.repeat(np.arange(len(items)), items.shape[1])
        pairs, offsets, ads = self._ads_of(items.reshape(-1))
        may_see = self.of_ads(values, people[pairs], ads)
        return np.logical_or.reduceat(may_see, offsets[:-1]).reshape(items.shape)

    def draw_ads(
        self, values: Values, people: Int64Array, items: Int64Array, rng: np.random.Generator
    ) -> Int64Array:
        """Draw an ad of each item that the person may see: there is one.   [pairs]"""
        pairs, offsets, ads = self._ads_of(items)
        order = np.where(self.of_ads(values, people[pairs], ads), rng.random(len(ads)), 2.0)
        first = np.lexsort((order, pairs))[offsets[:-1]]
        return ads[first]

    def _ads_of(self, items: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return the ads of all items, one item after another: item's place, offsets, ads."""
        first = self.catalogue.ad_offsets[items]
        offsets = offsets_of(self.catalogue.ad_offsets[items + 1] - first)
        pairs = np.repeat(np.arange(len(items)), np.diff(offsets))
        return pairs, offsets, first[pairs] + position_in_run(offsets)
