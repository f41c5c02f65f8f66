"""Requests as unusual bytes, which all readers must accept or refuse alike.

They have fields and map keys that come twice, groups, wrong and unknown fields, lengths and numbers
in more bytes than they need or may have, lists packed and not, texts that are not UTF-8, NULs, huge
numbers, numbers that are not finite, and in all of that some changed bytes.
"""

import struct
from collections.abc import Callable, Sequence
from random import Random

from grace.index.targeting.schema import TargetingSchema
from grace.model.definition.spec import (
    BagInput,
    CategoricalInput,
    DenseInput,
    ModelSpec,
    SequenceInput,
)
from support.wire_cases import field, random_wire, varint, with_bytes_changed
from support.wire_users import random_user_wire

USER, FEATURES, EXCLUDE, AT_MOST = 4, 5, 11, 12
_FIXED64, _BYTES, _FIXED32 = 1, 2, 5
_BEGIN_GROUP, _END_GROUP = 3, 4

_NUMBERS = (0, 5, 127, 128, 2**31, 2**32 + 3, 2**35 + 1, 2**63 - 1, 2**63, 2**64 - 1)
_FLOATS = (0.0, -0.0, 3.4e38, -3.4e38, 1e-45, float("nan"), float("inf"), -float("inf"))
_TEXTS = (b"", b"*", b"\0", b"a\0b", b"\xff", b"\xed\xa0\x80", b"\xc0\xaf", b"x" * 300)
_UNKNOWN = (6, 13, 15, 16, 2047, 536_870_911)
_KINDS: dict[type, int] = {DenseInput: 1, CategoricalInput: 2, BagInput: 3, SequenceInput: 4}
_OTHER_FIELDS = (
    *(b"\x0a\x01r", b"\x0a\x01s", b"\x30\x07", b"\x30\x80\x80\x00", b"\x48\x05"),
    *(b"\x4a\x02\x01\x02", b"\x50\x01", b"\x42\x03LOW", b"\x8a\x00\x00"),
)


