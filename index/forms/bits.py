"""The form `bits`: all attributes together are one component.

A row is a bitmask: the values that a rule allows, one bit each. A request has the bits of its
user's values: `other` for an unknown value, and for an attribute without a value the one that its
clock shows, its `missing`, or `other`. It passes a row that has all of these bits.
C++: native/src/forms/bits.cpp.
"""

from collections.abc import Iterator, Sequence
from ctypes import c_char_p, c_void_p
from dataclasses import dataclass
from itertools import compress
from typing import ClassVar, Generic, NamedTuple

import numpy as np

from grace.configs.arrays import Bools, Int32, Int64, Integers, Shape, UInt64
from grace.index.forms.component import (
    BAD_VALUE,
    MOST_SHOWN,
    Array,
    Codes,
    Component,
    ListColumn,
    Reason,
    some,
    values_in,
)
from grace.index.targeting.rules import NumberRows, Rows
from grace.index.targeting.schema import CLOCKS, Attribute, TargetingSchema
from grace.native.loader import declare
from grace.proto.retrieval_pb2 import RetrieveRequest

_add_to_matcher = declare("grace_exact_add_bits(uint64, int32, uint64[,])")
_add_to_rules = declare("grace_rules_add_bits(pointer, int32, int32[,], int32)")
_add_to_users = declare(
    "grace_users_add_bits("
    "uint64, int64, int64, pointer, int64[], int64[], int64[], int64[], uint8[])"
)


class ListedCodes(Codes):
    """The places of values in an attribute's list."""

    def __init__(self, attribute: Attribute) -> None:
        super().__init__(zip(attribute.values, range(len(attribute.values)), strict=True))
        self.refusal = "is not among the values that the schema lists; correct it, or list it"
        if attribute.clock is not None:
            self.refusal = f"is not among 0 to {attribute.values[-1]} of its clock; correct it"

    def __missing__(self, _: object) -> int:
        return BAD_VALUE


class AskedBits(NamedTuple, Generic[Array]):
    """What B requests ask of the attributes."""

    bitmask: Array  # uint64 [B, words], int64 in a tensor


