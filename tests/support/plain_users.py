"""The plain encoder of users, which the product's C++ is compared with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from grace.configs.errors import RequestError
from grace.index.matchers.bloom import value_hashes
from grace.index.targeting.schema import RESERVED_VALUE, Attribute, TargetSet
from grace.index.users.user_rows import SetQueries, UserAttributes, UserEncoder, UserRows
from grace.index.users.values import InternedValues

__all__ = ["PlainUserEncoder"]


@dataclass(frozen=True)
class PlainUserEncoder:
    encoder: UserEncoder

    def encode(self, users: Sequence[UserAttributes]) -> UserRows:
        """Raises RequestError, naming the field, for what cannot be tested."""
        distinct = [{name: _distinct(name, user[name]) for name in user} for user in users]
        known = self._known_names
        row_bytes = self.encoder.schema.words * 8
        rows = [self._row(user).to_bytes(row_bytes, "little") for user in distinct]
        bitmask = np.frombuffer(b"".join(rows), "<u8").astype(np.uint64)
        sets = tuple(
            self._queries(target_set, values, [user.get(target_set.name, ()) for user in distinct])
            for target_set, values in zip(self.encoder.schema.sets, self.encoder.set_values, strict=True)
        )
        ignored = tuple(tuple(sorted(user.keys() - known)) for user in distinct)
        return UserRows(self.encoder, bitmask.reshape(len(users), self.encoder.schema.words), sets, ignored)

    @cached_property
    def _known_names(self) -> frozenset[str]:
        return frozenset(self.encoder.schema.names)

    @cached_property
    def _bit_of(self) -> tuple[dict[str, int], ...]:
        return tuple(
            {value: first + i for i, value in enumerate(attribute.values)}
            for attribute, first in zip(self.encoder.schema.attributes, self.encoder.schema.first_bits, strict=True)
        )

    def _row(self, user: Mapping[str, tuple[str, ...]]) -> int:
        """The user's bits as one number."""
        row = 0
        for attribute, first, bit_of in zip(
            self.encoder.schema.attributes, self.encoder.schema.first_bits, self._bit_of, strict=True
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
            value_hashes(chain.from_iterable(users), self.encoder.schema.hash_seed),
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
