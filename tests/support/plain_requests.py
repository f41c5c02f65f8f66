"""The plain reader of requests, a strict one and protobuf's own. Tests compare C++ with it.

Where several things are wrong with a request, both name the first one in the order of fields, and
in a map in the order of names.
"""

from collections.abc import Iterator, Mapping, Sized
from math import isfinite
from typing import Any

import numpy as np

from grace.configs.generation import GenerationConfig
from grace.configs.serving import LimitsConfig
from grace.proto.retrieval_pb2 import RetrieveRequest
from grace.server.errors import ServiceError, invalid_field, malformed
from grace.server.messages import Priority, Retrieval
from support.strict_wire import REQUEST, MalformedError, UnknownFieldError, Values, decode

PRIORITIES: Mapping[str, Priority] = {"": "NORMAL", "NORMAL": "NORMAL", "LOW": "LOW"}
SHOWN_CHARACTERS = 64

Fault = tuple[str, str]
"""A path, and what is wrong there."""


def plain_request(message: bytes, limits: LimitsConfig, generation: GenerationConfig) -> Retrieval:
    """Raises ServiceError."""
    if len(message) > limits.message_bytes:
        raise ServiceError(
            "too_large",
            f"the request has {len(message)} bytes, at most {limits.message_bytes} "
            "(limits.message_bytes)",
        )
    try:
        values = decode(message, REQUEST)
    except MalformedError:
        raise malformed("RetrieveRequest") from None
    except UnknownFieldError as error:
        raise invalid_field(error.within or "RetrieveRequest", error.text) from None
    sid_length = len(generation.profiles[generation.default_profile].beams)
    for path, fault in _Faults(limits, sid_length).of(values):
        raise invalid_field(path, fault)
    request = RetrieveRequest.FromString(message)
    return Retrieval(
        message=message,
        request_id=request.request_id,
        model=request.model,
        sid_space=request.sid_space,
        max_ads=request.max_ads or limits.default_max_ads,
        profile=_profile(request.profile, generation),
        priority=_priority(request.priority),
        exclude_ads=np.array(request.exclude_ads, np.int64),
        exclude={name: np.array(ids.ids, np.int64) for name, ids in request.exclude.items()},
        at_most=dict(request.at_most),
        include_sids=request.include_sids,
        strict=request.strict,
        at=request.at,
    )


def _profile(given: str, generation: GenerationConfig) -> str:
    if given and given not in generation.profiles:
        known = ", ".join(sorted(generation.profiles))
        raise invalid_field("profile", f"{_shown(given)} is not a profile here; known: {known}")
    return given or generation.default_profile


def _priority(given: str) -> Priority:
    priority = PRIORITIES.get(given)
    if priority is None:
        raise invalid_field("priority", f"{_shown(given)} is neither NORMAL nor LOW")
    return priority


