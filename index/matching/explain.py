"""Explain why a user may or may not see an ad: every rule of the ad, and the user's values."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grace.index.snapshot import Snapshot
from grace.index.targeting.schema import Attribute, TargetSet
from grace.index.users.user_rows import UserAttributes
from grace.index.users.values import InternedValues

MOST_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Reason:
    """One rule of the ad that was tested. Names without a rule pass, and have no reason.

    `deciding` are the user's values that fulfil the rule, or those that break it; there are none
    if the user has no value that an include list asks for.
    """

    name: str
    passes: bool
    rule: str
    deciding: tuple[str, ...]

    def __str__(self) -> str:
        values = f" (user: {_some(self.deciding)})" if self.deciding else ""
        return f"{self.name}: {self.rule}{values}"


def explain(snapshot: Snapshot, ad: int, user: UserAttributes) -> tuple[Reason, ...]:
    """Test each rule of an ad, given by its ordinal. It is eligible if and only if all pass."""
    rule = int(snapshot.ads.ad_rule[ad])
    row = snapshot.rules.bitmask_table[snapshot.rules.bitmask[rule]]
    attributes = [
        _attribute(attribute, first, row, user.get(attribute.name, ()))
        for attribute, first in zip(
            snapshot.schema.attributes, snapshot.schema.first_bits, strict=True
        )
    ]
    sets = [
        _set(snapshot, s, target_set, rule, user.get(target_set.name, ()))
        for s, target_set in enumerate(snapshot.schema.sets)
    ]
    return tuple(reason for reason in (*attributes, *sets) if reason is not None)


def allowing(
    name: str, include: Sequence[str], exclude: Sequence[str], values: Sequence[str]
) -> Reason | None:
    """Explain the lists of a returned ad without a snapshot: the server has tested them."""
    if not include and not exclude:
        return None
    wanted = tuple(value for value in dict.fromkeys(values) if value in include)
    return Reason(name, True, _lists(include, exclude), wanted)


def _attribute(
    attribute: Attribute, first: int, row: npt.NDArray[np.uint64], values: Sequence[str]
) -> Reason | None:
    def allowed(bit: int) -> bool:
        return bool(int(row[bit >> 6]) >> (bit & 63) & 1)

    listed = [value for i, value in enumerate(attribute.values) if allowed(first + i)]
    other = allowed(first + len(attribute.values))
    if other and len(listed) == len(attribute.values):
        return None
    effective = tuple(values) or (() if attribute.missing is None else (attribute.missing,))
    breaking = tuple(
        value
        for value in effective
        if value not in listed and not (other and value not in attribute.values)
    )
    passes = not breaking if effective else other
    return Reason(attribute.name, passes, _allows(attribute, listed, other), breaking or effective)


def _allows(attribute: Attribute, listed: list[str], other: bool) -> str:
    left_out = [value for value in attribute.values if value not in listed]
    if len(left_out) < len(listed):
        return f"not {_some(left_out)}" + ("" if other else ", nor an unknown or missing one")
    return _some(listed) + (", or one not listed" if other else "")


def _set(
    snapshot: Snapshot, s: int, target_set: TargetSet, rule: int, values: Sequence[str]
) -> Reason | None:
    set_rule = int(snapshot.rules.set_rules[rule, s])
    rules, strings = snapshot.rules.sets[s], snapshot.set_values[s]
    include = _strings(rules.include_offsets, rules.include_values, set_rule, strings)
    exclude = _strings(rules.exclude_offsets, rules.exclude_values, set_rule, strings)
    if not include and not exclude:
        return None
    wanted = tuple(value for value in dict.fromkeys(values) if value in set(include))
    unwanted = tuple(value for value in dict.fromkeys(values) if value in set(exclude))
    passes = not unwanted and bool(wanted or not include)
    if exclude and not values:
        passes &= target_set.missing_passes_exclude
    return Reason(target_set.name, passes, _lists(include, exclude), unwanted or wanted)


def _lists(include: Sequence[str], exclude: Sequence[str]) -> str:
    lists = [f"one of {_some(include)}"] if include else []
    lists += [f"none of {_some(exclude)}"] if exclude else []
    return ", ".join(lists)


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
