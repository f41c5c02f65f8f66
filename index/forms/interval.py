"""The form `interval`: each range and each flight is a component.

A row is two numbers. A request has one, a number of the user for a range and the time for a flight,
and passes a row if its number is within. C++: native/src/forms/interval.cpp.
"""

from collections.abc import Iterator, Sequence
from ctypes import c_void_p
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar, Generic, NamedTuple

import numpy as np

from grace.configs.arrays import AnyArray, Bools, Float64, Int32, Int64, Integers, Shape
from grace.index.forms.component import Array, ListColumn, Reason, TargetComponent
from grace.index.targeting.rules import NumberRows, Rows
from grace.index.targeting.schema import Flight, Range
from grace.native.loader import declare
from grace.proto.retrieval_pb2 import RetrieveRequest

_add_to_matcher = declare("grace_exact_add_interval(uint64, float64[,], int32)")
_add_to_rules = declare("grace_rules_add_interval(pointer, int32)")
_add_to_users = declare("grace_users_add_interval(uint64, text, int32)")


class AskedNumber(NamedTuple, Generic[Array]):
    """What B requests ask about one range or flight."""

    number: Array  # float64 [B]: NaN where the request has none


@dataclass(frozen=True, slots=True)
class IntervalComponent(TargetComponent):
    """A flight ends before its end: its rows hold the last millisecond."""

    kind: ClassVar[type[Rows]] = NumberRows
    target: Range | Flight

    @property
    def missing_passes(self) -> bool:
        return isinstance(self.target, Range) and self.target.missing_passes

    def codes(self) -> Sequence[None]:
        return [None]

    def add_to_rules(self, table: c_void_p) -> None:
        _add_to_rules(table, self.missing_passes)

    def rows_of(self, offsets: Int64, words: Int32) -> NumberRows:
        return NumberRows(words.view(np.float64).reshape(len(offsets) - 1, 2))

    def columns_of(self, rows: NumberRows, chosen: Integers) -> Iterator[ListColumn]:
        low, high = rows.table[chosen].T
        for numbers in (low, np.where(low > high, -0.0, high)):  # as index/targeting/leaves.py
            yield number_column(numbers, np.isfinite(numbers))

    def limited(self, rows: NumberRows) -> Iterator[tuple[str, Bools]]:
        yield self.target.name, np.isfinite(np.asarray(rows.table)).any(axis=1)

    def add_to_matcher(self, matcher: int, rows: NumberRows) -> None:
        _add_to_matcher(matcher, rows.table, self.missing_passes)

    def add_to_users(self, reader: int, values: None, hashed: bool) -> None:  # noqa: ARG002
        _add_to_users(reader, self.target.name.encode(), isinstance(self.target, Flight))

    def shapes(self, size: int, most: int) -> AskedNumber[Shape]:  # noqa: ARG002
        return AskedNumber((np.float64, (size,)))

    def narrows(self, asked: AskedNumber[AnyArray]) -> bool:
        return not (self.missing_passes and np.isnan(asked.number).all())

    def explain(self, rows: NumberRows, row: int, request: RetrieveRequest) -> list[Reason]:
        low, high = rows.table[row].tolist()
        if not np.isfinite([low, high]).any():
            return []
        name = self.target.name
        if isinstance(self.target, Flight):
            end = high + 1
            shown = tuple(_time(each) if np.isfinite(each) else "" for each in (low, end))
            user: tuple[str, ...] = (_time(request.at),)
            passes = low <= request.at <= high
        else:
            shown = tuple(number_in_words(n) if np.isfinite(n) else "" for n in (low, high))
            has = name in request.user and request.user[name].HasField("number")
            number = request.user[name].number if has else 0.0
            user = (number_in_words(number),) if has else ()
            passes = low <= number <= high if has else self.missing_passes
        return [Reason(name, passes, f"in [{shown[0]}..{shown[1]}]", user, user)]


def number_column(numbers: Float64, valid: Bools) -> ListColumn:
    """Return a column of numbers as native code reads it."""
    offsets = np.arange(0, 2 * len(numbers) + 2, 2, dtype=np.int64)
    words = np.ascontiguousarray(numbers, np.float64).view(np.int32)
    return ListColumn(offsets, valid.astype(np.uint8), words)


def number_in_words(number: float) -> str:
    return str(int(number)) if number.is_integer() else repr(number)


def _time(milliseconds: float) -> str:
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError):  # a year that Python does not have
        return number_in_words(milliseconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
