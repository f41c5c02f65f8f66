"""User rows: the request side of every test, encoded once per request.

A user's attributes become one bitmask row: the bits of the known values, `other` for an unknown
one, and for a missing attribute the value its schema names, or `other`. A user's values of a set
become Bloom queries (all of them) and interned ids (those that some rule names).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import numpy.typing as npt

from grace.configs.errors import InputError, RequestError
from grace.index.matchers.bloom import value_hashes
from grace.index.snapshot import Snapshot
from grace.index.targeting.schema import RESERVED_VALUE, Attribute, TargetingSchema, TargetSet
from grace.index.users.native_users import NativeUsers
from grace.index.users.set_queries import SetQueries
from grace.index.users.values import InternedValues
from grace.index.users.wire_user import WireUser

__all__ = ["DirectUsers", "SetQueries", "UserAttributes", "UserEncoder", "UserRows"]

UserAttributes = Mapping[str, Sequence[str]]
"""Raw user attributes of one request: name -> values; an empty list means missing."""


@dataclass(frozen=True, slots=True)
class UserRows:
    """Bits and value ids mean something only beside the schema and values that made them.

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
class DirectUsers:
    """What C++ made of a batch.

    understood  of each user; one that was not has the row of an empty one
    """

    rows: UserRows
    understood: tuple[bool, ...]


@dataclass(frozen=True)
class UserEncoder:
    schema: TargetingSchema
    set_values: tuple[InternedValues, ...]

    def direct(self, users: Sequence[WireUser], size: int) -> DirectUsers | None:
        """What `encode` makes, straight from the bytes; None if they are for `encode` to read.

        Empty users fill the batch up to `size`.
        """
        made = self._native.read([user.content for user in users], size)
        ignored = (*made.ignored, *[()] * (size - len(users)))
        return DirectUsers(UserRows(self, made.bitmask, made.sets, ignored), made.understood)

    def encode(self, users: Sequence[UserAttributes]) -> UserRows:
        """Raises RequestError, naming the field, for what cannot be tested."""
        distinct = [{name: _distinct(name, user[name]) for name in user} for user in users]
        known = self._known_names
        row_bytes = self.schema.words * 8
        rows = [self._row(user).to_bytes(row_bytes, "little") for user in distinct]
        bitmask = np.frombuffer(b"".join(rows), "<u8").astype(np.uint64)
        sets = tuple(
            self._queries(target_set, values, [user.get(target_set.name, ()) for user in distinct])
            for target_set, values in zip(self.schema.sets, self.set_values, strict=True)
        )
        ignored = tuple(tuple(sorted(user.keys() - known)) for user in distinct)
        return UserRows(self, bitmask.reshape(len(users), self.schema.words), sets, ignored)

    @cached_property
    def _native(self) -> NativeUsers:
        return NativeUsers(self.schema, self.set_values)

    @cached_property
    def _known_names(self) -> frozenset[str]:
        return frozenset(self.schema.names)

    @cached_property
    def _bit_of(self) -> tuple[dict[str, int], ...]:
        return tuple(
            {value: first + i for i, value in enumerate(attribute.values)}
            for attribute, first in zip(self.schema.attributes, self.schema.first_bits, strict=True)
        )

    def _row(self, user: Mapping[str, tuple[str, ...]]) -> int:
        """The user's bits as one number."""
        row = 0
        for attribute, first, bit_of in zip(
            self.schema.attributes, self.schema.first_bits, self._bit_of, strict=True
        ):
            other = first + len(attribute.values)
            values = user.get(attribute.name, ()) or _stand_in(attribute)
            for value in values:
                row |= 1 << bit_of.get(value, other)
            if not values:
                row |= 1 << other
        return row

    def _queries(
        self,
        target_set: TargetSet,
        interned: InternedValues,
        users: Sequence[tuple[str, ...]],
    ) -> SetQueries:
        offsets, value_offsets = [0], [0]
        known = interned.ids
        value_ids: list[int] = []
        for values in users:
            if len(values) > target_set.max_request_values:
                raise RequestError(
                    f"user.{target_set.name}.values",
                    f"{len(values)} distinct values, at most {target_set.max_request_values} "
                    "are allowed (max_request_values in the targeting schema); send fewer",
                )
            value_ids.extend(sorted([known[value] for value in values if value in known]))
            offsets.append(offsets[-1] + len(values))
            value_offsets.append(len(value_ids))
        return SetQueries(
            np.array(offsets, np.int32),
            value_hashes(chain.from_iterable(users), self.schema.hash_seed),
            np.array(value_offsets, np.int32),
            np.array(value_ids, np.int32),
        )


def _stand_in(attribute: Attribute) -> tuple[str, ...]:
    return () if attribute.missing is None else (attribute.missing,)


def _distinct(name: str, values: Sequence[str]) -> tuple[str, ...]:
    field = f"user.{name}.values"
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise RequestError(field, f"expected a list of strings, got {type(values).__name__}")
    try:
        distinct = tuple(dict.fromkeys(values))
        "".join(distinct).encode()
    except (TypeError, UnicodeEncodeError):
        raise RequestError(field, _fault_of(values)) from None
    if RESERVED_VALUE in distinct:
        raise RequestError(field, _fault_of(values))
    return distinct


def _fault_of(values: Sequence[object]) -> str:
    """Of the first value that cannot be tested."""
    for value in values:
        if not isinstance(value, str):
            return f"expected strings, got {type(value).__name__}"
        if value == RESERVED_VALUE:
            break
        try:
            value.encode()
        except UnicodeEncodeError:
            return "a value is not valid Unicode text"
    return f"{RESERVED_VALUE!r} is reserved; name values, or send none"
