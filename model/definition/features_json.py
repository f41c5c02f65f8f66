"""A request's features as people write them in JSON, which is also protobuf's JSON form.

{"dense": {"hour": {"values": [13]}}, "categorical": {"device": {"ids": ["17"]}},
 "bags": {"pages": {"ids": ["5", 7]}},
 "sequences": {"clicks": {"sids": [12, 400, 7, 31], "timestamps_ms": ["0"],
                          "side": {"action": {"ids": ["2"]}}}}}

64-bit integers may be strings, since a JSON number is a double to many readers.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from grace.configs.errors import RequestError
from grace.model.definition.inputs import EventSequence, RequestFeatures

__all__ = ["features_of_json"]

Value = TypeVar("Value")

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)", re.ASCII)
_MAX_DIGITS = 20


def features_of_json(features: Mapping[str, Any]) -> RequestFeatures:
    """Raises RequestError, naming the field; what the numbers may be is the model's to say."""
    at = "features"
    _only_keys(features, ("dense", "categorical", "bags", "sequences"), at)
    return RequestFeatures(
        dense=_named(features.get("dense", {}), f"{at}.dense", _values),
        categorical=_named(features.get("categorical", {}), f"{at}.categorical", _ids),
        bags=_named(features.get("bags", {}), f"{at}.bags", _ids),
        sequences=_named(features.get("sequences", {}), f"{at}.sequences", _events),
    )


def _named(values: Any, at: str, read: Callable[[Any, str], Value]) -> dict[str, Value]:
    _require_object(values, at)
    return {name: read(value, f"{at}.{name}") for name, value in values.items()}


def _values(value: Any, at: str) -> list[float]:
    _only_keys(value, ("values",), at)
    return [_number(x, f"{at}.values") for x in _list(value.get("values", []), f"{at}.values")]


def _ids(value: Any, at: str) -> list[int]:
    _only_keys(value, ("ids",), at)
    return _integers(value.get("ids", []), f"{at}.ids")


def _events(value: Any, at: str) -> EventSequence:
    _only_keys(value, ("sids", "timestamps_ms", "side"), at)
    return EventSequence(
        sids=_integers(value.get("sids", []), f"{at}.sids"),
        timestamps_ms=_integers(value.get("timestamps_ms", []), f"{at}.timestamps_ms"),
        side=_named(value.get("side", {}), f"{at}.side", _ids),
    )


def _integers(values: Any, at: str) -> list[int]:
    return [x if type(x) is int else _integer(x, at) for x in _list(values, at)]


def _integer(value: Any, at: str) -> int:
    if isinstance(value, str) and len(value) <= _MAX_DIGITS and _INTEGER.fullmatch(value):
        return int(value)
    raise RequestError(at, f"{value!r} is not an integer")


def _number(value: Any, at: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(at, f"{value!r} is not a number")
    try:
        return float(value)
    except OverflowError:
        raise RequestError(at, "a number is too large") from None


def _list(values: Any, at: str) -> list[Any]:
    if not isinstance(values, list):
        raise RequestError(at, f"expected a list, got {type(values).__name__}")
    return values


def _only_keys(value: Any, known: tuple[str, ...], at: str) -> None:
    _require_object(value, at)
    for key in value:
        if key not in known:
            raise RequestError(at, f"unknown key {key!r}; known: {', '.join(known)}")


def _require_object(value: Any, at: str) -> None:
    if not isinstance(value, Mapping):
        raise RequestError(at, f"expected an object, got {type(value).__name__}")
