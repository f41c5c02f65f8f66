"""A request from plain Python values.

    request_of({"user": {"country": "US"}, "sequences": {"clicks": [(12, 40, 7, 31)]}})

With a data folder, the ids of its tables become numbers and SIDs. The values become the API's JSON,
and `request_of_json` checks them: each fault comes with its path.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, TypedDict

from grace.client.request_json import request_of_json
from grace.configs.errors import InputError, RequestError
from grace.proto.retrieval_pb2 import RetrieveRequest

if TYPE_CHECKING:
    from grace.index.tables.ids import DataIds

_PLAIN = re.compile(r"0|[1-9][0-9]*")  # one spelling for each number

Id: TypeAlias = int | str
"""A number, or a text, which is an id of the data folder's tables."""
Sid: TypeAlias = Iterable[int]
"""The tokens of one SID, such as the `sid` of a returned ad."""


@dataclass(frozen=True, slots=True)
class Events:
    """A user's events of one kind, oldest first."""

    # the SID or the item's id (a text) of each event; or all tokens in one list
    sids: Iterable[Sid | str]
    timestamps_ms: Iterable[int] = ()  # a time for each event, or none at all
    # other facts about the events: one id for each event
    side: Mapping[str, Iterable[int]] = field(default_factory=dict)


class FilterFields(TypedDict, total=False):
    """A filter of ads by one property; docs/api.md explains it."""

    any_of: str | Iterable[str]
    none_of: str | Iterable[str]
    unknown: Literal["PASSES", "BLOCKED"] | bool


class RequestFields(TypedDict, total=False):
    """The fields of a request; docs/api.md explains them. NumPy arrays count as lists.

    Ids are numbers, or texts if the client has the data folder of the ads.
    """

    request_id: str
    model: str
    sid_space: str
    # value or values of each name, the number of a range: {"country": "US", "age": 34}
    user: Mapping[str, str | float | Iterable[str] | None]
    # the model's inputs of each kind, by name
    dense: Mapping[str, float | Iterable[float]]
    categorical: Mapping[str, int]
    bags: Mapping[str, Iterable[int]]
    tokens: Mapping[str, Iterable[int]]
    sequences: Mapping[str, Events | Iterable[Sid | str]]
    max_ads: int
    profile: str
    priority: Literal["NORMAL", "LOW"]
    exclude_ads: Iterable[Id]
    # id or ids of each kind of entity whose ads to leave out: {"campaign": [9, 12]}
    exclude: Mapping[str, Id | Iterable[Id]]
    at_most: Mapping[str, int]
    include_sids: bool
    strict: bool  # refuse a request with an unknown name; True by default
    at: datetime | int  # with a time zone, or milliseconds since 1970
    utc_offset_minutes: int
    # what ads must be: {"category": {"none_of": ["alcohol"], "unknown": False}}; `unknown` says
    # whether ads without a category pass
    filters: Mapping[str, FilterFields]


def request_of(
    fields: RequestFields, ids: "DataIds | None" = None, unknown_items: list[str] | None = None
) -> RetrieveRequest:
    """Return the request with these fields. Raise a RequestError that names a faulty one.

    `ids` are those of the data folder. `unknown_items` receives the items of left-out events.
    """
    if unknown := fields.keys() - RequestFields.__annotations__.keys():
        known = ", ".join(RequestFields.__annotations__)
        raise RequestError("request", f"unknown field {min(unknown)!r}; known: {known}")
    strict = fields.get("strict")
    given = {**fields, "strict": True if strict is None else strict}
    values = {name: _JSON.get(name, _plain)(value) for name, value in given.items()}
    if "exclude_ads" in values:
        numbers = _number if ids is None else partial(ids.number, "ad")
        values["exclude_ads"] = _replaced(values["exclude_ads"], "exclude_ads", numbers)
    for name, each in _items(values.get("exclude")):
        numbers = _number if ids is None else partial(ids.number, name)
        each["ids"] = _replaced(each["ids"], f"exclude.{name}.ids", numbers)
    for name, each in _items(values.get("filters")):
        if isinstance(each, Mapping) and [] in (each.get("any_of"), each.get("anyOf")):
            # The server cannot see that it was given, and would pass every ad.
            raise RequestError(f"filters.{name}.any_of", "is empty; name values, or leave it out")
    for name, events in _items(values.get("sequences")):
        left_out = _replace_items(events, f"features.sequences.{name}", ids)
        if unknown_items is not None:
            unknown_items += left_out
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
    return {
        "sids": _list(events.sids),
        "timestamps_ms": _list(events.timestamps_ms),
        "side": _entries(lambda ids: {"ids": _list(ids)})(events.side),
    }


