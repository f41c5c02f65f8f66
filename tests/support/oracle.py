"""Which user may see which ad, on raw strings and Python sets: the definition for all tests.

There are no bits, rows, ids or arrays here. Read it from top to bottom to know what eligible means.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from grace.index.targeting.schema import Attribute, Range, Target, TargetingSchema, TargetSet

Rule = tuple[frozenset[str] | None, frozenset[str] | None]
"""An ad's rule for one attribute or set: (include, exclude). None: no such list."""

Rules = Mapping[str, Any]
"""What the columns of an ad, or of one of its clauses, say, by name:

an attribute or set       a Rule; `<name>_all` of a set has groups, a tuple of frozensets
a range, a flight         (low, high), both inclusive, or (start, end) in milliseconds since 1970,
                          the end exclusive; None where it is open
a property                the ad's values, a frozenset
"""

NO_RULE: Rule = (None, None)
OPEN = (None, None)


@dataclass(frozen=True)
class RawFilter:
    """`unknown` says whether an ad without a value of the property passes; None: it depends."""

    any_of: frozenset[str] = frozenset()
    none_of: frozenset[str] = frozenset()
    unknown: bool | None = None


@dataclass(frozen=True)
class Asked:
    """What a request asks besides its user."""

    at: int = 0
    utc_offset_minutes: int = 0
    filters: Mapping[str, RawFilter] = field(default_factory=dict)


NOTHING_ASKED = Asked()

User = Mapping[str, Any]
"""Name -> values, or the number of a range; an absent name or an empty list means missing."""


class RawUser(dict[str, Any]):
    """A user with a request that asks more."""

    asked = NOTHING_ASKED


def asked_with(user: User) -> Asked:
    return user.asked if isinstance(user, RawUser) else NOTHING_ASKED


@dataclass(frozen=True)
class RawAd:
    ad_id: int
    sid: tuple[int, ...]
    weight: float = 0.0
    rules: Rules = field(default_factory=dict)
    entities: Mapping[str, int] = field(default_factory=dict)
    clauses: tuple[Rules, ...] = ()


def eligible(schema: TargetingSchema, ad: RawAd, user: User) -> bool:
    """The ad's own columns pass, and one of its clauses, if it has any."""
    return first_failure(schema, ad, user) is None


def first_failure(schema: TargetingSchema, ad: RawAd, user: User) -> str | None:
    """Why the user may not see the ad: "attributes" or the name that fails first; None if they may.

    Of an ad with clauses, the clause counts whose first failure comes last.
    """
    clauses = ad.clauses or ({},)
    order = ["attributes", *schema.component_names]
    failures = [failure_of(schema, {**ad.rules, **clause}, user) for clause in clauses]
    places = [order.index(name) for name in failures if name is not None]
    return order[max(places)] if len(places) == len(clauses) else None


def label_of(schema: TargetingSchema, name: str) -> str:
    """What metrics and replies call the ads that fail there."""
    kinds: dict[str, tuple[Target, ...]] = {
        "set": schema.sets,
        "range": schema.ranges,
        "flight": schema.flights,
        "property": schema.properties,
    }
    found = [kind for kind, targets in kinds.items() if name in {each.name for each in targets}]
    return f"{found[0]}:{name}" if found else name


def failure_of(schema: TargetingSchema, rules: Rules, user: User) -> str | None:
    """The first name of one clause that fails."""
    asked = asked_with(user)
    for attribute in schema.attributes:
        values = user.get(attribute.name, ()) or clock_values(attribute, asked)
        if not attribute_passes(attribute, rules.get(attribute.name, NO_RULE), values):
            return "attributes"
    for target_set in schema.sets:
        name, values = target_set.name, user.get(target_set.name, ())
        if not set_passes(target_set, rules.get(name, NO_RULE), values):
            return name
        if any(group.isdisjoint(values) for group in rules.get(f"{name}_all", ())):
            return name
    for each in schema.ranges:
        if not range_passes(each, rules.get(each.name, OPEN), user.get(each.name)):
            return each.name
    for flight in schema.flights:
        start, end = rules.get(flight.name, OPEN)
        if not (start is None or start <= asked.at) or not (end is None or asked.at < end):
            return flight.name
    for target in schema.properties:
        of_ad = rules.get(target.name, frozenset())
        if not filter_passes(asked.filters.get(target.name, RawFilter()), of_ad):
            return target.name
    return None


def clock_values(attribute: Attribute, asked: Asked) -> Sequence[str]:
    return () if attribute.clock is None else (str(clock(attribute.clock, asked)),)


def clock(kind: str, asked: Asked) -> int:
    """The user's local hour or day, with Python's calendar. A week begins on Monday."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
        milliseconds=asked.at, minutes=asked.utc_offset_minutes
    )
    day, hour = moment.weekday(), moment.hour
    return {"hour_of_day": hour, "day_of_week": day, "hour_of_week": 24 * day + hour}[kind]


def range_passes(target: Range, interval: tuple[float | None, float | None], number: Any) -> bool:
    """Both ends are inclusive. A user without the number passes only by `missing_passes`."""
    low, high = interval
    if low is None and high is None:
        return True
    if number is None:
        return target.missing_passes
    return (low is None or low <= number) and (high is None or number <= high)


def filter_passes(asked: RawFilter, values: frozenset[str]) -> bool:
    """Both lists hold. `unknown` decides on an ad without a value, and else `any_of` hides it."""
    if not values:
        return not asked.any_of if asked.unknown is None else asked.unknown
    return asked.none_of.isdisjoint(values) and (not asked.any_of or bool(asked.any_of & values))


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
