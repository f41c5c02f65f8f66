"""The components of a schema: the one place that knows all forms.

`explain` returns every rule of an ad, whether a user passes it, and the user's values. The words
are the same wherever rules are shown (docs/targeting.md): `only` for an attribute, whose values
must all be allowed, `any of` for a set, and `none of` for both.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from grace.index.forms.bits import BitsComponent
from grace.index.forms.component import Component, Reason, ValuesOf
from grace.index.forms.lists import ListRows, ListsComponent
from grace.index.snapshot import Snapshot
from grace.index.targeting.schema import TargetingSchema


class Part(NamedTuple):
    """A component, the row of each rule, and the rows."""

    component: Component
    ids: npt.NDArray[np.int32]
    rows: Any


def components_of(schema: TargetingSchema) -> tuple[Component, ...]:
    return (BitsComponent(schema), *(ListsComponent(schema, each) for each in schema.sets))


def parts_of(snapshot: Snapshot) -> Iterator[Part]:
    values = iter(snapshot.set_values)
    for number, component in enumerate(components_of(snapshot.schema)):
        rows = snapshot.rules.parts[number]
        ids = snapshot.rules.rows[:, number]
        yield Part(component, ids, ListRows(rows, next(values)) if component.has_values else rows)


def explain(snapshot: Snapshot, ad: int, user: ValuesOf) -> tuple[Reason, ...]:
    """Test each rule of an ad, given by its ordinal. It is eligible if and only if all pass."""
    rule = int(snapshot.ads.ad_rule[ad])
    return tuple(
        reason
        for component, ids, rows in parts_of(snapshot)
        for reason in component.explain(rows, int(ids[rule]), user)
    )


def explain_lists(schema: TargetingSchema, lists: ValuesOf, user: ValuesOf) -> tuple[Reason, ...]:
    """Test each rule of an ad, given by its lists: those of its row in an ads table, by column."""
    return tuple(
        reason
        for component in components_of(schema)
        for reason in component.explain_lists(lists, user)
    )
