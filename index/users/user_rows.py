"""User rows: the request side of every test, encoded once per request.

A user's attributes become one bitmask row: the bits of the known values, `other` for an unknown
one, and for a missing attribute the value its schema names, or `other`. A user's values of a set
become Bloom queries (all of them) and interned ids (those that some rule names).

C++ reads them from the bytes of a grace.v1.RetrieveRequest, without the interpreter lock.
"""

import weakref
from collections.abc import Mapping, Sequence
from ctypes import c_char_p, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from grace.configs.errors import InputError, RequestError
from grace.index.snapshot import Snapshot
from grace.index.targeting.schema import TargetingSchema
from grace.index.users.values import InternedValues
from grace.native.loader import array_in, array_out, declare
from grace.native.wire import read_batch
from grace.proto.retrieval_pb2 import RetrieveRequest

UserAttributes = Mapping[str, Sequence[str]]
"""Raw user attributes of one request: name -> values; an empty list means missing."""

_open = declare("grace_users_open", c_int64, c_uint64, array_out(np.uint64))
_add_attribute = declare(
    "grace_users_add_attribute",
    *(c_uint64, c_char_p, c_int64, c_int64, array_in(np.int64), array_in(np.uint8), c_int64),
)
_add_set = declare(
    "grace_users_add_set",
    *(c_uint64, c_char_p, c_int64, array_in(np.int64), array_in(np.uint8), c_int64),
)
_close = declare("grace_users_close", c_uint64)
_read = declare(
    "grace_users_read",
    *(c_uint64, c_int64, c_int64, c_void_p, array_in(np.int64)),
    *(array_out(np.uint64, 2), array_out(np.int32, 2), array_out(np.uint64)),
    *(array_out(np.int32, 2), array_out(np.int32), c_int64),
    *(array_out(np.int64, 2), c_int64, array_out(np.int64, 2), array_out(np.int64)),
)


@dataclass(frozen=True, slots=True)
class SetQueries:
    """What a batch of B requests asks about one set.

    offsets        int32 [B + 1]
    hashes         uint64 [...]    Bloom queries, one per distinct value
    value_offsets  int32 [B + 1]
    value_ids      int32 [...]     ids of the values that some rule names, ascending per request
    """

    offsets: npt.NDArray[np.int32]
    hashes: npt.NDArray[np.uint64]
    value_offsets: npt.NDArray[np.int32]
    value_ids: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class UserRows:
    """Bits and value ids mean something only together with the schema and values that made them.

    bitmask  uint64 [B, words]
    """

    encoder: "UserEncoder"
    bitmask: npt.NDArray[np.uint64]
    sets: tuple[SetQueries, ...]  # in the schema's order of sets
    ignored: tuple[tuple[str, ...], ...]  # per request: names the schema does not know

    def __len__(self) -> int:
        return len(self.bitmask)

    def require_encoded_for(self, snapshot: Snapshot) -> None:
        """Ids of another snapshot's values would answer for other values: never compare them."""
        same_values = self.encoder.set_values is snapshot.set_values
        if not same_values or self.encoder.schema != snapshot.schema:
            raise InputError(
                "user rows were encoded for another snapshot: encode users with the schema and "
                "set_values of the snapshot that they are matched against"
            )


@dataclass(frozen=True, slots=True)
class ReadUsers:
    """The users of a batch; one with a fault has the row of an empty user."""

    rows: UserRows
    faults: tuple[RequestError | None, ...]


@dataclass(frozen=True)
class UserEncoder:
    """Any thread may call it."""

    schema: TargetingSchema
    set_values: tuple[InternedValues, ...]

    def read(self, messages: Sequence[bytes], size: int) -> ReadUsers:
        """The users of grace.v1.RetrieveRequest messages; empty users fill the batch up."""
        room = sum(map(len, messages)) // 2  # a value takes at least two bytes of a message
        each_set = (len(self.schema.sets), size + 1)
        bitmask = np.empty((size, self.schema.words), np.uint64)
        offsets, value_offsets = np.empty(each_set, np.int32), np.empty(each_set, np.int32)
        hashes, value_ids = np.empty(room, np.uint64), np.empty(room, np.int32)
        rows = (bitmask, offsets, hashes, value_offsets, value_ids, room)
        faults, ignored = read_batch(_read, self._handle, messages, size, *rows)
        sets, begin, first = [], 0, 0
        for own, ids in zip(offsets, value_offsets, strict=True):
            end, last = begin + int(own[-1]), first + int(ids[-1])
            sets.append(SetQueries(own, hashes[begin:end], ids, value_ids[first:last]))
            begin, first = end, last
        ignored = (*ignored, *[()] * (size - len(messages)))
        return ReadUsers(UserRows(self, bitmask, tuple(sets), ignored), faults)

    def encode(self, users: Sequence[UserAttributes]) -> UserRows:
        """Raises RequestError, naming the field, for what cannot be tested."""
        read = self.read([_message_of(user) for user in users], len(users))
        for fault in filter(None, read.faults):
            raise fault
        return read.rows

    @cached_property
    def _handle(self) -> int:
        handle = _opened(self.schema, self.set_values)
        weakref.finalize(self, _close, handle).atexit = False
        return handle


def _opened(schema: TargetingSchema, set_values: tuple[InternedValues, ...]) -> int:
    made = np.zeros(1, np.uint64)
    _open(schema.words, schema.hash_seed, made)
    handle = int(made[0])
    try:
        for attribute, first in zip(schema.attributes, schema.first_bits, strict=True):
            encoded = [value.encode() for value in attribute.values]
            ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
            text = np.frombuffer(b"".join(encoded), np.uint8)
            stands_in = (
                len(attribute.values)
                if attribute.missing is None
                else attribute.values.index(attribute.missing)
            )
            name = attribute.name.encode()
            _add_attribute(handle, name, first, len(encoded), ends, text, first + stands_in)
        for target_set, values in zip(schema.sets, set_values, strict=True):
            _add_set(
                *(handle, target_set.name.encode(), len(values), values.offsets, values.utf8),
                target_set.max_request_values,
            )
    except BaseException:
        _close(handle)
        raise
    return handle


def _message_of(user: UserAttributes) -> bytes:
    message = RetrieveRequest()
    for name, values in user.items():
        if isinstance(values, str) or not isinstance(values, Sequence):
            fault = f"expected a list of strings, got {type(values).__name__}"
            raise RequestError(f"user.{name}.values", fault)
        try:
            "".join(values).encode()
        except (TypeError, UnicodeEncodeError):
            raise RequestError(f"user.{name}.values", _fault_of(values)) from None
        message.user[name].values.extend(values)
    return message.SerializeToString()


def _fault_of(values: Sequence[object]) -> str:
    for value in values:
        if not isinstance(value, str):
            return f"expected strings, got {type(value).__name__}"
    return "a value is not valid Unicode text"
