"""The components of a schema: the one place that knows all forms."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from grace.configs.arrays import Int32
from grace.index.forms.bits import BitsComponent
from grace.index.forms.component import Component, Reason, ValuedRows
from grace.index.forms.interval import IntervalComponent
from grace.index.forms.lists import ListsComponent
from grace.index.forms.properties import PropertiesComponent
from grace.index.snapshot import Snapshot
from grace.index.targeting.rules import TargetingRules
from grace.index.targeting.schema import TargetingSchema
from grace.index.users.values import InternedValues
from grace.proto.retrieval_pb2 import RetrieveRequest


class RuledRows(NamedTuple):
    """Some rows of an ads table, and the rule or alternative of each. Refused rows have none."""

    schema: TargetingSchema
    rules: TargetingRules
    set_values: tuple[InternedValues, ...]
    rule_of: Int32


Ruled = Snapshot | RuledRows


class Part(NamedTuple):
    component: Component
    ids: Int32
    rows: Any


def components_of(schema: TargetingSchema) -> tuple[Component, ...]:
    """Return the components of a schema, in the order of `schema.columns`."""
    return (
        BitsComponent(schema),
        *(ListsComponent(schema, each) for each in schema.sets),
        *(IntervalComponent(each) for each in schema.intervals),
        *(PropertiesComponent(each) for each in schema.properties),
    )


def parts_of(ruled: Ruled) -> Iterator[Part]:
    values = iter(ruled.set_values)
    for number, component in enumerate(components_of(ruled.schema)):
        rows = ruled.rules.parts[number]
        rows = ValuedRows(rows, next(values)) if component.kind.has_values else rows
        yield Part(component, ruled.rules.rows[:, number], rows)


def explain(ruled: Ruled, rule: int, request: RetrieveRequest) -> tuple[Reason, ...]:
    """Test an ad's rule. Of an alternative, return the rule that fails least, the first if equal.

    The ad is eligible if and only if all reasons pass. The request must have `at`.
    """
    parts = [*parts_of(ruled)]
    tested = [
        tuple(
            reason
            for component, ids, rows in parts
            for reason in component.explain(rows, int(ids[own]), request)
        )
        for own in ruled.rules.rules_of(rule)
    ]
    return min(tested, key=lambda reasons: sum(not reason.passes for reason in reasons))


def unknown_values(ruled: Ruled, request: RetrieveRequest) -> list[str]:
    """Return the filter values that no ad has, in words: category=gamblign, domain=x."""
    known = dict(zip(ruled.schema.valued_names, ruled.set_values, strict=True))
    return [
        f"{each.name}={value}"
        for each in ruled.schema.properties
        if (asked := request.filters.get(each.name)) is not None
        for value in (*asked.any_of, *asked.none_of)
        if value not in known[each.name]
    ]
