"""A request from plain Python values.

    request_of({"user": {"country": "US"}, "sequences": {"clicks": [(12, 40, 7, 31)]}})

The values become the API's JSON, and `request_of_json` checks them: each fault comes with its path.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypedDict

from grace.client.request_json import request_of_json
from grace.configs.errors import RequestError
from grace.proto.retrieval_pb2 import RetrieveRequest

Sid: TypeAlias = Iterable[int]
"""The tokens of one SID, such as the `sid` of a returned ad."""


@dataclass(frozen=True, slots=True)
class Events:
    """A user's events of one kind, oldest first.

    sids           the SID of each event, or the tokens of all events in one list
    timestamps_ms  a time for each event, or none at all
    side           other facts about the events: one id for each event
    """

    sids: Iterable[Sid]
    timestamps_ms: Iterable[int] = ()
    side: Mapping[str, Iterable[int]] = field(default_factory=dict)


class RequestFields(TypedDict, total=False):
    """The fields of a request; docs/api.md explains them. NumPy arrays count as lists.

    user         value or values of each attribute and set: {"country": "US", "location": [...]}
    dense, categorical, bags, sequences     the model's inputs of each kind, by name
    exclude      id or ids of each kind of entity whose ads to leave out: {"campaign": [9, 12]}
    """

    request_id: str
    model: str
    sid_space: str
    user: Mapping[str, str | Iterable[str] | None]
    dense: Mapping[str, float | Iterable[float]]
    categorical: Mapping[str, int]
    bags: Mapping[str, Iterable[int]]
    sequences: Mapping[str, Events | Iterable[Sid]]
    max_ads: int
    profile: str
    priority: Literal["NORMAL", "LOW"]
    exclude_ads: Iterable[int]
    exclude: Mapping[str, int | Iterable[int]]
    at_most: Mapping[str, int]
    include_sids: bool


def request_of(fields: RequestFields) -> RetrieveRequest:
    """Return the request with these fields. Raise a RequestError that names a faulty one."""
    if unknown := fields.keys() - RequestFields.__annotations__.keys():
        known = ", ".join(RequestFields.__annotations__)
        raise RequestError("request", f"unknown field {min(unknown)!r}; known: {known}")
    values = {name: _JSON.get(name, _plain)(value) for name, value in fields.items()}
    features = {name: values.pop(name) for name in FEATURES if name in values}
    return request_of_json({**values, "features": features} if features else values)


def _entries(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that converts a mapping's values. `request_of_json` checks the rest."""

    def converted(values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        return {name: convert(value) for name, value in values.items()}

    return converted


def _events(given: Any) -> dict[str, Any]:
    events = given if isinstance(given, Events) else Events(given)
    sids = list(map(_list, _list(events.sids)))
    if len({len(sid) for sid in sids}) > 1:
        lengths = ", ".join(map(str, sorted({len(sid) for sid in sids})))
        raise RequestError("sequences", f"SIDs of {lengths} tokens; all have one length")
    return {
        "sids": [token for sid in sids for token in sid],
        "timestamps_ms": _list(events.timestamps_ms),
        "side": _entries(lambda ids: {"ids": _list(ids)})(events.side),
    }


def _list(value: Any) -> list[Any]:
    """Return the values: one of them alone, several, or none."""
    value = _plain(value)
    if value is None:
        return []
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return [value]
    return [_plain(each) for each in value]


def _plain(value: Any) -> Any:
    """Return Python's own form of a value of NumPy or torch."""
    return value.tolist() if hasattr(value, "tolist") else value


FEATURES = ("dense", "categorical", "bags", "sequences")

_JSON: Mapping[str, Callable[[Any], Any]] = {
    "user": _entries(lambda value: {"values": _list(value)}),
    "dense": _entries(lambda value: {"values": _list(value)}),
    "categorical": _entries(lambda value: {"ids": _list(value)}),
    "bags": _entries(lambda value: {"ids": _list(value)}),
    "sequences": _entries(_events),
    "exclude": _entries(lambda value: {"ids": _list(value)}),
    "exclude_ads": _list,
    "at_most": _entries(_plain),
}
"""The conversion of each field to the API's JSON."""
