"""The targeting schema: which attributes, sets and entities exist, and which bits they have.

It is written in YAML, stored inside every snapshot, and is the only source of these facts. An
*attribute* has few values, each one bit of a packed bitmask. A *set* has many, tested by Bloom rows
while decoding and exactly afterwards. An *entity*, such as a campaign, is what ads belong to.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from grace.configs.errors import ConfigError
from grace.configs.sections import load_section
from grace.configs.yaml_loader import read_yaml

RESERVED_VALUE = "*"
"""The element of every ad without an include list, and of every request. No rule may name it."""

EXCLUDE_SUFFIX = "_exclude"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
AD_LEVEL = "ad"
"""The level of single ads, next to the names of entities. So no entity may have this name."""

MAX_ENTITIES = 8
_ADS_COLUMNS = frozenset({"ad_id", "sid", "ad_weight"})
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

    name: str
    values: tuple[str, ...]
    missing: str | None = None
    missing_passes_exclude: bool = False

    @property
    def bits(self) -> int:
        """One bit per listed value, and a last one, `other`, for all others."""
        return len(self.values) + 1


@dataclass(frozen=True, slots=True)
class TargetSet:
    name: str
    bloom_bits: int
    bloom_hashes: int
    max_request_values: int
    missing_passes_exclude: bool = False

    @property
    def words(self) -> int:
        return self.bloom_bits // 64


@dataclass(frozen=True)
class TargetingSchema:
    attributes: tuple[Attribute, ...]
    sets: tuple[TargetSet, ...]
    hash_seed: int
    entities: tuple[str, ...] = ()  # integer columns of the ads table, such as `campaign`

    def __post_init__(self) -> None:
        for fault in _faults(self):
            raise ConfigError(fault)

    @property
    def names(self) -> tuple[str, ...]:
        """Attributes, then sets, in declared order."""
        return (*(a.name for a in self.attributes), *(s.name for s in self.sets))

    @property
    def rule_columns(self) -> tuple[str, ...]:
        """Include and exclude columns of the attributes, then of the sets, in declared order."""
        return tuple(column for name in self.names for column in (name, name + EXCLUDE_SUFFIX))

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
class _AttributeSection:
    values: tuple[str, ...]
    missing: str | None = None
    missing_passes_exclude: bool = False


@dataclass(frozen=True, slots=True)
class _SetSection:
    bloom_bits: int = 256
    bloom_hashes: int = 4
    max_request_values: int = 64
    missing_passes_exclude: bool = False


@dataclass(frozen=True, slots=True)
class _TargetingSection:
    attributes: dict[str, _AttributeSection] = field(default_factory=dict)
    sets: dict[str, _SetSection] = field(default_factory=dict)
    hash_seed: int = 0
    entities: tuple[str, ...] = ()


def load_schema(path: Path) -> TargetingSchema:
    section = load_section(_TargetingSection, read_yaml(path), str(path))
    attributes = (Attribute(name, **asdict(each)) for name, each in section.attributes.items())
    sets = (TargetSet(name, **asdict(each)) for name, each in section.sets.items())
    try:
        return TargetingSchema(tuple(attributes), tuple(sets), section.hash_seed, section.entities)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


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
    counted = Counter((*schema.names, *schema.entities))
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
                f"targeting name {name!r}: declared twice; an attribute, a set and an entity "
                "have different names"
            )
    if AD_LEVEL in schema.entities:
        yield f"entities: {AD_LEVEL!r} stands for single ads; choose another name for the column"
    if len(schema.entities) > MAX_ENTITIES:
        yield f"entities: {len(schema.entities)} names, at most {MAX_ENTITIES}; leave some out"


def _value_faults(attribute: Attribute) -> Iterator[str]:
    values, missing = attribute.values, attribute.missing
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
