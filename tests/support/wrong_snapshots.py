"""Damage to a snapshot's files, and wrong contents that tests write with right digests."""

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from support.forgery import Fields

Array = npt.NDArray[Any]

_HUGE = st.sampled_from([0, -1, 2**31 - 1, 2**31, 2**63 - 1, 2**64 - 1, 10**30])
_TEXTS = st.text(max_size=5) | st.sampled_from(
    ["2026-02-30T12:00:00Z", "\n", "\x1b[31m", "x" * 9999]
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 70) | _HUGE | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def mutations(draw: st.DrawFn, fields: Fields) -> None:
    """Replace, remove or repeat one to three values of a manifest."""
    for _ in range(draw(st.integers(1, 3))):
        parent, key = draw(st.sampled_from(list(_places(fields))))
        if draw(st.booleans()):
            parent[key] = draw(_VALUES)
        elif draw(st.booleans()):
            del parent[key]
        elif isinstance(parent, list):
            parent.insert(key, parent[key])
        else:
            parent[draw(_TEXTS)] = parent[key]


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return every list and mapping, with each of its keys."""
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    here = [(value, key) for key in keys]
    return [*here, *(place for key in keys for place in _places(value[key]))]


def corrupt(array: Array, data: st.DataObject) -> Array:
    """Replace a few numbers by extremes, neighbours or anything, or swap two of them."""
    flat = array.copy().reshape(-1)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(flat) - 1))
        if data.draw(st.booleans()):
            other = data.draw(st.integers(0, len(flat) - 1))
            flat[[at, other]] = flat[[other, at]]
        elif flat.dtype.kind == "f":
            flat[at] = data.draw(st.floats(width=32))
        else:
            limits = np.iinfo(flat.dtype)
            least, most = int(limits.min), int(limits.max)
            near = st.integers(max(int(flat[at]) - 2, least), min(int(flat[at]) + 2, most))
            extreme = st.sampled_from([least, most])
            flat[at] = data.draw(extreme | near | st.integers(least, most))
    return flat.reshape(array.shape)