class HostileWire:
    def __init__(self, random: Random, spec: ModelSpec, schema: TargetingSchema) -> None:
        self._random = random
        self._rare = 1  # the higher, the fewer flaws
        self._spec = spec
        self._names = schema.names
        self._entities = schema.entities
        self._values = tuple(
            value for attribute in schema.attributes for value in attribute.values[:9]
        )

    def request(self) -> bytes:
        """A grace.v1.RetrieveRequest, or nearly: many flaws seldom leave one."""
        random = self._random
        self._rare = random.choice((1, 9, 99))
        parts = [self._other() for _ in range(random.randint(0, 2))]
        parts += [self._entity() for _ in range(random.choice((0, 0, 1, 3)))]
        parts.append(self._field(FEATURES, self.features()))
        user = self.user()
        parts[(at := random.randint(0, len(parts))) : at] = [user]
        if self._once_in(20):
            parts.append(random.choice(parts))
        message = b"".join(parts)
        return with_bytes_changed(random, message) if self._once_in(6) else message

    def features(self) -> bytes:
        random = self._random
        if self._once_in(3):
            made = random_wire(random, self._spec, flaws=random.choice((0.0, 0.1, 0.4)))
        else:
            made = b"".join(self._input() for _ in range(random.randint(0, 6)))
        return with_bytes_changed(random, made) if self._once_in(6) else made

    def user(self) -> bytes:
        """Entries of field 4."""
        random = self._random
        if self._once_in(3):
            flaws = random.choice((0.0, 0.1, 0.4))
            made = random_user_wire(random, self._names, (*self._values, "x"), flaws)
        else:
            made = b"".join(self._attribute() for _ in range(random.randint(0, 5)))
        return with_bytes_changed(random, made) if self._once_in(6) else made

    def _attribute(self) -> bytes:
        random = self._random
        name = self._name(self._names)
        values = [
            random.choice(_TEXTS) if self._once_in(8) else random.choice(self._values).encode()
            for _ in range(random.choice((0, 1, 1, 2, 9)))
        ]
        message = b"".join(self._field(1, value) for value in values)
        if self._once_in(20):
            message += self._unknown()
        return self._entry(USER, name, message)

    def _entity(self) -> bytes:
        """An entry of `exclude` or `at_most`."""
        name = self._name(self._entities)
        if self._once_in(2):
            return self._entry(EXCLUDE, name, self._list(1, self._integer, 0))
        value = b"\x10" + self._integer() if not self._once_in(12) else self._unknown()
        parts = [self._field(1, name), value]
        if self._once_in(5):
            parts.append(self._random.choice(parts))
        self._random.shuffle(parts)
        return self._field(AT_MOST, b"".join(parts))

    def _input(self) -> bytes:
        random = self._random
        name = self._name(tuple(self._spec.inputs))
        declared = self._spec.inputs.get(name.decode(errors="replace"))
        kind = _KINDS.get(type(declared), random.randint(1, 4))
        if self._once_in(25):
            kind = random.randint(1, 5)
        if kind == _KINDS[DenseInput]:
            message = self._list(1, self._float, _FIXED32)
        elif kind == _KINDS[SequenceInput]:
            message = self._events(declared)
        else:
            message = self._list(1, self._integer, 0)
        return self._entry(kind, name, message)

    def _events(self, declared: object) -> bytes:
        random = self._random
        parts = [self._list(1, self._integer, 0), self._list(2, self._integer, 0)]
        sides = tuple(declared.side) if isinstance(declared, SequenceInput) else ()
        for _ in range(random.randint(0, 2)):
            ids = self._list(1, self._integer, 0)
            parts.append(self._entry(3, self._name((*sides, "price")), ids))
        random.shuffle(parts)
        return b"".join(parts)

    def _list(self, number: int, one: Callable[[], bytes], kind: int) -> bytes:
        """A repeated field: one by one, packed, of a wrong type, or with another field."""
        random = self._random
        pieces = []
        for _ in range(random.randint(0, 3)):
            way = random.random()
            if way < 0.35:
                pieces.append(varint(number << 3 | kind) + one())
            elif way < 0.9:
                packed = b"".join(one() for _ in range(random.choice((0, 1, 3, 63))))
                pieces.append(self._field(number, packed + (b"\0" if self._once_in(30) else b"")))
            elif self._once_in(2):
                wrong = random.choice((_FIXED32, _FIXED64))
                size = 4 if wrong == _FIXED32 else 8
                pieces.append(varint(number << 3 | wrong) + random.randbytes(size))
            elif self._once_in(2):
                pieces.append(self._unknown())
        return b"".join(pieces)

    def _integer(self) -> bytes:
        random = self._random
        value = random.choice(_NUMBERS) if self._once_in(8) else random.randrange(5)
        return varint(value, random.choice((0, 0, 0, 0, 1, 9)))

    def _float(self) -> bytes:
        random = self._random
        return struct.pack("<f", random.choice(_FLOATS) if self._once_in(9) else random.random())

    def _name(self, names: Sequence[str]) -> bytes:
        if names and not self._once_in(5):
            return self._random.choice(names).encode()
        return self._random.choice((*_TEXTS, b"mood", b"a.b", "größe".encode()))

    def _entry(self, number: int, name: bytes, message: bytes) -> bytes:
        random = self._random
        parts = [self._field(1, name), self._field(2, message)]
        if random.random() < 0.2:
            parts.reverse()
        if self._once_in(12):
            parts.pop(random.randrange(2))
        if self._once_in(25):
            parts.append(random.choice((*parts, b"\x08\x03")))
        if self._once_in(25):
            parts.insert(random.randrange(len(parts) + 1), self._unknown())
        entry = self._field(number, b"".join(parts))
        return entry * 2 if self._once_in(25) else entry

    def _field(self, number: int, content: bytes) -> bytes:
        return field(number, content, self._length_bytes())

    def _length_bytes(self) -> int:
        return self._random.randint(2, 10) if self._once_in(20) else self._random.choice((1, 1, 5))

    def _other(self) -> bytes:
        return self._unknown() if self._once_in(5) else self._random.choice(_OTHER_FIELDS)

    def _unknown(self) -> bytes:
        """An unknown field, whose tag has as many bytes as it needs or some more."""
        random = self._random
        number, kind = random.choice(_UNKNOWN), random.choice((0, 0, 1, 2, 2, 3, 4, 5, 6))
        tag = varint(number << 3 | kind, random.choice((0, 0, 0, 1, 4, 9)))
        content = random.randbytes(random.randint(0, 4))
        contents = {
            0: varint(random.choice(_NUMBERS)),
            _FIXED64: random.randbytes(8),
            _BYTES: varint(len(content)) + content,
            _BEGIN_GROUP: varint(number << 3 | _END_GROUP),
            _FIXED32: random.randbytes(4),
        }
        return tag + contents.get(kind, b"")

    def _once_in(self, times: int) -> bool:
        return self._random.random() * times * self._rare < 1
