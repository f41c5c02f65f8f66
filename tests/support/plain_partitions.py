"""The partitions of k-way matchers in plain Python, by their definition. Rows are integers."""

from fractions import Fraction
from functools import reduce
from operator import or_

from grace.configs.eligibility import FILL_UNIT, DynamicKWay, KWay, MatcherMode, StaticKWay

_WIDTHS = (3, 4, 2, 1, 5)


def plain_k_way(mode: MatcherMode, sid_length: int) -> KWay | None:
    """Partitions for small catalogues: fewer than some nodes have SIDs, more than others."""
    if mode is MatcherMode.STATIC:
        return StaticKWay(tuple(_WIDTHS[level % len(_WIDTHS)] for level in range(sid_length)))
    return DynamicKWay(300_000, 8) if mode is MatcherMode.DYNAMIC else None


def plain_partitions(sid_rows: list[int], bits: int, k_way: KWay | None, level: int) -> list[int]:
    """The rows that a node of a level stores, from those of the SIDs below it in SID order."""
    if k_way is None:
        return [reduce(or_, sid_rows)]
    if isinstance(k_way, StaticKWay):
        width = k_way.widths[level - 1]
        taken = _assigned(sid_rows, width)
        return taken + [0] * (width - len(taken))
    k = 1
    while True:
        taken = _assigned(sid_rows, k)
        if _mean_fill(taken, bits) <= Fraction(k_way.fill_target_millionths, FILL_UNIT):
            return taken
        if k == k_way.k_max:
            return taken
        k *= 2


def _assigned(sid_rows: list[int], k: int) -> list[int]:
    """Every SID to the partition with the smallest popcount after the union, the first of equals.

    The rows of the partitions that have SIDs, which are the first ones.
    """
    rows, members = [0] * k, [0] * k
    for row in sid_rows:
        sizes = [(partition | row).bit_count() for partition in rows]
        chosen = sizes.index(min(sizes))
        rows[chosen] |= row
        members[chosen] += 1
    stored = [row for row, count in zip(rows, members, strict=True) if count]
    assert rows[: len(stored)] == stored
    return stored


def _mean_fill(rows: list[int], bits: int) -> Fraction:
    return Fraction(sum(row.bit_count() for row in rows), max(1, bits) * len(rows))
