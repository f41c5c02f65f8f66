"""The ways to test nodes of the trie while decoding, as `--eligibility` and a setting name them.

`exact`, `cd` and `union` take no numbers. `static:64,64,32,8` gives the number of partitions of a
node at each token, and `dynamic:0.25,32` the mean fill to reach and the most partitions. These
numbers are the defaults; those of `static` are for SIDs of four tokens.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from grace.configs.errors import ConfigError

FILL_UNIT = 1_000_000
"""Fill targets are whole millionths, so that every reader compares the same fraction."""

MAX_PARTITIONS = 1024  # of one node


class MatcherMode(StrEnum):
    EXACT = "exact"  # a node is admitted if and only if an ad below it is eligible and not stopped
    CD = "cd"  # no test: every valid token is admitted
    UNION = "union"  # a node's row is the OR of all rows below it
    STATIC = "static"  # k-way, as many partitions as the node's level says
    DYNAMIC = "dynamic"  # k-way, as many partitions as the node needs to be selective


@dataclass(frozen=True, slots=True)
class StaticKWay:
    widths: tuple[int, ...] = (64, 64, 32, 8)  # partitions of a node of level 1 .. sid_length

    def __post_init__(self) -> None:
        for width in self.widths:
            if not 1 <= width <= MAX_PARTITIONS:
                raise ValueError(f"{width} partitions: must be 1 to {MAX_PARTITIONS}")

    def __str__(self) -> str:
        return ",".join(map(str, self.widths))


@dataclass(frozen=True, slots=True)
class DynamicKWay:
    """k = 1, 2, 4 .. k_max, until the mean fill of a node's partitions is at most the target."""

    fill_target_millionths: int = 250_000
    k_max: int = 32

    def __post_init__(self) -> None:
        if not 0 <= self.fill_target_millionths <= FILL_UNIT:
            raise ValueError(f"a mean fill of {self.fill_target:g}: must be 0 to 1")
        if not 1 <= self.k_max <= MAX_PARTITIONS or self.k_max & (self.k_max - 1):
            raise ValueError(
                f"{self.k_max} partitions at most: must be a power of two from 1 to "
                f"{MAX_PARTITIONS}"
            )

    def __str__(self) -> str:
        return f"{self.fill_target:g},{self.k_max}"

    @property
    def fill_target(self) -> float:
        return self.fill_target_millionths / FILL_UNIT


KWay = StaticKWay | DynamicKWay


@dataclass(frozen=True, slots=True)
class Eligibility:
    mode: MatcherMode
    k_way: KWay | None = None  # how partitions are made, in modes `static` and `dynamic`

    @staticmethod
    def of(text: str) -> "Eligibility":
        """Return what a text such as exact or static:64,64,32,8 means, or raise ConfigError."""
        name, colon, numbers = text.partition(":")
        if name not in [*MatcherMode]:
            raise ConfigError(f"eligibility: {text!r}: choose from {', '.join(MatcherMode)}")
        mode = MatcherMode(name)
        try:
            return Eligibility(mode, _k_way(mode, numbers if colon else None))
        except ValueError as error:
            _, default = _NUMBERS.get(mode, ("", None))
            example = str(Eligibility(mode, default))
            raise ConfigError(f"eligibility: {text!r}: {error}; write it like {example}") from None

    def __str__(self) -> str:
        return str(self.mode) if self.k_way is None else f"{self.mode}:{self.k_way}"

    def require_length(self, sid_length: int) -> None:
        """Raise ConfigError if the partitions are for SIDs of another length."""
        if isinstance(self.k_way, StaticKWay) and len(self.k_way.widths) != sid_length:
            raise ConfigError(
                f"eligibility: {self}: the SID length is {sid_length}; give one number per token"
            )


EXACT, CD = Eligibility(MatcherMode.EXACT), Eligibility(MatcherMode.CD)


def _k_way(mode: MatcherMode, numbers: str | None) -> KWay | None:
    if mode not in _NUMBERS:
        if numbers is not None:
            raise ValueError("this mode takes no numbers")
        return None
    pattern, default = _NUMBERS[mode]
    if numbers is None:
        return default
    if not re.fullmatch(pattern, numbers, re.ASCII):
        raise ValueError("these numbers do not fit this mode")
    if mode is MatcherMode.STATIC:
        return StaticKWay(tuple(map(int, numbers.split(","))))
    fill, most = numbers.split(",")
    return DynamicKWay(round(float(fill) * FILL_UNIT), int(most))


_NUMBERS: dict[MatcherMode, tuple[str, KWay]] = {
    MatcherMode.STATIC: (r"\d{1,9}(,\d{1,9})*", StaticKWay()),
    MatcherMode.DYNAMIC: (r"\d{0,9}(\.\d{0,9})?\d,\d{1,9}", DynamicKWay()),
}
