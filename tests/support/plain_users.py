"""The plain encoder of users, from Python values to rows: C++ is compared with it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.configs.errors import RequestError
from grace.index.forms.bits import AskedBits
from grace.index.forms.lists import AskedLists
from grace.index.matchers.node_matchers import value_hash
from grace.index.targeting.schema import RESERVED_VALUE, Attribute, TargetingSchema, TargetSet
from grace.index.users.user_rows import UserAttributes, UserEncoder, UserRows
from grace.index.users.values import InternedValues
from support.arrays import assert_same_arrays


def assert_same_rows(got: UserRows, expected: UserRows) -> None:
    assert got.encoder is expected.encoder
    assert got.ignored == expected.ignored
    assert_same_arrays(got.asked, expected.asked, "asked")


def plain_rows(encoder: UserEncoder, users: Sequence[UserAttributes]) -> UserRows:
    """What `encoder.encode` makes. Raises RequestError, naming the field."""
    schema = encoder.schema
    distinct = [_distinct(schema, user) for user in users]
    rows = [_row(schema, user).to_bytes(schema.words * 8, "little") for user in distinct]
    bitmask = np.frombuffer(b"".join(rows), "<u8").astype(np.uint64)
    sets = tuple(
        _queries(schema, values, [user.get(target_set.name, ()) for user in distinct])
        for target_set, values in zip(schema.sets, encoder.set_values, strict=True)
    )
    ignored = tuple(tuple(sorted(user.keys() - set(schema.names))) for user in users)
    asked = (AskedBits(bitmask.reshape(len(users), schema.words)), *sets)
    return UserRows(encoder, asked, ignored)


def _distinct(schema: TargetingSchema, user: UserAttributes) -> dict[str, tuple[str, ...]]:
    """Checked in the schema's order; names that it does not have come last, sorted."""
    sets = {target_set.name: target_set for target_set in schema.sets}
    declared = [*[attribute.name for attribute in schema.attributes], *sets]
    found = {}
    for name in (*declared, *sorted(user.keys() - set(declared))):
        values = found[name] = tuple(dict.fromkeys(user.get(name, ())))
        if RESERVED_VALUE in values:
            fault = f"{RESERVED_VALUE!r} is reserved; name values, or send none"
            raise RequestError(f"user.{name}.values", fault)
        if name in sets:
            _require_few(sets[name], values)
    return found


def _row(schema: TargetingSchema, user: Mapping[str, tuple[str, ...]]) -> int:
    """The user's bits as one number."""
    row = 0
    for attribute, first in schema.places:
        bit_of = {value: first + i for i, value in enumerate(attribute.values)}
        other = first + len(attribute.values)
        values = user.get(attribute.name, ()) or _stand_in(attribute)
        for value in values:
            row |= 1 << bit_of.get(value, other)
        if not values:
            row |= 1 << other
    return row


def _queries(
    schema: TargetingSchema, interned: InternedValues, users: Sequence[tuple[str, ...]]
) -> AskedLists[npt.NDArray[Any]]:
    offsets, value_offsets, known = [0], [0], interned.ids
    value_ids: list[int] = []
    for values in users:
        value_ids.extend(sorted([known[value] for value in values if value in known]))
        offsets.append(offsets[-1] + len(values))
        value_offsets.append(len(value_ids))
    return AskedLists(
        np.array(offsets, np.int32),
        np.array(value_offsets, np.int32),
        np.array(value_ids, np.int32),
        np.array([value_hash(interned[v], schema.hash_seed) for v in value_ids], np.uint64),
    )


def _require_few(target_set: TargetSet, values: tuple[str, ...]) -> None:
    if len(values) > target_set.max_request_values:
        raise RequestError(
            f"user.{target_set.name}.values",
            f"{len(values)} distinct values, at most {target_set.max_request_values} are allowed "
            "(max_request_values in the targeting schema); send fewer",
        )


def _stand_in(attribute: Attribute) -> tuple[str, ...]:
    return () if attribute.missing is None else (attribute.missing,)
