"""Explain why a user may or may not see an ad: every rule of the ad, and the user's values.

The words are the same wherever rules are shown (docs/targeting.md): `only` for an attribute, whose
values must all be allowed, `any of` for a set, and `none of` for both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt

from grace.index.snapshot import Snapshot
from grace.index.targeting.schema import (
    EXCLUDE_SUFFIX,
    Attribute,
    TargetingSchema,
    TargetSet,
)
from grace.index.users.user_rows import UserAttributes
from grace.index.users.values import InternedValues

MOST_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Reason:
    """One rule of the ad that was tested. Names without a rule pass, and have no reason.

    `user` has all of the user's values for the name. `deciding` has those that fulfil the rule, or
    those that break it. If `user` is empty, `deciding` has the schema's `missing` value, if any.
    """

    name: str
    passes: bool
    rule: str
    user: tuple[str, ...]
    deciding: tuple[str, ...]

    @property
    def values(self) -> str:
        """The user's values that decide, in words; all of them if none does."""
        shown = _some(self.deciding or self.user)
        if self.user:
            return shown
        return f"no value, which counts as {shown}" if shown else "no value"

    def __str__(self) -> str:
        values = f" (user: {self.values})" if self.deciding else ""
        return f"{self.name}: {self.rule}{values}"


def explain(snapshot: Snapshot, ad: int, user: UserAttributes) -> tuple[Reason, ...]:
    """Test each rule of an ad, given by its ordinal. It is eligible if and only if all pass."""
    rule = int(snapshot.ads.ad_rule[ad])
    row = snapshot.rules.bitmask_table[snapshot.rules.bitmask[rule]]
    attributes = [
        _attribute(attribute, *_allowed(attribute, first, row), user.get(attribute.name, ()))
        for attribute, first in zip(
            snapshot.schema.attributes, snapshot.schema.first_bits, strict=True
        )
    ]
    sets = [
        _set(target_set, *_lists_of(snapshot, s, rule), user.get(target_set.name, ()))
        for s, target_set in enumerate(snapshot.schema.sets)
    ]
    return tuple(reason for reason in (*attributes, *sets) if reason is not None)


def explain_lists(
    schema: TargetingSchema, lists: Mapping[str, Sequence[str] | None], user: UserAttributes
) -> tuple[Reason, ...]:
    """Test each rule of an ad, given by its lists: those of its row in an ads table, by column."""
    include = {name: lists.get(name) or () for name in schema.names}
    exclude = {name: lists.get(name + EXCLUDE_SUFFIX) or () for name in schema.names}
    attributes = [
        _attribute(
            attribute,
            [
                value
                for value in attribute.values
                if value in (include[attribute.name] or attribute.values)
                and value not in exclude[attribute.name]
            ],
            not include[attribute.name]
            and (attribute.missing_passes_exclude or not exclude[attribute.name]),
            user.get(attribute.name, ()),
        )
        for attribute in schema.attributes
    ]
    sets = [
        _set(
            target_set,
            sorted(set(include[target_set.name])),
            sorted(set(exclude[target_set.name])),
            user.get(target_set.name, ()),
        )
        for target_set in schema.sets
    ]
    return tuple(reason for reason in (*attributes, *sets) if reason is not None)


def _allowed(
    attribute: Attribute, first: int, row: npt.NDArray[np.uint64]
) -> tuple[list[str], bool]:
    """Return the listed values that a bitmask row allows, and whether it allows `other`."""
    places = range(first, first + attribute.bits)
    *allowed, other = (bool(int(row[bit >> 6]) >> (bit & 63) & 1) for bit in places)
    return list(compress(attribute.values, allowed)), other


def _attribute(
    attribute: Attribute, listed: Sequence[str], other: bool, values: Sequence[str]
) -> Reason | None:
    if other and len(listed) == len(attribute.values):
        return None
    user = tuple(values)
    effective = user or (() if attribute.missing is None else (attribute.missing,))
    breaking = tuple(
        value
        for value in effective
        if value not in listed and not (other and value not in attribute.values)
    )
    passes = not breaking if effective else other
    allows = _allows(attribute, listed, other)
    return Reason(attribute.name, passes, allows, user, breaking or effective)


def _allows(attribute: Attribute, listed: Sequence[str], other: bool) -> str:
    """Say what every value of the user must be: a snapshot does not know which list said it."""
    left_out = [value for value in attribute.values if value not in listed]
    if other:
        return f"none of {_some(left_out)}"
    if len(listed) <= max(MOST_SHOWN, len(left_out)):
        return f"only {_some(listed)}" if listed else "no user"
    return "only listed values" + (f", none of {_some(left_out)}" if left_out else "")


def _set(
    target_set: TargetSet, include: Sequence[str], exclude: Sequence[str], values: Sequence[str]
) -> Reason | None:
    if not include and not exclude:
        return None
    wanted = tuple(value for value in dict.fromkeys(values) if value in set(include))
    unwanted = tuple(value for value in dict.fromkeys(values) if value in set(exclude))
    passes = not unwanted and bool(wanted or not include)
    if exclude and not values:
        passes &= target_set.missing_passes_exclude
    lists = [f"any of {_some(include)}"] if include else []
    lists += [f"none of {_some(exclude)}"] if exclude else []
    return Reason(target_set.name, passes, ", ".join(lists), tuple(values), unwanted or wanted)


def _lists_of(snapshot: Snapshot, s: int, rule: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the include and exclude list of a rule for one set."""
    set_rule = int(snapshot.rules.set_rules[rule, s])
    rules, strings = snapshot.rules.sets[s], snapshot.set_values[s]
    return (
        _strings(rules.include_offsets, rules.include_values, set_rule, strings),
        _strings(rules.exclude_offsets, rules.exclude_values, set_rule, strings),
    )


def _strings(
    offsets: npt.NDArray[np.int64],
    value_ids: npt.NDArray[np.int32],
    rule: int,
    values: InternedValues,
) -> tuple[str, ...]:
    return tuple(values[int(v)] for v in value_ids[offsets[rule] : offsets[rule + 1]])


def _some(values: Sequence[str]) -> str:
    shown = ", ".join(values[:MOST_SHOWN])
    left = len(values) - MOST_SHOWN
    return shown if left <= 0 else f"{shown} and {left} more"
