"""The ways to match nodes of the trie while decoding, and how k-way makes partitions."""

from dataclasses import dataclass
from enum import StrEnum

FILL_UNIT = 1_000_000
"""Fill targets are whole millionths: so that every reader compares the same fraction."""

MAX_PARTITIONS = 1024  # of one node


class MatcherMode(StrEnum):
    EXACT = "exact"  # a node is admitted if and only if an ad below it is eligible and not stopped
    CD = "cd"  # none: every valid token is admitted
    UNION = "union"  # a node's row is the OR of all rows below it
    STATIC = "static"  # k-way, as many partitions as the node's level says
    DYNAMIC = "dynamic"  # k-way, as many partitions as the node needs to be selective


MATCHERLESS_MODES = (MatcherMode.EXACT, MatcherMode.CD)
"""The modes whose nodes have no rows."""


@dataclass(frozen=True, slots=True)
class StaticKWay:
    widths: tuple[int, ...]  # partitions of a node of level 1 .. sid_length

    def __post_init__(self) -> None:
        for i, width in enumerate(self.widths):
            if not 1 <= width <= MAX_PARTITIONS:
                raise ValueError(f"widths[{i}]: must be 1 to {MAX_PARTITIONS}, got {width}")


@dataclass(frozen=True, slots=True)
class DynamicKWay:
    """k = 1, 2, 4 .. k_max, until the mean fill of a node's partitions is at most the target."""

    fill_target_millionths: int = 250_000
    k_max: int = 32

    def __post_init__(self) -> None:
        target = self.fill_target_millionths
        if not 0 <= target <= FILL_UNIT:
            raise ValueError(f"fill_target_millionths: must be 0 to {FILL_UNIT}, got {target}")
        if not 1 <= self.k_max <= MAX_PARTITIONS or self.k_max & (self.k_max - 1):
            raise ValueError(
                f"k_max: must be a power of two from 1 to {MAX_PARTITIONS}, got {self.k_max}"
            )


KWay = StaticKWay | DynamicKWay