@dataclass(frozen=True, slots=True)
class BitsComponent(Component):
    kind: ClassVar[type[Rows]] = NumberRows
    label: ClassVar[str] = "attributes"
    schema: TargetingSchema

    def codes(self) -> Sequence[ListedCodes]:
        return [*map(ListedCodes, self.schema.attributes)]

    def add_to_rules(self, table: c_void_p) -> None:
        bits = [
            (first, len(attribute.values), attribute.missing_passes_exclude)
            for attribute, first in self.schema.places
        ]
        attributes = np.array(bits, np.int32).reshape(-1, 3)
        _add_to_rules(table, self.schema.words, attributes, len(bits))

    def rows_of(self, offsets: Int64, words: Int32) -> NumberRows:
        return NumberRows(words.view(np.uint64).reshape(len(offsets) - 1, self.schema.words))

    def columns_of(self, rows: NumberRows, chosen: Integers) -> Iterator[ListColumn]:
        """Rows with the bit of `other` exclude the values without one; others include values."""
        words = np.ascontiguousarray(rows.table[chosen], "<u8")
        table = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little").view(np.bool_)
        for attribute, first_bit in self.schema.places:
            held = table[:, first_bit : first_bit + attribute.bits]
            values, other = held[:, :-1], held[:, -1:]
            for listed, valid in ((values & ~other, ~other[:, 0]), (~values & other, other[:, 0])):
                offsets = np.append(0, np.cumsum(listed.sum(axis=1)))
                codes = np.nonzero(listed)[1].astype(np.int32)
                yield ListColumn(offsets, valid.astype(np.uint8), codes)

    def limited(self, rows: NumberRows) -> Iterator[tuple[str, Bools]]:
        """An ad without a rule allows all values and `other`; a rule always rules something out."""
        for attribute, first_bit in self.schema.places:
            bits = ((1 << attribute.bits) - 1) << first_bit
            limited = np.zeros(len(rows), np.bool_)
            for word in range(first_bit // 64, (first_bit + attribute.bits - 1) // 64 + 1):
                mask = np.uint64(bits >> 64 * word & (1 << 64) - 1)
                limited |= (np.asarray(rows.table[:, word]) & mask) != mask
            yield attribute.name, limited

    def add_to_matcher(self, matcher: int, rows: NumberRows) -> None:
        _add_to_matcher(matcher, self.schema.words, rows.table)

    def add_to_users(self, reader: int, values: None, hashed: bool) -> None:  # noqa: ARG002
        listed = [attribute.values for attribute in self.schema.attributes]
        missing = [
            first + (len(a.values) if a.missing is None else a.values.index(a.missing))
            for a, first in self.schema.places
        ]
        kinds = (None, *CLOCKS)  # as in native/src/forms/bits.cpp
        clocks = [kinds.index(attribute.clock) for attribute in self.schema.attributes]
        encoded = [value.encode() for values in listed for value in values]
        _add_to_users(
            *(reader, self.schema.words, len(listed)),
            (c_char_p * len(listed))(*(a.name.encode() for a in self.schema.attributes)),
            *(np.array(n, np.int64) for n in (list(map(len, listed)), missing, clocks)),
            np.cumsum([0, *map(len, encoded)], dtype=np.int64),
            np.frombuffer(b"".join(encoded), np.uint8),
        )

    def shapes(self, size: int, most: int) -> AskedBits[Shape]:  # noqa: ARG002
        return AskedBits((np.uint64, (size, self.schema.words)))

    def explain(self, rows: NumberRows, row: int, request: RetrieveRequest) -> list[Reason]:
        return [
            reason
            for attribute, first in self.schema.places
            for reason in _reasons(attribute, *_allowed(attribute, first, rows.table[row]), request)
        ]


def clock_value(clock: str, at: int, utc_offset_minutes: int) -> int:
    """Return what a clock shows.   at: milliseconds since 1970"""
    hours = (at // 60_000 + utc_offset_minutes) // 60
    if clock == "hour_of_day":
        return hours % 24
    hours += 3 * 24  # 1970 began on a Thursday
    return hours % 168 if clock == "hour_of_week" else hours // 24 % 7


def _allowed(attribute: Attribute, first: int, row: UInt64) -> tuple[list[str], bool]:
    """Return the listed values that a bitmask row allows, and whether it allows `other`."""
    places = range(first, first + attribute.bits)
    *allowed, other = (bool(int(row[bit >> 6]) >> (bit & 63) & 1) for bit in places)
    return list(compress(attribute.values, allowed)), other


def _reasons(
    attribute: Attribute, listed: Sequence[str], other: bool, request: RetrieveRequest
) -> list[Reason]:
    if other and len(listed) == len(attribute.values):
        return []
    user = values_in(request, attribute.name)
    if not user and attribute.clock is not None:
        user = (str(clock_value(attribute.clock, request.at, request.utc_offset_minutes)),)
    effective = user or (() if attribute.missing is None else (attribute.missing,))
    breaking = tuple(
        value
        for value in effective
        if value not in listed and not (other and value not in attribute.values)
    )
    passes = not breaking if effective else other
    allows = _allows(attribute, listed, other)
    return [Reason(attribute.name, passes, allows, user, breaking or effective)]


def _allows(attribute: Attribute, listed: Sequence[str], other: bool) -> str:
    """Return what every value of the user must be. A snapshot does not know from which list."""
    left_out = [value for value in attribute.values if value not in listed]
    if other:
        return f"not in [{some(left_out)}]"
    if len(listed) <= max(MOST_SHOWN, len(left_out)):
        return f"in [{some(listed)}]"
    return "in [listed values]" + (
        f" and {attribute.name} not in [{some(left_out)}]" if left_out else ""
    )
