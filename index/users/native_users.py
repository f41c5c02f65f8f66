"""A batch's users from wire bytes to rows, in one call without the interpreter lock.

The plain way, `grace.index.users.user_rows`, is the definition, and the only one that knows what
is wrong with a
user: what C++ does not understand is left to it.
"""

import weakref
from collections.abc import Sequence
from ctypes import c_char_p, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from grace.index.targeting.schema import TargetingSchema
from grace.index.users.set_queries import SetQueries
from grace.index.users.values import InternedValues
from grace.native.loader import array_in, array_out, declare

__all__ = ["UNKNOWN_BYTES", "NativeRows", "NativeUsers", "listed_names"]

UNKNOWN_BYTES = 1 << 16
"""Room for the names of a batch that nobody knows."""

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
    *(array_out(np.int32, 2), array_out(np.int32)),
    *(array_out(np.bool_), c_int64, array_out(np.uint8), array_out(np.int64)),
)


@dataclass(frozen=True, slots=True)
class NativeRows:
    """What C++ made of a batch; see `grace.index.users.user_rows.UserRows`.

    understood  of each request; one that was not has the row of an empty user
    ignored     of each request: names the schema does not know
    """

    bitmask: npt.NDArray[np.uint64]
    sets: tuple[SetQueries, ...]
    understood: tuple[bool, ...]
    ignored: tuple[tuple[str, ...], ...]


class NativeUsers:
    """Any thread may call it."""

    def __init__(self, schema: TargetingSchema, set_values: tuple[InternedValues, ...]) -> None:
        self._words = schema.words
        self._set_values = set_values
        self._most = [target_set.max_request_values for target_set in schema.sets]
        self._handle = _opened(schema, set_values)
        weakref.finalize(self, _close, self._handle).atexit = False

    def read(self, users: Sequence[bytes], size: int) -> NativeRows:
        """Of messages that `grace.index.users.wire_user.WireUser` holds; empty users fill the
        batch up."""
        if not 0 < size >= len(users):
            raise ValueError(f"a batch of {size} cannot hold {len(users)} requests")
        messages = (c_char_p * len(users))(*users)
        sizes = np.array([len(each) for each in users], np.int64)
        bitmask = np.empty((size, self._words), np.uint64)
        offsets = np.empty((len(self._most), size + 1), np.int32)
        hashes = np.empty(size * sum(self._most), np.uint64)
        value_offsets = np.empty((len(self._most), size + 1), np.int32)
        value_ids = np.empty(size * sum(self._most), np.int32)
        understood = np.empty(len(users), np.bool_)
        unknown = np.empty(UNKNOWN_BYTES, np.uint8)
        unknown_ends = np.empty(len(users), np.int64)
        _read(
            *(self._handle, len(users), size, messages, sizes),
            *(bitmask, offsets, hashes, value_offsets, value_ids),
            *(understood, len(unknown), unknown, unknown_ends),
        )
        sets, begin = [], 0
        for number, most in enumerate(self._most):
            own, ids = offsets[number], value_offsets[number]
            queries = hashes[begin : begin + int(own[-1])]
            sets.append(SetQueries(own, queries, ids, value_ids[begin : begin + int(ids[-1])]))
            begin += size * most
        return NativeRows(
            bitmask=bitmask,
            sets=tuple(sets),
            understood=tuple(understood.tolist()),
            ignored=listed_names(unknown, unknown_ends),
        )


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


def listed_names(
    text: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]
) -> tuple[tuple[str, ...], ...]:
    """Of each request the names that C++ listed, each with a zero byte: sorted, and once each."""
    last = ends.tolist()
    if not last or not last[-1]:
        return _nothing_of_each(len(last))
    names = []
    begin = 0
    for end in last:
        listed = text[begin:end].tobytes().decode().split("\0")[:-1]
        names.append(tuple(sorted(set(listed))))
        begin = end
    return tuple(names)


@lru_cache(maxsize=64)
def _nothing_of_each(requests: int) -> tuple[tuple[str, ...], ...]:
    return ((),) * requests
