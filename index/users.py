"""User rows: the request side of every test, encoded once per request.

A user's attributes become one bitmask row: the bits of the known values, `other` for an unknown
one, and for a missing attribute the value its schema names, or `other`. A user's values of a set
become Bloom queries (all of them) and interned ids (those that some rule names).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from configs.errors import InputError, RequestError
from index.bloom import value_hash
from index.schema import RESERVED_VALUE, Attribute, TargetingSchema, TargetSet
from index.snapshot import Snapshot
from index.values import InternedValues

__all__ = ["SetQueries", "UserAttributes", "UserEncoder", "UserRows"]

UserAttributes = Mapping[str, Sequence[str]]
"""Raw user attributes of one request: name -> values; an empty list means missing."""


@dataclass(frozen=True, slots=True)
class SetQueries:
    """One set's side of a batch of B requests.

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


@dataclass(frozen=True)
class UserEncoder:
    schema: TargetingSchema
    set_values: tuple[InternedValues, ...]

    def encode(self, users: Sequence[UserAttributes]) -> UserRows:
        """Raises RequestError, naming the field, for what cannot be tested."""
        distinct = [{name: _distinct(name, user[name]) for name in user} for user in users]
        known = self._known_names
        bitmask = np.zeros((len(users), self.schema.words), np.uint64)
        for row, user in zip(bitmask, distinct, strict=True):
            for bit in self._bits(user):
                row[bit >> 6] |= np.uint64(1 << (bit & 63))
        sets = tuple(
            self._queries(target_set, values, [user.get(target_set.name, ()) for user in distinct])
            for target_set, values in zip(self.schema.sets, self.set_values, strict=True)
        )
        ignored = tuple(tuple(sorted(user.keys() - known)) for user in distinct)
        return UserRows(self, bitmask, sets, ignored)

    @cached_property
    def _known_names(self) -> frozenset[str]:
        return frozenset(self.schema.names)

    @cached_property
    def _bit_of(self) -> tuple[dict[str, int], ...]:
        return tuple(
            {value: first + i for i, value in enumerate(attribute.values)}
            for attribute, first in zip(self.schema.attributes, self.schema.first_bits, strict=True)
        )

    def _bits(self, user: Mapping[str, tuple[str, ...]]) -> list[int]:
        bits: list[int] = []
        for attribute, first, bit_of in zip(
            self.schema.attributes, self.schema.first_bits, self._bit_of, strict=True
        ):
            other = first + len(attribute.values)
            values = user.get(attribute.name, ()) or _stand_in(attribute)
            bits.extend(bit_of.get(value, other) for value in values)
            if not values:
                bits.append(other)
        return bits

    def _queries(
        self,
        target_set: TargetSet,
        interned: InternedValues,
        users: Sequence[tuple[str, ...]],
    ) -> SetQueries:
        offsets, value_offsets = [0], [0]
        hashes: list[int] = []
        value_ids: list[int] = []
        for values in users:
            if len(values) > target_set.max_request_values:
                raise RequestError(
                    f"user.{target_set.name}.values",
                    f"{len(values)} distinct values, at most {target_set.max_request_values} "
                    "are allowed (max_request_values in the targeting schema); send fewer",
                )
            hashes.extend(value_hash(value, self.schema.hash_seed) for value in values)
            value_ids.extend(sorted(interned.ids[v] for v in values if v in interned.ids))
            offsets.append(len(hashes))
            value_offsets.append(len(value_ids))
        return SetQueries(
            np.array(offsets, np.int32),
            np.array(hashes, np.uint64),
            np.array(value_offsets, np.int32),
            np.array(value_ids, np.int32),
        )


def _stand_in(attribute: Attribute) -> tuple[str, ...]:
    return () if attribute.missing is None else (attribute.missing,)


def _distinct(name: str, values: Sequence[str]) -> tuple[str, ...]:
    field = f"user.{name}.values"
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise RequestError(field, f"expected a list of strings, got {type(values).__name__}")
    for value in values:
        if not isinstance(value, str):
            raise RequestError(field, f"expected strings, got {type(value).__name__}")
        if value == RESERVED_VALUE:
            raise RequestError(field, f"{RESERVED_VALUE!r} is reserved; name values, or send none")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise RequestError(field, "a value is not valid Unicode text") from None
    return tuple(dict.fromkeys(values))
