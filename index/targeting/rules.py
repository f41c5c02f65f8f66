"""Exact targeting: the rules of the ads, on bits and interned values, never on Bloom bits.

A rule is a bitmask row and one set-rule id per set; rules, bitmask rows and set rules are
deduplicated separately, their ids given by first use in (SID, ad id) order.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class SetRules:
    """The set rules of one set, as value ids ascending within a rule.

    An empty include range means no include list: any user passes. An empty exclude range excludes
    no user.   offsets int64 [set rules + 1], values int32 [...]
    """

    include_offsets: npt.NDArray[np.int64]
    include_values: npt.NDArray[np.int32]
    exclude_offsets: npt.NDArray[np.int64]
    exclude_values: npt.NDArray[np.int32]

    @property
    def num_rules(self) -> int:
        return len(self.include_offsets) - 1


@dataclass(frozen=True, slots=True)
class TargetingRules:
    """
    bitmask        int32 [rules]              row of `bitmask_table`
    bitmask_table  uint64 [rows, words]
    set_rules      int32 [rules, sets]        set-rule id, per set
    """

    bitmask: npt.NDArray[np.int32]
    bitmask_table: npt.NDArray[np.uint64]
    set_rules: npt.NDArray[np.int32]
    sets: tuple[SetRules, ...]

    @property
    def num_rules(self) -> int:
        return len(self.bitmask)


def gather_spans(
    values: npt.NDArray[Any], begins: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Return offsets, and the spans values[begins[i] : begins[i] + sizes[i]] one after another."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    places = np.repeat(begins - offsets[:-1], sizes) + np.arange(offsets[-1])
    return offsets, values[places]
