"""Schemas, ads and users to test with: one seeded random source, and hypothesis strategies over it.

The attribute sizes 1, 63, 64, 65 and 250 put the `other` bit at, before and after the borders of
64-bit words. Values are plain strings: "a0-v17" is listed, "a0-new" is unknown to the schema.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from grace.configs.eligibility import KWay
from grace.index.targeting.schema import (
    CLOCKS,
    KINDS,
    Attribute,
    Flight,
    Property,
    Range,
    TargetingSchema,
    TargetSet,
)
from grace.index.users.user_rows import UserAttributes
from grace.proto.retrieval_pb2 import Filter, RetrieveRequest
from support.oracle import Asked, RawAd, RawFilter, RawUser, Rule, Rules, User, asked_with


def examples(count: int) -> settings:
    """Let Hypothesis draw `count` examples, or three times as many with the profile `explore`."""
    return settings(max_examples=count if settings().derandomize else 3 * count)


ATTRIBUTE_SIZES = (1, 63, 64, 65, 250)
ENTITY_IDS = (0, 3, 7, 63, 111, 2**31 + 5, 2**63 - 1)
_SET_VALUES = 40
_FEW = 3


@dataclass(frozen=True)
class Case:
    """A catalogue, and users to ask about it. `k_way` where a few partitions are not enough."""

    schema: TargetingSchema
    vocab_sizes: tuple[int, ...]
    ads: tuple[RawAd, ...]
    users: tuple[UserAttributes, ...]
    k_way: KWay | None = None


def random_schema(
    rng: np.random.Generator,
    attribute_sizes: Sequence[int] | None = None,
    num_sets: int | None = None,
) -> TargetingSchema:
    """Return up to 4 attributes of the odd sizes and up to 3 sets, unless the caller chooses.

    There are up to 2 entities. If the caller does not choose attributes, there are clocks, and up
    to 2 ranges, flights and properties.
    """
    alone = attribute_sizes is not None
    if attribute_sizes is None:
        attribute_sizes = [int(rng.choice(ATTRIBUTE_SIZES)) for _ in range(rng.integers(5))]
    if num_sets is None:
        num_sets = int(rng.integers(4))
    return TargetingSchema(
        attributes=(
            *(_random_attribute(rng, f"a{i}", size) for i, size in enumerate(attribute_sizes)),
            *(() if alone else random_clocks(rng)),
        ),
        sets=tuple(_random_set(rng, f"s{i}") for i in range(num_sets)),
        hash_seed=int(rng.integers(1 << 64, dtype=np.uint64)),
        entities=tuple(f"e{i}" for i in range(rng.integers(3))),
        **({} if alone else random_intervals_and_properties(rng)),
    )


def random_schema_of(rng: np.random.Generator, kind: str) -> TargetingSchema:
    """Return a schema with one kind alone: others would hide most ads, and its faults."""
    drawn = random_schema(rng)
    while not getattr(drawn, kind):
        drawn = random_schema(rng)
    without: dict[str, Any] = {other: () for other in KINDS if other != kind}
    return replace(drawn, **without)


def random_clocks(rng: np.random.Generator) -> list[Attribute]:
    kinds = [kind for kind in CLOCKS if rng.random() < 0.2]
    return [
        Attribute(f"c_{k}", tuple(map(str, range(CLOCKS[k]))), None, bool(rng.random() < 0.4), k)
        for k in kinds
    ]


def random_intervals_and_properties(rng: np.random.Generator) -> dict[str, Any]:
    names = [range(int(rng.integers(3))) for _ in range(3)]
    return {
        "ranges": tuple(Range(f"r{i}", missing_passes=bool(rng.random() < 0.4)) for i in names[0]),
        "flights": tuple(Flight(f"f{i}") for i in names[1]),
        "properties": tuple(Property(f"p{i}") for i in names[2]),
    }


def _random_attribute(rng: np.random.Generator, name: str, size: int) -> Attribute:
    values = tuple(f"{name}-v{i}" for i in range(size))
    missing = str(rng.choice(values)) if rng.random() < 0.4 else None
    return Attribute(name, values, missing, missing_passes_exclude=bool(rng.random() < 0.4))


def _random_set(rng: np.random.Generator, name: str) -> TargetSet:
    return TargetSet(
        name,
        bloom_bits=int(rng.choice([64, 256, 1024])),
        bloom_hashes=int(rng.integers(1, 5)),
        max_request_values=64,
        missing_passes_exclude=bool(rng.random() < 0.4),
    )


def set_values(target_set: TargetSet) -> list[str]:
    """The values that random ads name; users have others too."""
    return [f"{target_set.name}/é{i}" for i in range(_SET_VALUES)]


def random_ads(
    rng: np.random.Generator,
    schema: TargetingSchema,
    vocab_sizes: Sequence[int],
    count: int,
    ads_per_sid: float = 1.7,
) -> list[RawAd]:
    """Ads that a build keeps, in no order. About `ads_per_sid` share a SID; rules repeat."""
    most = int(np.prod([float(size) for size in vocab_sizes]))
    sids = rng.integers(most, size=max(1, int(count / ads_per_sid)))
    ids = rng.choice(max(count * 7, 100), size=count, replace=False)
    rules = [_random_rules(rng, schema) for _ in range(max(1, count // 2))]
    return [
        RawAd(
            ad_id=int(ad_id),
            sid=_digits(int(rng.choice(sids)), vocab_sizes),
            weight=float(rng.choice([-0.0, 0.0, 0.5, 1.0, 2.25, -1.5])),
            entities=_random_entities(rng, schema),
            **_own_and_clauses(rng, [rules[int(at)] for at in rng.integers(len(rules), size=4)]),
        )
        for ad_id in ids
    ]


def _own_and_clauses(rng: np.random.Generator, rules: list[Rules]) -> dict[str, Any]:
    """One rule; a tenth of the ads have some names of others in clauses."""
    own, *others = rules
    if rng.random() > 0.1:
        return {"rules": own}
    in_clauses = {n.removesuffix("_all") for each in rules for n in each if rng.random() < 0.6}
    clauses = [
        {n: r for n, r in each.items() if n.removesuffix("_all") in in_clauses and n}
        for each in others
    ]
    own = {n: r for n, r in own.items() if n.removesuffix("_all") not in in_clauses}
    return {"rules": own, "clauses": tuple(clause for clause in clauses if says_something(clause))}


def _random_entities(rng: np.random.Generator, schema: TargetingSchema) -> dict[str, int]:
    """Few ids, so that ads share them; a third of the ads have none."""
    drawn = {name: int(rng.choice(ENTITY_IDS)) for name in schema.entities}
    return {name: entity for name, entity in drawn.items() if rng.random() < 0.67}


def _digits(number: int, vocab_sizes: Sequence[int]) -> tuple[int, ...]:
    digits = []
    for size in reversed(vocab_sizes):
        number, digit = divmod(number, size)
        digits.append(digit)
    return tuple(reversed(digits))


def says_something(rules: Rules) -> bool:
    """Whether a clause with these rules has one besides properties: a build refuses others."""
    limiting = (rule for rule in rules.values() if not isinstance(rule, frozenset))
    return any(rule[0] is not None or bool(rule[-1]) for rule in limiting)


def _random_rules(rng: np.random.Generator, schema: TargetingSchema) -> dict[str, Any]:
    rules: dict[str, Any] = {}
    for attribute in schema.attributes:
        other_passes = attribute.missing_passes_exclude
        rules[attribute.name] = _random_rule(rng, attribute.values, other_passes)
    for target_set in schema.sets:
        values = set_values(target_set)
        _, exclude = rules[target_set.name] = _random_rule(rng, values, True)
        if rng.random() < 0.15:
            groups = tuple(_some(rng, values, least=1) for _ in range(rng.integers(1, 4)))
            if not any(group <= (exclude or frozenset()) for group in groups):
                rules[f"{target_set.name}_all"] = groups
    for each in schema.ranges:
        rules[each.name] = _random_interval(rng, NUMBERS)
    for flight in schema.flights:
        start, end = _random_interval(rng, TIMES)
        rules[flight.name] = (start, end + 1 if start == end and end is not None else end)
    for target in schema.properties:
        rules[target.name] = (
            _some(rng, property_values(target), 0) if rng.random() < 0.6 else frozenset()
        )
    return {name: rule for name, rule in rules.items() if rule not in ((None, None), frozenset())}


NUMBERS = (-2.5, -1.0, 0.0, 0.1, 17.0, 18.0, 21.0, 2.0**53)
"""The ends of ranges, and numbers of users."""

TIMES = (1_767_225_600_000, 1_767_225_600_001, 1_790_000_000_000, 1_793_577_599_999)


def _random_interval(
    rng: np.random.Generator, ends: Sequence[float]
) -> tuple[float | None, float | None]:
    low, high = sorted(type(ends[0])(end) for end in rng.choice(ends, size=2))
    kind = rng.random()
    return (None if kind < 0.4 else low, None if 0.25 < kind < 0.65 else high)


def property_values(target: Property) -> list[str]:
    return [f"{target.name}/ü{i}" for i in range(12)]


def _random_rule(rng: np.random.Generator, values: Sequence[str], may_exclude_all: bool) -> Rule:
    """None, include, exclude, or both; never one that no user passes, which a build refuses."""
    include = _some(rng, values, least=1) if rng.random() < 0.45 else None
    exclude = _some(rng, values, least=0) if rng.random() < 0.3 else None
    if include is not None and exclude is not None and include <= exclude:
        exclude = None
    if exclude is not None and not may_exclude_all and exclude >= set(values):
        exclude = None
    return include, exclude


def _some(rng: np.random.Generator, values: Sequence[str], least: int) -> frozenset[str]:
    """A few values or, half of the time, most of them."""
    few = rng.random() < 0.5
    most = min(_FEW, len(values)) if few else len(values)
    count = int(rng.integers(least, most + 1))
    return frozenset(str(value) for value in rng.choice(values, size=count, replace=False))


def random_user(rng: np.random.Generator, schema: TargetingSchema) -> UserAttributes:
    """Missing, single, several, unknown and repeated values; at times a name of no schema."""
    user = RawUser()
    for attribute in schema.attributes:
        kind = rng.random()
        if kind < 0.15:
            continue
        count = 0 if kind < 0.25 else 1 if kind < 0.75 else int(rng.integers(1, 4))
        known = [*attribute.values, f"{attribute.name}-new"] if kind > 0.9 else attribute.values
        user[attribute.name] = [str(value) for value in rng.choice(known, size=count)]
    for target_set in schema.sets:
        count = int(rng.choice([0, 1, 2, 5, 20, target_set.max_request_values]))
        known = [*set_values(target_set), *(f"{target_set.name}/new{i}" for i in range(40))]
        picked = rng.choice(known, size=min(count, len(known)), replace=False)
        if count or rng.random() < 0.5:
            user[target_set.name] = [str(value) for value in picked]
    for each in schema.ranges:
        if rng.random() < 0.8:
            user[each.name] = float(rng.choice([*NUMBERS, 19.5]))
    if rng.random() < 0.1:
        user["of_a_later_schema"] = ["x"]
    filters = {
        each.name: _random_filter(rng, each) for each in schema.properties if rng.random() < 0.5
    }
    at = int(rng.choice(TIMES)) + int(rng.integers(-1, 2)) + 3_600_000 * int(rng.integers(3))
    user.asked = Asked(at, int(rng.integers(-56, 57)) * 15, filters)
    return user


def _random_filter(rng: np.random.Generator, target: Property) -> RawFilter:
    known = [*property_values(target), f"{target.name}/new"]
    sides = [_some(rng, known, 0) if rng.random() < 0.6 else frozenset[str]() for _ in range(2)]
    return RawFilter(sides[0], sides[1], (None, True, False)[int(rng.integers(3))])


def asking(user: User) -> RetrieveRequest:
    """The request of a user."""
    asked = asked_with(user)
    request = RetrieveRequest(at=asked.at, utc_offset_minutes=asked.utc_offset_minutes)
    for name, values in user.items():
        if isinstance(values, float):
            request.user[name].number = values
        else:
            request.user[name].values.extend(values)
    for name, each in asked.filters.items():
        request.filters[name].any_of.extend(sorted(each.any_of))
        request.filters[name].none_of.extend(sorted(each.none_of))
        if each.unknown is not None:
            request.filters[name].unknown = Filter.PASSES if each.unknown else Filter.BLOCKED
    return request


def random_users(
    rng: np.random.Generator, schema: TargetingSchema, count: int
) -> list[UserAttributes]:
    return [random_user(rng, schema) for _ in range(count)]


def random_case(
    rng: np.random.Generator,
    num_ads: int | None = None,
    num_users: int | None = None,
    schema: TargetingSchema | None = None,
) -> Case:
    """Return a case so small that a test may build hundreds, unless the caller asks for more."""
    schema = schema or random_schema(rng)
    vocab_sizes = tuple(int(size) for size in rng.integers(1, 6, size=rng.integers(1, 5)))
    num_ads = int(rng.integers(1, 40)) if num_ads is None else num_ads
    num_users = int(rng.integers(1, 7)) if num_users is None else num_users
    return Case(
        schema=schema,
        vocab_sizes=vocab_sizes,
        ads=tuple(random_ads(rng, schema, vocab_sizes, num_ads)),
        users=tuple(random_users(rng, schema, num_users)),
    )


@st.composite
def cases(draw: st.DrawFn, most_ads: int = 40, most_users: int = 6) -> Case:
    """Hypothesis shrinks the number of ads and users; the rest follows from a seed."""
    num_ads = draw(st.integers(1, most_ads))
    num_users = draw(st.integers(1, most_users))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return random_case(rng, num_ads, num_users)


def some_of_each(ids: dict[str, list[int]]) -> st.SearchStrategy[dict[str, frozenset[int]]]:
    """Draw a few ids of some levels."""
    return st.fixed_dictionaries(
        {},
        optional={
            level: st.frozensets(st.sampled_from(of_level), min_size=1, max_size=4)
            for level, of_level in ids.items()
        },
    )
