"""What every form of component can do, and the reasons that it gives.

A rule in words is in the grammar of expressions (index/targeting/expressions.py).
"""

from collections.abc import Iterator, Sequence
from ctypes import c_void_p
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np

from grace.configs.arrays import Bools, Int32, Int64, Integers, UInt8
from grace.index.targeting.rules import Rows
from grace.index.users.values import InternedValues
from grace.proto.retrieval_pb2 import RetrieveRequest

MOST_SHOWN = 5

Array = TypeVar("Array")
"""What a batch asks is in arrays of numpy, or in tensors: a NamedTuple of either."""

BAD_VALUE = -1  # the code of a value that no rule may name

OPEN_INCLUDE, OPEN_EXCLUDE = 1, 2
"""What passes before any list of ids is compared: rows that include values, and others."""


class Codes(dict[str | None, int]):
    """The codes of the values that an include and an exclude column may name. None is bad."""

    refusal: str  # why a value has the code BAD_VALUE


class ListColumn(NamedTuple):
    """Row r's words are codes[offsets[r] : offsets[r + 1]] where valid[r], else it has no rule.

    The words are the codes of values; for a column of groups the size of each group, and the codes
    in it; for a column of numbers the two halves of a float64.
    """

    offsets: Int64  # [rows + 1]
    valid: UInt8  # [rows]
    codes: Int32  # [...]


@dataclass(frozen=True, slots=True)
class Reason:
    """One part of a rule that was tested: `name allows` is an expression. Names without one pass.

    `user` has all of the user's values for the name. `deciding` has those that fulfil the rule, or
    those that break it. If `user` is empty, `deciding` has the schema's `missing` value, if any.
    """

    name: str
    passes: bool
    allows: str
    user: tuple[str, ...]
    deciding: tuple[str, ...]

    @property
    def values(self) -> str:
        """The user's values that decide, in words; all of them if none does."""
        shown = some(self.deciding or self.user)
        if self.user:
            return shown
        return f"no value, which counts as {shown}" if shown else "no value"

    def __str__(self) -> str:
        values = f" (user: {self.values})" if self.deciding else ""
        return f"{self.name} {self.allows}{values}"


class ValuedRows(NamedTuple):
    """Rows of a component with values, and the values that they name."""

    rows: Any
    values: InternedValues


class Component(Protocol):
    """A component of every rule of a schema. Its form knows the types that are `Any` here.

    Rows with values come as ValuedRows, except those that `rows_of` returns and `limited` and
    `columns_of` take."""

    kind: ClassVar[type[Rows]]

    @property
    def label(self) -> str:
        """The name of this test in metrics and replies, which count the ads that fail it."""

    def codes(self) -> Sequence[Codes | None]:
        """Return new codes for the columns of each name; None for columns of numbers or times."""

    def add_to_rules(self, table: c_void_p) -> None:
        """Add the encoding of an ad's columns to a native table of rules."""

    def rows_of(self, offsets: Int64, words: Int32) -> Any:
        """Return the rows of words that C++ encoded: row i is words[offsets[i] : offsets[i + 1]]"""

    def columns_of(self, rows: Any, chosen: Integers) -> Iterator[ListColumn]:
        """Yield the columns of ads that have these rows: encoding them gives the same rows."""

    def limited(self, rows: Any) -> Iterator[tuple[str, Bools]]:
        """Yield each name, and which rows rule some user out by it. Rows may be maps of files."""

    def add_to_matcher(self, matcher: int, rows: Any) -> None:
        """Give a native matcher the rows, which must outlive it."""

    def add_to_users(self, reader: int, values: Any, hashed: bool) -> None:
        """Add names and values, which must outlive it, to a reader; `hashed` for Bloom queries."""

    def shapes(self, size: int, most: int) -> Any:
        """Return the shapes of what `size` requests ask. All have at most `most` values."""

    def filled(self, asked: Any) -> Any:
        """Return it without the room that C++ did not need."""
        return asked

    def narrows(self, asked: Any) -> bool:  # noqa: ARG002
        """Return whether one of the requests may fail a row."""
        return True

    def address(self, asked: Any, kept: list[Any]) -> int:
        """Return the address of a struct for C++: addresses, then lengths. `kept` keeps them."""
        arrays = [np.ascontiguousarray(each) for each in asked]
        struct = np.array([*(each.ctypes.data for each in arrays), *map(len, arrays)], np.uintp)
        kept += [*arrays, struct]
        return int(struct.ctypes.data)

    def explain(self, rows: Any, row: int, request: RetrieveRequest) -> list[Reason]:
        """Test the rules that a row stands for. The request must have `at`."""


class TargetComponent(Component):
    target: Any

    @property
    def label(self) -> str:
        return f"{self.target.word}:{self.target.name}"


def some(values: Sequence[str]) -> str:
    shown = ", ".join(values[:MOST_SHOWN])
    left = len(values) - MOST_SHOWN
    return shown if left <= 0 else f"{shown} and {left} more"


def values_in(request: RetrieveRequest, name: str) -> tuple[str, ...]:
    return tuple(request.user[name].values) if name in request.user else ()
