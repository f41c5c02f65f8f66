"""The components of a schema: the one place that knows all forms."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from grace.index.forms.bits import BitsComponent
from grace.index.forms.component import Component, Reason, ValuedRows
from grace.index.forms.interval import IntervalComponent
from grace.index.forms.lists import ListsComponent
from grace.index.forms.properties import PropertiesComponent
from grace.index.snapshot import Snapshot
from grace.index.targeting.schema import TargetingSchema
from grace.proto.retrieval_pb2 import RetrieveRequest


class Part(NamedTuple):
    """A component, the row of each rule, and the rows."""

    component: Component
    ids: npt.NDArray[np.int32]
    rows: Any


def components_of(schema: TargetingSchema) -> tuple[Component, ...]:
    """Return them in the order of `schema.columns`."""
    return (
        BitsComponent(schema),
        *(ListsComponent(schema, each) for each in schema.sets),
        *(IntervalComponent(each) for each in (*schema.ranges, *schema.flights)),
        *(PropertiesComponent(each) for each in schema.properties),
    )


def parts_of(snapshot: Snapshot) -> Iterator[Part]:
    values = iter(snapshot.set_values)
    for number, component in enumerate(components_of(snapshot.schema)):
        rows = snapshot.rules.parts[number]
        ids = snapshot.rules.rows[:, number]
        yield Part(component, ids, ValuedRows(rows, next(values)) if component.has_values else rows)


def explain(snapshot: Snapshot, ad: int, request: RetrieveRequest) -> tuple[Reason, ...]:
    """Test a rule of an ad, given by its ordinal: of several, the first one that fails least.

    The ad is eligible if and only if all reasons pass. The request says `at`.
    """
    parts = [*parts_of(snapshot)]
    tested = [
        tuple(
            reason
            for component, ids, rows in parts
            for reason in component.explain(rows, int(ids[rule]), request)
        )
        for rule in snapshot.rules.rules_of(int(snapshot.ads.ad_rule[ad]))
    ]
    return min(tested, key=lambda reasons: sum(not reason.passes for reason in reasons))