def _user(given: Any) -> dict[str, Any]:
    value = _plain(given)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"number": value} if is_number else {"values": _list(value)}


def _filter(given: Any) -> Any:
    if not isinstance(given, Mapping):
        return given
    stated = {name: value for name, value in given.items() if value is not None}
    lists = {name: _list(value) for name, value in stated.items() if name != "unknown"}
    unknown = given.get("unknown")
    if isinstance(unknown, bool):
        unknown = "PASSES" if unknown else "BLOCKED"
    return {**lists, "unknown": unknown}


def _milliseconds(at: Any) -> Any:
    if not isinstance(at, datetime):
        return _plain(at)
    if at.utcoffset() is None:
        fault = f"{at.isoformat()} has no time zone; give it one, as in datetime.now(UTC)"
        raise RequestError("at", fault)
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _items(values: Any) -> list[tuple[str, Any]]:
    """Return the entries of a mapping. `request_of_json` refuses anything else."""
    return list(values.items()) if isinstance(values, Mapping) else []


def _replaced(given: list[Any], at: str, find: Callable[[str], Any]) -> list[Any]:
    """Replace each text of the list by what `find` returns for it."""
    found = list(given)
    for place, text in enumerate(given):
        if isinstance(text, str):
            try:
                found[place] = find(text)
            except InputError as error:
                raise RequestError(f"{at}[{place}]", str(error)) from None
    return found


def _number(text: str) -> int:
    return int(text) if _PLAIN.fullmatch(text) else _no_folder(text)


def _no_folder(text: str) -> NoReturn:
    raise InputError(f"{text!r}: texts need the data folder: Client(..., ids=FOLDER)")


def _replace_items(events: dict[str, Any], at: str, ids: "DataIds | None") -> list[str]:
    """Replace items by their SIDs, in one flat list; return those of left-out events."""
    given = events["sids"]
    for place, each in enumerate(given):
        if each is None:
            raise RequestError(f"{at}.sids[{place}]", "None; give a SID or an item's id")
    sids = _replaced(given, f"{at}.sids", _no_folder if ids is None else ids.sid)
    kept = [sid is not None for sid in sids]
    if not all(kept):
        sides = [(f"side.{name}.ids", each, "ids") for name, each in _items(events["side"])]
        for path, facts, key in (("timestamps_ms", events, "timestamps_ms"), *sides):
            if len(facts[key]) not in (0, len(sids)):
                fault = f"number of values: {len(facts[key])}, of events: {len(sids)}"
                raise RequestError(f"{at}.{path}", f"{fault}; send one for each event")
            facts[key] = list(compress(facts[key], kept))
    known = [_list(sid) for sid in compress(sids, kept)]
    if len(lengths := {len(sid) for sid in known}) > 1:
        listed = ", ".join(map(str, sorted(lengths)))
        raise RequestError("sequences", f"SIDs of {listed} tokens; all have one length")
    events["sids"] = [token for sid in known for token in sid]
    return [item for item, is_known in zip(given, kept, strict=True) if not is_known]


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


FEATURES = ("dense", "categorical", "bags", "sequences", "tokens")

_JSON: Mapping[str, Callable[[Any], Any]] = {
    "user": _entries(_user),
    "dense": _entries(lambda value: {"values": _list(value)}),
    "categorical": _entries(lambda value: {"ids": _list(value)}),
    "bags": _entries(lambda value: {"ids": _list(value)}),
    "tokens": _entries(lambda value: {"ids": _list(value)}),
    "sequences": _entries(_events),
    "exclude": _entries(lambda value: {"ids": _list(value)}),
    "exclude_ads": _list,
    "at_most": _entries(_plain),
    "at": _milliseconds,
    "filters": _entries(_filter),
}
"""The conversion of each field to the API's JSON."""
