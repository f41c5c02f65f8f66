"""Which user may see which ad, on raw strings and Python sets: the definition for all tests.

There are no bits, rows, ids or arrays here. Read it from top to bottom to know what eligible means.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from grace.index.targeting.schema import Attribute, TargetingSchema, TargetSet

Rule = tuple[frozenset[str] | None, frozenset[str] | None]
"""An ad's rule for one attribute or set: (include, exclude). None: no such list."""

User = Mapping[str, Sequence[str]]
"""Name -> values, as a request sends them; an absent name or an empty list means missing."""

NO_RULE: Rule = (None, None)


@dataclass(frozen=True)
class RawAd:
    ad_id: int
    sid: tuple[int, ...]
    weight: float = 0.0
    rules: Mapping[str, Rule] = field(default_factory=dict)
    entities: Mapping[str, int] = field(default_factory=dict)


def eligible(schema: TargetingSchema, ad: RawAd, user: User) -> bool:
    """Every attribute test passes and every set's lists hold."""
    return first_failure(schema, ad, user) is None


def first_failure(schema: TargetingSchema, ad: RawAd, user: User) -> str | None:
    """Why the user may not see the ad: "attributes" or the first failing set; None if they may."""
    for attribute in schema.attributes:
        rule = ad.rules.get(attribute.name, NO_RULE)
        if not attribute_passes(attribute, rule, user.get(attribute.name, ())):
            return "attributes"
    for target_set in schema.sets:
        rule = ad.rules.get(target_set.name, NO_RULE)
        if not set_passes(target_set, rule, user.get(target_set.name, ())):
            return target_set.name
    return None


def attribute_passes(attribute: Attribute, rule: Rule, user_values: Sequence[str]) -> bool:
    """All of the user's values must be allowed. A user without one has what `missing` names."""
    if user_values:
        values = set(user_values)
    elif attribute.missing is not None:
        values = {attribute.missing}
    else:
        return other_is_allowed(attribute, rule)
    return all(value_is_allowed(attribute, rule, value) for value in values)


def value_is_allowed(attribute: Attribute, rule: Rule, value: str) -> bool:
    if value not in attribute.values:
        return other_is_allowed(attribute, rule)
    include, exclude = rule
    if include is not None and value not in include:
        return False
    return not (exclude and value in exclude)


def other_is_allowed(attribute: Attribute, rule: Rule) -> bool:
    """`other`: a value that the schema does not list, or none at all."""
    include, exclude = rule
    if include is not None:
        return False
    if exclude:
        return attribute.missing_passes_exclude
    return True


def set_passes(target_set: TargetSet, rule: Rule, user_values: Sequence[str]) -> bool:
    """The user has one of the included values, and none of the excluded ones."""
    include, exclude = rule
    if include is not None and include.isdisjoint(user_values):
        return False
    if exclude:
        if not user_values:
            return target_set.missing_passes_exclude
        return exclude.isdisjoint(user_values)
    return True


def is_excluded(ad: RawAd, exclude: Mapping[str, Iterable[int]]) -> bool:
    """A request's `exclude` names an entity to which the ad belongs."""
    return any(ad.entities.get(name) in set(ids) for name, ids in exclude.items())


@dataclass(frozen=True)
class WithinLimits:
    """`places` are those of the returned ads; `left_out` ads have an entity at its limit."""

    places: tuple[int, ...]
    left_out: int
    truncated: bool  # there was an ad for which max_ads had no room


def within_limits(
    ranked: Sequence[RawAd], at_most: Mapping[str, int], max_ads: int
) -> WithinLimits:
    """Choose from the best ad on: none whose entity has its limit of ads, and max_ads in all."""
    places: list[int] = []
    left_out = 0
    for place, ad in enumerate(ranked):
        chosen = [ranked[at].entities for at in places]
        if any(
            name in ad.entities
            and sum(other.get(name) == ad.entities[name] for other in chosen) >= most
            for name, most in at_most.items()
        ):
            left_out += 1
        elif len(places) == max_ads:
            return WithinLimits(tuple(places), left_out, truncated=True)
        else:
            places.append(place)
    return WithinLimits(tuple(places), left_out, truncated=False)


def eligible_prefixes(
    schema: TargetingSchema, ads: Iterable[RawAd], user: User
) -> set[tuple[int, ...]]:
    """Every prefix, from () to whole SIDs, under which there is an ad that the user may see."""
    return {
        ad.sid[:length]
        for ad in ads
        if eligible(schema, ad, user)
        for length in range(len(ad.sid) + 1)
    }
