"""The targeting schema: what rules may name, and the entities to which ads belong.

It is written in YAML, stored inside every snapshot, and is the only source of these facts.

attribute   a fact about the user with few values, each one bit of a bitmask
set         a fact about the user with many values
range       a fact about the user that is a number; ads have a range of it
flight      the time during which an ad is shown
property    what an ad is, for the filters of requests
entity      what ads belong to, such as a campaign
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, ClassVar

from grace.configs.errors import ConfigError
from grace.configs.sections import KEY, load_section
from grace.configs.yaml_loader import read_yaml

RESERVED_VALUE = "*"
"""The element of every ad without an include list, and of every request. No rule may name it."""

EXCLUDE_SUFFIX = "_exclude"
CLOCKS = {"hour_of_day": 24, "day_of_week": 7, "hour_of_week": 168}
"""The number of values of each clock, which are integers from 0. Weeks begin on Monday."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
AD_LEVEL = "ad"
"""The level of single ads, next to the names of entities. So no entity may have this name."""

MAX_ENTITIES = 8
CLAUSES, EXPRESSION = "clauses", "rule"
"""The columns of the clauses of an ad: as structs of other columns, or as one text."""

_ADS_COLUMNS = frozenset({"ad_id", "sid", "ad_weight", CLAUSES, EXPRESSION})
_MAX_VALUES = 4096
_SET_BOUNDS = (
    ("bloom_bits", 64, 1 << 16),
    ("bloom_hashes", 1, 4),
    ("max_request_values", 1, 1 << 16),  # so that an int32 can number all values of a batch
)
_MAX_HASH_SEED = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Attribute:
    """`missing` names the listed value that stands for a user without one; None means `other`."""

    name: str = KEY
    values: tuple[str, ...] = ()
    missing: str | None = None
    missing_passes_exclude: bool = False
    clock: str | None = None  # what gives it a value if the request does not

    columns: ClassVar = ("", EXCLUDE_SUFFIX)

    @property
    def bits(self) -> int:
        """One bit per listed value, and a last one, `other`, for all others."""
        return len(self.values) + 1


@dataclass(frozen=True, slots=True)
class TargetSet:
    word: ClassVar = "set"
    name: str = KEY
    bloom_bits: int = 256
    bloom_hashes: int = 4
    max_request_values: int = 64
    missing_passes_exclude: bool = False

    columns: ClassVar = ("", EXCLUDE_SUFFIX, "_all")

    @property
    def words(self) -> int:
        return self.bloom_bits // 64


@dataclass(frozen=True, slots=True)
class Range:
    """`missing_passes`: users without the number see ads that have a range."""

    word: ClassVar = "range"
    name: str = KEY
    missing_passes: bool = False

    columns: ClassVar = ("_min", "_max")


@dataclass(frozen=True, slots=True)
class Flight:
    word: ClassVar = "flight"
    name: str = KEY

    columns: ClassVar = ("_start", "_end")


@dataclass(frozen=True, slots=True)
class Property:
    word: ClassVar = "property"
    name: str = KEY

    columns: ClassVar = ("",)


KINDS = {
    "attributes": Attribute,
    "sets": TargetSet,
    "ranges": Range,
    "flights": Flight,
    "properties": Property,
}
"""What each section of a schema declares."""

Target = Attribute | TargetSet | Range | Flight | Property
"""`columns` has the endings of its columns in the ads table."""

ENDINGS = ("_exclude", "_all", "_min", "_max", "_start", "_end")


def plain_column(column: str) -> str:
    """Return `age_min` for `clauses.age_min`, a clause's column, and for an expression's."""
    return column.removeprefix(f"{CLAUSES}.").removeprefix(f"{EXPRESSION}.")


