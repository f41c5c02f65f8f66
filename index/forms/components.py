"""The components of a schema: the one place that knows all forms."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from grace.index.forms.bits import BitsComponent
from grace.index.forms.component import Component
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