class _Faults:
    def __init__(self, limits: LimitsConfig, sid_length: int) -> None:
        self._limits, self._sid_length = limits, sid_length

    def of(self, request: Values) -> Iterator[Fault]:
        """Yield whatever is beyond a limit or not finite."""
        yield from self._text(request, "request_id", "request_id_bytes")
        yield from self._text(request, "model")
        yield from self._text(request, "sid_space")
        yield from self._user(request.get("user", {}))
        yield from self._features(request.get("features", {}))
        yield from self._few("max_ads", request.get("max_ads", 0), "ads", "max_ads")
        yield from self._text(request, "profile")
        yield from self._text(request, "priority")
        excluded, exclude = request.get("exclude_ads", []), request.get("exclude", {})
        yield from self._few("exclude_ads", excluded, "ads", "exclude_ads")
        yield from self._names("exclude", exclude)
        ids = len(excluded) + sum(len(each.get("ids", [])) for each in exclude.values())
        yield from self._few("exclude", ids, "ids with those of exclude_ads", "exclude_ads")
        yield from self._names("at_most", request.get("at_most", {}))
        yield from _within("at", request.get("at", 0), 0, 253_402_300_799_999)
        yield from _within("utc_offset_minutes", request.get("utc_offset_minutes", 0), -840, 840)
        yield from self._filters(request.get("filters", {}))

    def _user(self, user: Values) -> Iterator[Fault]:
        yield from self._names("user", user)
        yield from self._texts("user", user, "values", "values_per_name")
        for path, number in _lists("user", user, "number"):
            if number != [] and not isfinite(number):
                yield path, f"{number} is not finite"
        values = sum(len(each.get("values", [])) for each in user.values())
        yield from self._few("user", values, "values", "user_values")

    def _filters(self, filters: Values) -> Iterator[Fault]:
        yield from self._names("filters", filters)
        for name in ("any_of", "none_of"):
            yield from self._texts("filters", filters, name, "filter_values")
        for path, unknown in _lists("filters", filters, "unknown"):
            yield from _within(path, unknown or 0, 0, 2)

    def _texts(self, map_name: str, entries: Values, name: str, setting: str) -> Iterator[Fault]:
        for path, values in _lists(map_name, entries, name):
            yield from self._few(path, values, "values", setting)
            longest = max((len(value.encode()) for value in values), default=0)
            yield from self._few(path, longest, "bytes", "value_bytes", "a value has ")

    def _features(self, features: Values) -> Iterator[Fault]:
        yield from self._long_names("features.dense", features.get("dense", {}))
        for path, numbers in _lists("features.dense", features.get("dense", {}), "values"):
            yield from self._few(path, numbers, "values", "values_per_name")
            yield from ((path, f"{each} is not finite") for each in numbers if not isfinite(each))
        for kind in ("categorical", "bags"):
            yield from self._ids(kind, features.get(kind, {}), "values_per_name")
        sequences = features.get("sequences", {})
        yield from self._long_names("features.sequences", sequences)
        for path, sids in _lists("features.sequences", sequences, "sids"):
            yield from self._few(path, -(-len(sids) // self._sid_length), "events", "events")
        for path, times in _lists("features.sequences", sequences, "timestamps_ms"):
            yield from self._few(path, times, "events", "events")
        sides = _lists("features.sequences", sequences, "side")
        of_sides = [(path, side or {}) for path, side in sides]
        for path, side in of_sides:
            yield from self._long_names(path, side)
        for path, side in of_sides:
            for of_one, ids in _lists(path, side, "ids"):
                yield from self._few(of_one, ids, "events", "events")
        yield from self._ids("tokens", features.get("tokens", {}), "events")
        names = sum(map(len, features.values())) + sum(len(side) for _, side in of_sides)
        yield from self._few("features", names, "names", "names")

    def _ids(self, kind: str, entries: Values, setting: str) -> Iterator[Fault]:
        yield from self._long_names(f"features.{kind}", entries)
        for path, ids in _lists(f"features.{kind}", entries, "ids"):
            yield from self._few(path, ids, "ids", setting)

    def _text(self, request: Values, name: str, setting: str = "value_bytes") -> Iterator[Fault]:
        yield from self._few(name, len(request.get(name, "").encode()), "bytes", setting)

    def _names(self, path: str, entries: Values) -> Iterator[Fault]:
        yield from self._few(path, entries, "names", "names")
        yield from self._long_names(path, entries)

    def _long_names(self, path: str, entries: Values) -> Iterator[Fault]:
        for name in sorted(entries):
            yield from self._few(path, len(name.encode()), "bytes", "value_bytes", "a name has ")

    def _few(
        self, path: str, given: int | Sized, unit: str, setting: str, what: str = ""
    ) -> Iterator[Fault]:
        count = given if isinstance(given, int) else len(given)
        most = getattr(self._limits, setting)
        if count > most:
            yield path, f"{what}{count} {unit}, at most {most} (limits.{setting})"


def _within(path: str, value: int, least: int, most: int) -> Iterator[Fault]:
    if not least <= value <= most:
        yield path, f"{value} is not within {least} to {most}"


def _lists(path: str, entries: Values, name: str) -> Iterator[tuple[str, Any]]:
    """Yield a field of every entry of a map with its path, in the order of names."""
    for key in sorted(entries):
        yield f"{path}.{key}.{name}", entries[key].get(name, [])


def _shown(text: str) -> str:
    """A caller's own value, short enough for a status."""
    cut = text[:SHOWN_CHARACTERS]
    return repr(cut) if cut == text else f"{cut!r}..."
