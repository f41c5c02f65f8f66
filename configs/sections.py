"""Fill frozen dataclasses from plain values; refuse what does not fit, with its path.

    decoder: unknown key 'layer'; known: heads, layers
    decoder: missing key 'heads'
    decoder.heads: expected an integer, got 'four' (a string)

Fields may be str, int, float (also given as an integer), bool, Literal, Path, another frozen
dataclass, `X | None`, tuple[X, ...], tuple[X, Y] and dict[str, X] (or Mapping). The key `kind`
chooses one of several dataclasses, by the Literal of its field `kind`. If they have no such field,
the first whose `describes(values)` is true is chosen, else the last.
A field with a default may be absent. A section in a dict holds its key in a field `x: str = KEY`.
A ConfigError or ValueError from `__post_init__` gets the section's path.
"""

import math
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from grace.configs.errors import ConfigError
from grace.configs.options import declaration

Values = TypeVar("Values")

KEY: Any = field(metadata={"is_key": True})

_SCALARS = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}


def load_section(cls: type[Values], values: Mapping[str, Any], source: str = "") -> Values:
    """Return the section that `values` describe. Errors open with `source`, such as a file name."""
    try:
        return _section(cls, values, "")
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}" if source else str(error)) from None


class Section:
    """A section whose constructor checks the bounds that its fields declare, and its `faults`."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for fault in chain(_beyond_bounds(self), self.faults()):
            raise ConfigError(fault)

    def faults(self) -> Iterable[str]:
        """Yield the faults that numbers within their bounds can still have."""
        return ()


def _beyond_bounds(section: Section) -> Iterator[str]:
    for name, hint in get_type_hints(type(section), include_extras=True).items():
        _, declared = declaration(hint)
        for place, number in _numbers(name, getattr(section, name)):
            if declared.least is not None and number < declared.least:
                yield f"{place}: must be at least {declared.least}, got {number}"
            if declared.most is not None and number > declared.most:
                yield f"{place}: must be at most {declared.most}, got {number}"
            if declared.above is not None and number <= declared.above:
                yield f"{place}: must be above {declared.above}, got {number}"


def _numbers(place: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a field, each with its place."""
    if isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from _numbers(f"{place}[{i}]", item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _numbers(f"{place}.{key}", item)
    elif isinstance(value, int | float):
        yield place, value


def _section(cls: type[Values], values: Any, path: str, key: str | None = None) -> Values:
    if not is_dataclass(cls) or not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise TypeError(f"{cls.__name__}: a section is a frozen dataclass")
    if not isinstance(values, Mapping):
        raise _unexpected(path, "keys with values", values)
    keys = [] if key is None else [each.name for each in fields(cls) if "is_key" in each.metadata]
    declared = {each.name: each for each in fields(cls) if each.init and each.name not in keys}
    known = ", ".join(sorted(declared))
    for name in values:
        if name not in declared:
            raise _fault(path, f"unknown key {name!r}; known: {known}")
    hints = get_type_hints(cls)
    arguments: dict[str, Any] = dict.fromkeys(keys, key)
    for name, of in declared.items():
        if name in values:
            arguments[name] = _convert(hints[name], values[name], _joined(path, name))
        elif of.default is MISSING and of.default_factory is MISSING:
            raise _fault(path, f"missing key {name!r}")
    try:
        return cls(**arguments)
    except (ConfigError, ValueError) as error:
        is_of_field = re.split(r"[.:[]", str(error))[0] in declared
        located = _joined(path, str(error)) if is_of_field else str(_fault(path, str(error)))
        raise ConfigError(located) from None


def _convert(expected: Any, value: Any, path: str, key: str | None = None) -> Any:
    origin = get_origin(expected)
    if expected in _SCALARS:
        return _scalar(expected, value, path)
    if expected is Path:
        return Path(_scalar(str, value, path))
    if origin in (Union, types.UnionType):
        return _one_of(get_args(expected), value, path)
    if origin is Literal:
        return _choice(get_args(expected), value, path)
    if origin is tuple:
        return _tuple(get_args(expected), value, path)
    if origin in (dict, Mapping):
        return _dict(get_args(expected), value, path)
    return _section(expected, value, path, key)


def _scalar(expected: type, value: Any, path: str) -> Any:
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        remedy = "; quote it" if expected is str and isinstance(value, bool | int | float) else ""
        raise _unexpected(path, _SCALARS[expected], value, remedy)
    if isinstance(value, float) and not math.isfinite(value):
        raise _unexpected(path, "a finite number", value)
    return value


def _one_of(members: tuple[Any, ...], value: Any, path: str) -> Any:
    others = [member for member in members if member is not type(None)]
    if value is None and len(others) < len(members):
        return None
    if len(others) == 1:
        return _convert(others[0], value, path)
    if not all(map(is_dataclass, others)):
        raise TypeError(f"{path}: a section may hold `X | None`, or one of several dataclasses")
    *described, last = others
    if all(hasattr(member, "describes") for member in described):
        found = next((member for member in described if member.describes(value)), last)
        return _section(found, value, path)
    kinds = {get_args(get_type_hints(member)["kind"])[0]: member for member in others}
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if kind not in list(kinds):
        raise _fault(_joined(path, "kind"), f"expected one of {', '.join(kinds)}")
    return _section(kinds[kind], value, path)


def _choice(choices: tuple[Any, ...], value: Any, path: str) -> Any:
    for choice in choices:
        if value == choice and type(value) is type(choice):
            return choice
    raise _unexpected(path, "one of " + ", ".join(map(str, choices)), value)


def _tuple(members: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _unexpected(path, "a list", value)
    if len(members) == 2 and members[1] is ...:
        members = (members[0],) * len(value)
    if len(members) != len(value):
        raise _unexpected(path, f"a list of {len(members)} values", value)
    pairs = zip(members, value, strict=True)
    return tuple(_convert(member, item, f"{path}[{i}]") for i, (member, item) in enumerate(pairs))


def _dict(members: tuple[Any, Any], value: Any, path: str) -> dict[str, Any]:
    key_type, item_type = members
    if key_type is not str:
        raise TypeError(f"{path}: the keys of a section's mapping are strings")
    if not isinstance(value, Mapping):
        raise _unexpected(path, "keys with values", value)
    for key in value:
        if not isinstance(key, str):
            raise _unexpected(path, "string keys", key)
    return {key: _convert(item_type, item, _joined(path, key), key) for key, item in value.items()}


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _fault(path: str, fault: str) -> ConfigError:
    return ConfigError(f"{path}: {fault}" if path else fault)


def _unexpected(path: str, expected: str, value: Any, remedy: str = "") -> ConfigError:
    return _fault(path, f"expected {expected}, got {_shown(value)}{remedy}")


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"{str(value).lower()} (a boolean)"
    if isinstance(value, Mapping):
        return f"{len(value)} keys with values"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    text = repr(value)
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return f"{shown} ({_SCALARS.get(type(value), type(value).__name__)})"
