"""A plain reader of protobuf's wire format that refuses what it cannot read whole.

It reads any message by its descriptor, into plain values. Tests compare C++ with it: both report
the first fault in the bytes.
"""

from struct import unpack
from typing import Any, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from grace.proto.retrieval_pb2 import RetrieveRequest, UpdateAdsRequest

VARINT, FIXED64, BYTES, GROUP, END_GROUP, FIXED32 = range(6)
_UINT32 = 2**32 - 1

REQUEST = cast("Descriptor", RetrieveRequest.DESCRIPTOR)
UPDATE = cast("Descriptor", UpdateAdsRequest.DESCRIPTOR)

Values = dict[str, Any]


class MalformedError(Exception):
    pass


class UnknownFieldError(Exception):
    """`within` names the field of the outermost message, or is empty in that message itself."""

    def __init__(self, number: int, written_as: int, within: str = "") -> None:
        super().__init__(number, written_as, within)
        self.number = number
        self.written_as = written_as
        self.within = within

    @property
    def text(self) -> str:
        return (
            f"it has a field that this server does not know (number {self.number}, wire type "
            f"{self.written_as}); leave it out, or upgrade the server first"
        )


def accepts(message: Descriptor, number: int, written_as: int) -> bool:
    """Return whether a message has this field with this wire type."""
    field = message.fields_by_number.get(number)
    if field is None:
        return False
    if field.is_repeated and written_as == BYTES:
        return True
    return written_as == type_of(field)


def decode(message: bytes, of: Descriptor) -> Values:
    """Return the fields that are present. Raise MalformedError or UnknownFieldError."""
    wire, values = _Wire(message), Values()
    while wire.left:
        number, written_as = wire.tag()
        if not accepts(of, number, written_as):
            raise UnknownFieldError(number, written_as)
        field = of.fields_by_number[number]
        try:
            _read_field(wire, field, written_as, values)
        except UnknownFieldError as error:
            raise UnknownFieldError(error.number, error.written_as, field.name) from None
    return values


def _read_field(wire: "_Wire", field: FieldDescriptor, written_as: int, values: Values) -> None:
    inner = field.message_type
    if inner is not None:
        read = decode(wire.bytes(), inner)
        if is_map(field):
            nothing: Any = {} if inner.fields_by_name["value"].message_type is not None else 0
            values.setdefault(field.name, {})[read.get("key", "")] = read.get("value", nothing)
        elif field.is_repeated:
            values.setdefault(field.name, []).append(read)
        else:
            _merge(values.setdefault(field.name, {}), read)
    elif not field.is_repeated:
        values[field.name] = _scalar(wire, field)
    else:
        packed = written_as == BYTES and type_of(field) != BYTES
        values.setdefault(field.name, []).extend(
            _packed(wire, field) if packed else [_scalar(wire, field)]
        )


def _packed(wire: "_Wire", field: FieldDescriptor) -> list[Any]:
    inner, numbers = _Wire(wire.bytes()), []
    while inner.left:
        numbers.append(_scalar(inner, field))
    return numbers


def _merge(into: Values, other: Values) -> None:
    """Join lists; of two equal keys, keep the later value."""
    for name, value in other.items():
        if isinstance(value, list):
            into[name] = into.get(name, []) + value
        elif isinstance(value, dict):
            into[name] = {**into.get(name, {}), **value}
        else:
            into[name] = value


def _scalar(wire: "_Wire", field: FieldDescriptor) -> Any:
    if field.type == field.TYPE_STRING:
        return wire.text()
    if type_of(field) == FIXED32:
        return unpack("<f", wire.take(4))[0]
    if type_of(field) == FIXED64:
        return unpack("<d", wire.take(8))[0]
    number = wire.varint()
    if field.type == field.TYPE_BOOL:
        return number != 0
    if field.type == field.TYPE_UINT64:
        return number
    if field.type == field.TYPE_UINT32:
        return number & _UINT32
    if field.type in (field.TYPE_ENUM, field.TYPE_INT32):
        return (number + 2**31) % 2**32 - 2**31
    assert field.type == field.TYPE_INT64
    return number - 2**64 if number >= 2**63 else number


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def type_of(field: FieldDescriptor) -> int:
    if field.type in (field.TYPE_STRING, field.TYPE_MESSAGE):
        return BYTES
    return {field.TYPE_FLOAT: FIXED32, field.TYPE_DOUBLE: FIXED64}.get(field.type, VARINT)


class _Wire:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._content) - self._at

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise MalformedError
        self._at += size
        return self._content[self._at - size : self._at]

    def varint(self, most_bytes: int = 10) -> int:
        value = 0
        for shift in range(0, 7 * most_bytes, 7):
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value % 2**64
        raise MalformedError

    def tag(self) -> tuple[int, int]:
        tag = self.varint(5)
        number, written_as = divmod(tag, 8)
        if not 8 <= tag <= _UINT32 or written_as in (END_GROUP, 6, 7):
            raise MalformedError
        return number, written_as

    def bytes(self) -> bytes:
        return self.take(self.varint(5))

    def text(self) -> str:
        try:
            return self.bytes().decode()
        except UnicodeDecodeError:
            raise MalformedError from None
