"""A request in protobuf's JSON form, checked here: every fault comes with its path and value.

user.country.values[0]: expected text, got 3
"""

import json
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from grace.configs.errors import RequestError
from grace.proto.retrieval_pb2 import RetrieveRequest

SHOWN_CHARACTERS = 64
_INTEGER = re.compile(r"(-?[0-9]{1,20})(\.0+)?", re.ASCII)
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")
"""How protobuf spells them. The server refuses them, since they are not finite."""
_NUMBER = re.compile(r"-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|NaN|-?Infinity", re.ASCII)
_REALS = {
    FieldDescriptor.CPPTYPE_FLOAT: float.fromhex("0x1.fffffep+127"),
    FieldDescriptor.CPPTYPE_DOUBLE: sys.float_info.max,
}
_INTEGERS = {
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
}
_IN_1990, _IN_2100 = 631_152_000_000, 4_102_444_800_000  # milliseconds
_Filled = TypeVar("_Filled", bound=Message)


def request_of_json(values: Mapping[str, Any]) -> RetrieveRequest:
    """Raises RequestError: an unknown key, or a value that the field's type cannot have.

    The server checks everything else that a request may say wrongly.
    """
    request = filled(RetrieveRequest(), values)
    if request.at and not _IN_1990 <= request.at < _IN_2100:  # seconds, say
        fault = f"{request.at} is not between 1990 and 2100; send milliseconds since 1970"
        raise RequestError("at", fault)
    return request


def filled(message: _Filled, values: Any) -> _Filled:
    """Return the message with these fields, as `request_of_json` does."""
    _fill(message, values, "")
    return message


def _fill(message: Message, values: Any, at: str) -> None:
    """Set the fields. Every key, however deep, is a field's name in the .proto file or in JSON."""
    if not isinstance(values, Mapping):
        raise _unexpected(at, "an object", values)
    fields = {field.name: field for field in cast(Descriptor, message.DESCRIPTOR).fields}
    spelled = fields | {field.json_name: field for field in fields.values()}
    for key, value in values.items():
        if key not in spelled:
            fault = f"unknown key {_shown(key)}; known: {', '.join(fields)}"
            raise RequestError(at or "request", fault)
        if value is not None:  # null is as good as no entry
            _fill_field(message, spelled[key], value, f"{at}.{key}" if at else key)


def _fill_field(message: Message, field: FieldDescriptor, value: Any, at: str) -> None:
    held: Any = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        if not isinstance(value, Mapping):
            raise _unexpected(at, "an object", value)
        of_entry = field.message_type.fields_by_name["value"]
        for name, item in value.items():
            place = f"{at}.{name if str(name).isprintable() else repr(name)}"
            if of_entry.message_type is None:
                held[_text(name, at)] = _scalar(of_entry, item, place)
            else:
                _fill(held[_text(name, at)], item, place)
    elif field.is_repeated:
        if not isinstance(value, list | tuple):
            raise _unexpected(at, "a list", value)
        if field.cpp_type in _INTEGERS and {*map(type, value)} == {int}:
            with suppress(ValueError):  # what protobuf refuses is refused below, in words
                held.extend(value)  # a third of the time: an update may have a million ids
                return
            del held[:]
        for number, item in enumerate(value):
            if field.message_type is None:
                held.append(_scalar(field, item, f"{at}[{number}]"))
            else:
                _fill(held.add(), item, f"{at}[{number}]")
    elif field.message_type is not None:
        held.SetInParent()
        _fill(held, value, at)
    else:
        setattr(message, field.name, _scalar(field, value, at))


def _scalar(field: FieldDescriptor, value: Any, at: str) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        return _text(value, at)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        if not isinstance(value, bool):
            raise _unexpected(at, "true or false", value)
        return value
    if kind in _REALS:
        return _real(value, _REALS[kind], at)
    if field.enum_type is not None and isinstance(value, str):
        names = field.enum_type.values_by_name
        if value not in names:
            raise _unexpected(at, f"one of {', '.join(names)}", value)
        return names[value].number
    return _integer(value, *_INTEGERS[kind], at)


def _text(value: Any, at: str) -> str:
    # JSON can spell halves of characters, which UTF-8 cannot.
    if not isinstance(value, str) or any("\ud800" <= each <= "\udfff" for each in value):
        raise _unexpected(at, "text", value)
    return value


def _real(value: Any, most: float, at: str) -> float:
    is_text = isinstance(value, str) and _NUMBER.fullmatch(value) is not None
    if isinstance(value, bool) or not (is_text or isinstance(value, int | float)):
        raise _unexpected(at, "a number", value)
    number = float(value) if is_text else value
    if not (abs(number) <= most or value in _NO_NUMBERS):  # which nan is not
        raise RequestError(at, f"{_shown(value)} is not within {-most:.2g} to {most:.2g}")
    if isinstance(value, int) and most == sys.float_info.max and float(value) != value:
        raise RequestError(at, f"{_shown(value)} is beyond 2^53, where not every integer is exact")
    return number


def _integer(value: Any, low: int, high: int, at: str) -> int:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    is_whole = isinstance(value, float) and value.is_integer()
    digits = _INTEGER.fullmatch(value) if isinstance(value, str) else None
    if not (is_number or is_whole or digits):
        raise _unexpected(at, "an integer", value)
    number = int(digits[1] if digits else value)
    if not low <= number <= high:
        raise RequestError(at, f"{_shown(value)} is not within {low} to {high}")
    return number


def _unexpected(at: str, expected: str, value: Any) -> RequestError:
    return RequestError(at or "request", f"expected {expected}, got {_shown(value)}")


def _shown(value: Any) -> str:
    """Return a value, short and on one line."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    is_json = value is None or isinstance(value, bool | float)
    text = json.dumps(value) if is_json else repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
