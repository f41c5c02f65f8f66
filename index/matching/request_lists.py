"""Lists of a batch's requests, checked, and as the arrays that native matching reads."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from grace.configs.errors import InputError
from grace.index.entities import Entities

_NO_IDS = np.empty(0, np.int64)
_NO_LIMIT = -1


def excluded_places(
    exclude: Sequence[Mapping[str, npt.ArrayLike]] | None,
    requests: int,
    entities: Sequence[Entities],
) -> tuple[npt.NDArray[np.int64] | None, npt.NDArray[np.int32] | None]:
    """Return offsets [B * kinds + 1], request by request, and places of known entities."""
    require_one_each("exclude", exclude, requests)
    if not any(exclude or ()):
        return None, None
    lists = []
    for of_request in exclude or ():
        _require_entities("exclude", of_request, [kind.name for kind in entities])
        for kind in entities:
            ids = integers("exclude", of_request.get(kind.name, _NO_IDS)).reshape(-1)
            found = kind.places(ids)
            lists.append(found[found >= 0])
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(found) for found in lists], out=offsets[1:])
    return offsets, np.concatenate(lists).astype(np.int32)


def entity_limits(
    at_most: Sequence[Mapping[str, int]] | None, requests: int, names: Sequence[str]
) -> npt.NDArray[np.int64] | None:
    """Return the limit of each request and kind, or _NO_LIMIT.   [B, kinds]"""
    require_one_each("at_most", at_most, requests)
    if not any(at_most or ()):
        return None
    limits = np.full((requests, len(names)), _NO_LIMIT, np.int64)
    for row, of_request in zip(limits, at_most or (), strict=True):
        _require_entities("at_most", of_request, names)
        for name, most in of_request.items():
            if most < 0:
                raise InputError(f"at_most.{name} must not be negative, got {most}")
            row[names.index(name)] = most
    return limits


def require_one_each(name: str, values: Sequence[object] | None, requests: int) -> None:
    if values is not None and len(values) != requests:
        raise InputError(f"{name} must have one entry per request, {requests}, got {len(values)}")


def _require_entities(name: str, given: Iterable[str], known: Sequence[str]) -> None:
    for entity in given:
        if entity not in known:
            listed = ", ".join(known) or "none"
            raise InputError(f"{name}: {entity!r} is no entity of the schema, which has: {listed}")


def integers(name: str, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return int64, but refuse to cut off a fraction."""
    array = np.asarray(values)
    if array.dtype == np.int64:
        return array
    if array.size and (array.dtype.kind not in "iu" or array.dtype == np.uint64):
        raise InputError(f"{name} must be 64-bit integers, got {array.dtype}")
    return array.astype(np.int64)
