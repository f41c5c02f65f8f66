"""Fill frozen dataclasses from plain values; refuse what does not fit, with its path.

    decoder: unknown key 'layer'; known: heads, layers
    decoder: missing key 'heads'
    decoder.heads: expected an integer, got 'four' (a string)

Fields may be str, int, float (also given as an integer), bool, Literal, Path, another frozen
dataclass, `X | None`, tuple[X, ...], tuple[X, Y] and dict[str, X] (or Mapping).
A field with a default may be absent. A ConfigError or ValueError from `__post_init__` gets the
section's path.
"""

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from grace.configs.errors import ConfigError
from grace.configs.yaml_loader import read_yaml

Section = TypeVar("Section")

_SCALARS = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}


def load_section(cls: type[Section], values: Mapping[str, Any], source: str = "") -> Section:
    """Return the section that `values` describe. Errors open with `source`, such as a file name."""
    try:
        return _section(cls, values, "")
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}" if source else str(error)) from None


def read_sections(path: Path, names: tuple[str, ...]) -> dict[str, Mapping[str, Any]]:
    """Return the top-level sections of a YAML file, which must be exactly `names`."""
    values = read_yaml(path)
    for name in values:
        if name not in names:
            raise ConfigError(f"{path}: unknown key {name!r}; known: {', '.join(names)}")
    sections: dict[str, Mapping[str, Any]] = {}
    for name in names:
        section = values.get(name)
        if not isinstance(section, Mapping):
            raise ConfigError(f"{path}: section {name!r} is missing; add it with its keys")
        sections[name] = section
    return sections


def _section(cls: type[Section], values: Any, path: str) -> Section:
    if not is_dataclass(cls) or not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise TypeError(f"{cls.__name__}: a section is a frozen dataclass")
    if not isinstance(values, Mapping):
        raise _unexpected(path, "keys with values", values)
    declared = {field.name: field for field in fields(cls) if field.init}
    known = ", ".join(sorted(declared))
    for key in values:
        if key not in declared:
            raise _fault(path, f"unknown key {key!r}; known: {known}")
    hints = get_type_hints(cls)
    arguments = {}
    for name, field in declared.items():
        if name in values:
            arguments[name] = _convert(hints[name], values[name], _joined(path, name))
        elif field.default is MISSING and field.default_factory is MISSING:
            raise _fault(path, f"missing key {name!r}")
    try:
        return cls(**arguments)
    except (ConfigError, ValueError) as error:
        name, colon, fault = str(error).partition(": ")
        of_field = colon and name in declared
        raise (
            _fault(_joined(path, name), fault) if of_field else _fault(path, str(error))
        ) from None


def _convert(expected: Any, value: Any, path: str) -> Any:
    origin = get_origin(expected)
    if expected in _SCALARS:
        return _scalar(expected, value, path)
    if expected is Path:
        return Path(_scalar(str, value, path))
    if origin in (Union, types.UnionType):
        return _optional(get_args(expected), value, path)
    if origin is Literal:
        return _choice(get_args(expected), value, path)
    if origin is tuple:
        return _tuple(get_args(expected), value, path)
    if origin in (dict, Mapping):
        return _dict(get_args(expected), value, path)
    return _section(expected, value, path)


def _scalar(expected: type, value: Any, path: str) -> Any:
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        remedy = "; quote it" if expected is str and isinstance(value, bool | int | float) else ""
        raise _unexpected(path, _SCALARS[expected], value, remedy)
    if isinstance(value, float) and not math.isfinite(value):
        raise _unexpected(path, "a finite number", value)
    return value


def _optional(members: tuple[Any, ...], value: Any, path: str) -> Any:
    others = [member for member in members if member is not type(None)]
    if len(others) != 1 or len(members) != 2:
        raise TypeError(f"{path}: the only union a section may hold is `X | None`")
    return None if value is None else _convert(others[0], value, path)


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
    return {key: _convert(item_type, item, _joined(path, key)) for key, item in value.items()}


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
    kinds = {str: "a string", int: "an integer", float: "a number"}
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return f"{shown} ({kinds.get(type(value), type(value).__name__)})"
