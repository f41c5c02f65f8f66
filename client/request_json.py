"""A request in protobuf's JSON form, checked here: every fault comes with its path and value.

user.country.values[0]: expected text, got 3
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from grace.configs.errors import RequestError
from grace.proto.retrieval_pb2 import RetrieveRequest

SHOWN_CHARACTERS = 64
MAX_FLOAT = float.fromhex("0x1.fffffep+127")
_INTEGER = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")
"""How protobuf spells them. The server refuses them, since they are not finite."""


def request_of_json(values: Mapping[str, Any]) -> RetrieveRequest:
    """Raises RequestError: an unknown key, or a value that the field's type cannot have.

    The server checks everything else that a request may say wrongly.
    """
    _check_message(values, cast(Descriptor, RetrieveRequest.DESCRIPTOR), "")
    try:
        return json_format.ParseDict(dict(values), RetrieveRequest())
    except (json_format.ParseError, ValueError, TypeError) as error:
        raise RequestError("request", " ".join(str(error).split()).rstrip(".")) from None


def _check_message(values: Any, message: Descriptor, at: str) -> None:
    """Every key, however deep, is a field's name as the .proto file or as JSON spells it."""
    if not isinstance(values, Mapping):
        raise _unexpected(at, "an object", values)
    fields = {field.name: field for field in message.fields}
    spelled = fields | {field.json_name: field for field in message.fields}
    for key, value in values.items():
        if key not in spelled:
            fault = f"unknown key {_shown(key)}; known: {', '.join(fields)}"
            raise RequestError(at or "request", fault)
        if value is not None:  # null is as good as no entry
            _check_field(value, spelled[key], f"{at}.{key}" if at else key)


def _check_field(value: Any, field: FieldDescriptor, at: str) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        if not isinstance(value, Mapping):
            raise _unexpected(at, "an object", value)
        of_entry = field.message_type.fields_by_name["value"]
        for name, item in value.items():
            _check_name(name, at)
            _check_value(item, of_entry, f"{at}.{name if name.isprintable() else repr(name)}")
    elif field.is_repeated:
        if not isinstance(value, list | tuple):
            raise _unexpected(at, "a list", value)
        for place, item in enumerate(value):
            _check_value(item, field, f"{at}[{place}]")
    else:
        _check_value(value, field, at)


def _check_value(value: Any, field: FieldDescriptor, at: str) -> None:
    if field.message_type is not None:
        _check_message(value, field.message_type, at)
    elif (check := _SCALARS.get(field.cpp_type)) is not None:
        check(value, at)


def _check_name(name: Any, at: str) -> None:
    if not isinstance(name, str) or not _is_unicode(name):
        raise RequestError(at, f"the name {_shown(name)} is no text")


def _check_text(value: Any, at: str) -> None:
    if not isinstance(value, str) or not _is_unicode(value):
        raise _unexpected(at, "text", value)


def _check_bool(value: Any, at: str) -> None:
    if not isinstance(value, bool):
        raise _unexpected(at, "true or false", value)


def _check_float(value: Any, at: str) -> None:
    if value in _NO_NUMBERS:
        return
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        raise _unexpected(at, "a number", value)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _unexpected(at, "a number", value)
    number = float(value) if isinstance(value, str) else value
    if not abs(number) <= MAX_FLOAT:  # which nan is not
        raise RequestError(at, f"{_shown(value)} is not one of -3.4e38 to 3.4e38")


def _integer_check(bits: int, *, signed: bool) -> Callable[[Any, str], None]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)

    def check(value: Any, at: str) -> None:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        is_whole = isinstance(value, float) and value.is_integer()
        is_digits = isinstance(value, str) and _INTEGER.fullmatch(value) is not None
        if not (is_number or is_whole or is_digits):
            raise _unexpected(at, "an integer", value)
        if not low <= int(value) <= high:
            raise RequestError(at, f"{_shown(value)} is not one of {low} to {high}")

    return check


_SCALARS: Mapping[int, Callable[[Any, str], None]] = {
    FieldDescriptor.CPPTYPE_STRING: _check_text,
    FieldDescriptor.CPPTYPE_BOOL: _check_bool,
    FieldDescriptor.CPPTYPE_FLOAT: _check_float,
    FieldDescriptor.CPPTYPE_UINT32: _integer_check(32, signed=False),
    FieldDescriptor.CPPTYPE_INT64: _integer_check(64, signed=True),
}
"""The types that a request has."""


def _is_unicode(text: str) -> bool:
    """JSON can spell halves of characters, which UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unexpected(at: str, expected: str, value: Any) -> RequestError:
    return RequestError(at or "request", f"expected {expected}, got {_shown(value)}")


def _shown(value: Any) -> str:
    """A value, short and on one line."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    is_json = value is None or isinstance(value, bool | float)
    text = json.dumps(value) if is_json else repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