@dataclass(frozen=True)
class TargetingSchema:
    attributes: tuple[Attribute, ...]
    sets: tuple[TargetSet, ...]
    hash_seed: int
    entities: tuple[str, ...] = ()  # integer columns of the ads table, such as `campaign`
    ranges: tuple[Range, ...] = ()
    flights: tuple[Flight, ...] = ()
    properties: tuple[Property, ...] = ()

    def __post_init__(self) -> None:
        for fault in _faults(self):
            raise ConfigError(fault)

    @cached_property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """The columns of each name: attributes, sets, ranges, flights, properties, as declared."""
        return {t.name: tuple(t.name + end for end in t.columns) for t in self.targets}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.columns)

    @property
    def user_names(self) -> tuple[str, ...]:
        """The names that a request's `user` may have."""
        targets: tuple[Target, ...] = (*self.attributes, *self.sets, *self.ranges)
        return tuple(target.name for target in targets)

    @property
    def rule_columns(self) -> tuple[str, ...]:
        return tuple(chain.from_iterable(self.columns.values()))

    @property
    def asks_the_time(self) -> bool:
        """Whether any rule may depend on the time."""
        return bool(self.flights) or any(attribute.clock for attribute in self.attributes)

    @property
    def intervals(self) -> tuple[Range | Flight, ...]:
        return (*self.ranges, *self.flights)

    @property
    def component_names(self) -> tuple[str, ...]:
        """The names that have a component each: all but attributes."""
        return self.names[len(self.attributes) :]

    @property
    def valued_names(self) -> tuple[str, ...]:
        """The names whose components intern values."""
        return (*(each.name for each in self.sets), *(each.name for each in self.properties))

    @property
    def name_of(self) -> dict[str, str]:
        return {column: name for name, columns in self.columns.items() for column in columns}

    @property
    def targets(self) -> tuple[Target, ...]:
        return (*self.attributes, *self.sets, *self.ranges, *self.flights, *self.properties)

    @cached_property
    def places(self) -> tuple[tuple[Attribute, int], ...]:
        """Each attribute and its first bit; values follow in the order listed, then `other`."""
        borders = accumulate((attribute.bits for attribute in self.attributes), initial=0)
        return tuple(zip(self.attributes, borders, strict=False))

    @property
    def bitmask_bits(self) -> int:
        return sum(attribute.bits for attribute in self.attributes)

    @property
    def words(self) -> int:
        """Words of a bitmask row: at least one, so that a schema without attributes has rows."""
        return max(1, -(-self.bitmask_bits // 64))


@dataclass(frozen=True, slots=True)
class _TargetingSection:
    attributes: dict[str, Attribute] = field(default_factory=dict)
    sets: dict[str, TargetSet] = field(default_factory=dict)
    ranges: dict[str, Range] = field(default_factory=dict)
    flights: dict[str, Flight] = field(default_factory=dict)
    properties: dict[str, Property] = field(default_factory=dict)
    hash_seed: int = 0
    entities: tuple[str, ...] = ()


def load_schema(path: Path) -> TargetingSchema:
    section = load_section(_TargetingSection, read_yaml(path), str(path))
    made: dict[str, Any] = {kind: tuple(getattr(section, kind).values()) for kind in KINDS}
    try:
        made["attributes"] = tuple(map(_with_clock_values, made["attributes"]))
        return TargetingSchema(hash_seed=section.hash_seed, entities=section.entities, **made)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _with_clock_values(attribute: Attribute) -> Attribute:
    if attribute.clock not in CLOCKS:  # none, or one that the schema refuses
        return attribute
    if attribute.values or attribute.missing is not None:
        where = f"attributes.{attribute.name}"
        raise ConfigError(f"{where}: a clock gives its values; leave `values` and `missing` out")
    return replace(attribute, values=clock_values(attribute.clock))


def clock_values(clock: str) -> tuple[str, ...]:
    return tuple(map(str, range(CLOCKS[clock])))


def _faults(schema: TargetingSchema) -> Iterator[str]:
    yield from _name_faults(schema)
    for attribute in schema.attributes:
        yield from (f"attributes.{attribute.name}.{fault}" for fault in _value_faults(attribute))
    for each in schema.sets:
        for field_name, least, most in _SET_BOUNDS:
            if not least <= (number := getattr(each, field_name)) <= most:
                bounds = f"must be {least} to {most}, got {number}"
                yield f"sets.{each.name}.{field_name}: {bounds}"
        if each.bloom_bits & (each.bloom_bits - 1):
            yield f"sets.{each.name}.bloom_bits: must be a power of two, got {each.bloom_bits}"
    if not 0 <= schema.hash_seed <= _MAX_HASH_SEED:
        yield f"hash_seed: must be 0 to 2^64 - 1, got {schema.hash_seed}"


def _name_faults(schema: TargetingSchema) -> Iterator[str]:
    counted = Counter((*(target.name for target in schema.targets), *schema.entities))
    for name, times in counted.items():
        if not is_name(name):
            yield (
                f"targeting name {name!r}: use a lower-case letter, then letters, digits and _, "
                "63 characters at most"
            )
        if name in _ADS_COLUMNS or name.endswith(EXCLUDE_SUFFIX):
            yield (
                f"targeting name {name!r}: taken by a column of the ads table "
                f"({', '.join(sorted(_ADS_COLUMNS))}, <name>{EXCLUDE_SUFFIX}); choose another"
            )
        if times > 1:
            yield (
                f"targeting name {name!r}: declared twice; attributes, sets, ranges, flights, "
                "properties and entities need different names"
            )
    owners = {name: name for name in schema.entities}
    for name, column in ((t.name, t.name + end) for t in schema.targets for end in t.columns):
        if (other := owners.setdefault(column, name)) != name:
            yield f"targeting names {other!r} and {name!r}: each has column {column!r}; rename one"
    if AD_LEVEL in schema.entities:
        yield f"entities: {AD_LEVEL!r} stands for single ads; choose another name for the column"
    if len(schema.entities) > MAX_ENTITIES:
        yield f"entities: {len(schema.entities)} names, at most {MAX_ENTITIES}; leave some out"


def _value_faults(attribute: Attribute) -> Iterator[str]:
    values, missing, clock = attribute.values, attribute.missing, attribute.clock
    if clock is not None and clock not in CLOCKS:
        yield f"clock: must be one of {', '.join(CLOCKS)}, got {clock!r}"
    elif clock is not None and values != clock_values(clock):
        yield f"values: must be the {CLOCKS[clock]} that its clock shows, 0 first"
    if not values:
        yield "values: list at least one value"
    if len(values) > _MAX_VALUES:
        yield f"values: {len(values)} values, at most {_MAX_VALUES}; declare it as a set"
    for value, times in Counter(values).most_common(1):
        if times > 1:
            yield f"values: {value!r} is listed twice"
    if "" in values:
        yield "values: an empty value; name it or remove it"
    if missing is not None and missing not in values:
        listed = f"{', '.join(values[:8])}{', ...' if len(values) > 8 else ''}"
        yield f"missing: {missing!r} is not one of its values ({listed})"


def is_name(name: str) -> bool:
    """Return whether an attribute, a set or an entity may have this name."""
    return _NAME.fullmatch(name) is not None
