"""Exact targeting: the rules of the ads, on bits and interned values, never on Bloom bits.

A rule has a row of each component (index/forms). Rules and rows are deduplicated, their ids given
by first use in (SID, ad id) order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt


class Lists(NamedTuple):
    """Rows of value ids: row i is values[offsets[i] : offsets[i + 1]], ascending.

    offsets int64 [rows + 1], values int32 [...]
    """

    offsets: npt.NDArray[np.int64]
    values: npt.NDArray[np.int32]


Column = npt.NDArray[Any] | Lists
"""Part of each row: plain numbers [rows, width], or a list of value ids."""


class Rows(Protocol):
    """The distinct rows of one component, as columns. The builder knows no more of a form."""

    has_values: ClassVar[bool]
    """Whether the rows name values of their own."""

    @property
    def columns(self) -> Sequence[Column]: ...

    @classmethod
    def of(cls, columns: Sequence[Column]) -> "Rows": ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class NumberRows:
    """Rows of numbers: of attributes the bits of the values that a rule allows.

    table [rows, width]
    """

    has_values: ClassVar[bool] = False
    table: npt.NDArray[Any]

    @property
    def columns(self) -> Sequence[Column]:
        return (self.table,)

    @classmethod
    def of(cls, columns: Sequence[Column]) -> "NumberRows":
        (table,) = columns
        return cls(np.asarray(table))

    def __len__(self) -> int:
        return len(self.table)


@dataclass(frozen=True, slots=True)
class SetRules:
    """The set rules of one set, as value ids ascending within a rule.

    An empty include range means no include list: any user passes. An empty exclude range excludes
    no user.   offsets int64 [set rules + 1], values int32 [...]
    """

    has_values: ClassVar[bool] = True
    include_offsets: npt.NDArray[np.int64]
    include_values: npt.NDArray[np.int32]
    exclude_offsets: npt.NDArray[np.int64]
    exclude_values: npt.NDArray[np.int32]

    @property
    def columns(self) -> tuple[Lists, Lists]:
        include = Lists(self.include_offsets, self.include_values)
        return (include, Lists(self.exclude_offsets, self.exclude_values))

    @classmethod
    def of(cls, columns: Sequence[Column]) -> "SetRules":
        include, exclude = columns
        return cls(*include, *exclude)

    def __len__(self) -> int:
        return len(self.include_offsets) - 1


@dataclass(frozen=True, slots=True)
class TargetingRules:
    """
    rows   int32 [rules, components]   the row of each component
    parts  the rows of each component: attributes, then each set
    """

    rows: npt.NDArray[np.int32]
    parts: tuple[Any, ...]

    @property
    def num_rules(self) -> int:
        return len(self.rows)

    @property
    def bitmask_table(self) -> npt.NDArray[np.uint64]:
        table: npt.NDArray[np.uint64] = self.parts[0].table
        return table

    @property
    def sets(self) -> tuple[SetRules, ...]:
        return tuple(part for part in self.parts if isinstance(part, SetRules))


def take(column: Column, rows: npt.NDArray[np.integer]) -> Column:
    """Return these rows of a column."""
    if not isinstance(column, Lists):
        return np.take(column, rows, axis=0)
    sizes = np.diff(column.offsets)
    return Lists(*gather_spans(column.values, column.offsets[rows], sizes[rows]))


def gather_spans(
    values: npt.NDArray[Any], begins: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Return offsets, and the spans values[begins[i] : begins[i] + sizes[i]] one after another."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    places = np.repeat(begins - offsets[:-1], sizes) + np.arange(offsets[-1])
    return offsets, values[places]
