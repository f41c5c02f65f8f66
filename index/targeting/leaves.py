"""What a leaf of an expression means for each kind of name: an attribute, a set or a range.

A leaf has alternatives, of which one must pass: several for ranges, one for others. A clause takes
one alternative of each of its leaves, and those of one name become columns of the ads table.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from itertools import accumulate, compress
from math import inf, isfinite, nextafter
from operator import and_, or_
from typing import Any, NamedTuple, Protocol

from grace.configs.errors import one_line
from grace.index.targeting.schema import (
    RESERVED_VALUE,
    Attribute,
    Range,
    TargetingSchema,
    TargetSet,
)

Clause = Mapping[str, Any]
"""The cells of an ad by column: lists of values, lists of such lists, or floats. No empty cells."""

Span = tuple[float, float]
"""Both ends are inclusive. An infinite end is open."""

A_NUMBER = "a finite number, without quotes, and no integer beyond 2^53"
_NO_NUMBER: Span = (1.0, -0.0)
"""No number is between them. Native code recognises the -0.0, which no table has by accident."""

_INTEGER = re.compile(r"[+-]?\d{1,15}", re.ASCII)


class ExpressionError(ValueError):
    """A fault of an expression.   position: the character, from 0"""

    def __init__(self, position: int, fault: str) -> None:
        super().__init__(one_line(f"at {position}: {fault}"))
        self.position = position


class Item(NamedTuple):
    """What a leaf names: a text, a span, or a text that is a number, which has both."""

    position: int
    text: str | None
    span: Span | None

    def refused(self, expected: str) -> ExpressionError:
        found = "a range" if self.text is None else repr(self.text)
        return ExpressionError(self.position, f"expected {expected}, found {found}")


class Leaves(Protocol):
    """The leaves of one name. Only its class knows the type of the alternatives, `Any` here."""

    def alternatives(self, items: Sequence[Item], negated: bool) -> Sequence[Any]: ...

    def columns(self, chosen: Sequence[Any]) -> Clause | None:
        """Return the columns of alternatives that must all pass; None if no user passes them."""


@dataclass(frozen=True)
class _AttributeLeaves:
    """An alternative has the bits of the values that it names."""

    attribute: Attribute

    def alternatives(self, items: Sequence[Item], negated: bool) -> Sequence[tuple[bool, int]]:
        return [(negated, reduce(or_, map(self._bits, items)))]

    def columns(self, chosen: Sequence[tuple[bool, int]]) -> Clause | None:
        include, exclude = (self.attribute.name + end for end in Attribute.columns)
        excluded = reduce(or_, (bits for negated, bits in chosen if negated), 0)
        allowed = reduce(and_, (bits for negated, bits in chosen if not negated), -1)
        if allowed >= 0:  # one of them includes
            allowed &= ~excluded
            return {include: self._values(allowed)} if allowed else None
        values = self._values(excluded)
        nobody = len(values) == len(self.attribute.values)
        nobody &= not self.attribute.missing_passes_exclude
        return None if nobody else {exclude: values}

    def _bits(self, item: Item) -> int:
        values = self.attribute.values
        if item.text in self._places:
            return 1 << self._places[item.text]
        numbers, bits = self._numbers
        if item.text is None and item.span is not None:
            first, last = bisect_left(numbers, item.span[0]), bisect_right(numbers, item.span[1])
            if first < last:
                return bits[last] ^ bits[first]
        listed = ", ".join(values[:8]) + (", ..." if len(values) > 8 else "")
        listed = listed if self.attribute.clock is None else f"0 to {values[-1]}"
        raise item.refused(f"a value that the schema lists for {self.attribute.name!r} ({listed})")

    def _values(self, bits: int) -> list[str]:
        return [*compress(self.attribute.values, map(int, bin(bits)[:1:-1]))]  # lowest bit first

    @cached_property
    def _places(self) -> dict[str | None, int]:
        return {value: place for place, value in enumerate(self.attribute.values)}

    @cached_property
    def _numbers(self) -> tuple[list[float], list[int]]:
        """The values that are integers, ascending, and the bits of all before each of them."""
        values = enumerate(self.attribute.values)
        found = sorted((float(each), 1 << i) for i, each in values if _INTEGER.fullmatch(each))
        return [n for n, _ in found], list(accumulate((bit for _, bit in found), or_, initial=0))


@dataclass(frozen=True)
class _SetLeaves:
    target_set: TargetSet

    def alternatives(
        self, items: Sequence[Item], negated: bool
    ) -> Sequence[tuple[bool, tuple[str, ...]]]:
        return [(negated, tuple(sorted({self._value(item) for item in items})))]

    def columns(self, chosen: Sequence[tuple[bool, tuple[str, ...]]]) -> Clause | None:
        include, exclude, every = (self.target_set.name + end for end in TargetSet.columns)
        groups = sorted({values for negated, values in chosen if not negated})
        excluded = {value for negated, values in chosen if negated for value in values}
        if any(excluded.issuperset(group) for group in groups):
            return None
        columns: dict[str, Any] = {exclude: sorted(excluded)} if excluded else {}
        if len(groups) == 1:
            columns[include] = list(groups[0])
        elif groups:
            columns[every] = [list(group) for group in groups]
        return columns

    def _value(self, item: Item) -> str:
        if item.text is None or item.text == RESERVED_VALUE:
            raise item.refused(f"a value of the set {self.target_set.name!r}")
        return item.text


@dataclass(frozen=True)
class _RangeLeaves:
    target: Range

    def alternatives(self, items: Sequence[Item], negated: bool) -> Sequence[Span]:
        spans = [self._span(item) for item in items]
        return (_gaps(spans) or [_NO_NUMBER]) if negated else spans

    def columns(self, chosen: Sequence[Span]) -> Clause | None:
        """A span without a number still passes users without the number, by `missing_passes`."""
        span = (max(low for low, _ in chosen), min(high for _, high in chosen))
        if _is_empty(span):
            if not self.target.missing_passes:
                return None
            span = _NO_NUMBER
        ends = zip(Range.columns, span, strict=True)
        return {self.target.name + end: number for end, number in ends if isfinite(number)}

    def _span(self, item: Item) -> Span:
        if item.span is None:
            raise item.refused(f"{A_NUMBER}, for {self.target.name!r}")
        return item.span


def _gaps(spans: Sequence[Span]) -> list[Span]:
    gaps, low = [], -inf
    for begin, end in sorted(spans):
        gaps.append((low, nextafter(begin, -inf)))
        low = max(low, nextafter(end, inf))
    return [gap for gap in (*gaps, (low, inf)) if not _is_empty(gap)]


def _is_empty(span: Span) -> bool:
    low, high = span
    return low > high or low == inf or high == -inf


@lru_cache(maxsize=8)
def leaves_of(schema: TargetingSchema) -> Mapping[str, Leaves]:
    """Return the leaves of each name that an expression may have."""
    found: dict[str, Leaves] = {each.name: _AttributeLeaves(each) for each in schema.attributes}
    found |= {each.name: _SetLeaves(each) for each in schema.sets}
    return found | {each.name: _RangeLeaves(each) for each in schema.ranges}
