"""The matchers of the trie's nodes: what a user must pass for a node to be admitted.

One bitmask matcher per node over all attributes, and one Bloom matcher per node for each set. The
rows are deduplicated within each level and stored level after level, so a level's rows lie together
and its storage can be told before and after deduplication.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

__all__ = ["BloomMatchers", "MatcherMode", "Matchers", "NodeMatchers"]


class MatcherMode(StrEnum):
    CD = "cd"  # none: every valid token is admitted
    UNION = "union"  # a node's row is the OR of all rows below it


@dataclass(frozen=True, slots=True)
class NodeMatchers:
    """
    index  int32 [child entries]   entry j holds the row of node j + 1
    table  uint64 [rows, words]
    """

    index: npt.NDArray[np.int32]
    table: npt.NDArray[np.uint64]
    level_rows: tuple[int, ...]  # rows of level 1 .. sid_length


@dataclass(frozen=True, slots=True)
class BloomMatchers:
    """
    star  uint8 [rows]   1 where the row contains the reserved element, which every user has
    """

    rows: NodeMatchers
    star: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Matchers:
    bitmask: NodeMatchers
    blooms: tuple[BloomMatchers, ...]  # in the schema's order of sets
