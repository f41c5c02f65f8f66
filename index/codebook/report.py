"""Measure the quality of SIDs: their balance, their prefixes and their error."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from grace.configs.arrays import Integers
from grace.index.codebook.codebook import Tokens


@dataclass(frozen=True, slots=True)
class LevelReport:
    level: int  # the position in a SID, from 1
    codes: int  # the size of the vocabulary
    unused: int  # codes that no item has
    fullest: float  # items of the most frequent code, as a multiple of an even share
    entropy: float  # of the codes, in bits; log2(codes) if all have equally many
    prefixes: int  # distinct prefixes up to this level
    # the squared distances of the vectors from the sums of their centres up to this level, relative
    # to their squared distances from the mean vector
    error: float


@dataclass(frozen=True, slots=True)
class SidReport:
    sid_space: str
    vocab_sizes: tuple[int, ...]  # the codes by level
    items: int
    sids: int
    items_per_sid: dict[str, int]  # by percentile of the SIDs
    levels: tuple[LevelReport, ...]

    def to_json(self) -> dict[str, Any]:
        rounded = ("fullest", "entropy", "error")
        levels = [
            asdict(level) | {name: round(getattr(level, name), 4) for name in rounded}
            for level in self.levels
        ]
        return asdict(self) | {"levels": levels}


def report_of(
    sid_space: str,
    tokens: Tokens,
    codes: tuple[int, ...],  # the size of the vocabulary, by level
    errors: tuple[float, ...],  # the squared residuals of all items, by level
    spread: float,  # the squared distances of all items from their mean
) -> SidReport:
    items = len(tokens)
    prefix = np.zeros(items, np.int64)
    levels = []
    for level, (size, error) in enumerate(zip(codes, errors, strict=True)):
        counts = np.bincount(tokens[:, level], minlength=size)
        # Renumbered at each level, so that the numbers of long prefixes stay small.
        _, prefix = np.unique(prefix * size + tokens[:, level], return_inverse=True)
        shares = counts[counts > 0] / items
        report = LevelReport(
            level=level + 1,
            codes=size,
            unused=int((counts == 0).sum()),
            fullest=float(counts.max() * size / items),
            entropy=float(-(shares * np.log2(shares)).sum()) + 0.0,
            prefixes=int(prefix.max()) + 1,
            error=error / spread if spread > 0 else 0.0,
        )
        levels.append(report)
    of_sids = np.bincount(prefix)
    return SidReport(
        sid_space=sid_space,
        vocab_sizes=codes,
        items=items,
        sids=len(of_sids),
        items_per_sid=percentiles(of_sids, 50, 90, 99),
        levels=tuple(levels),
    )


def percentiles(counts: Integers, *percents: int) -> dict[str, int]:
    found = np.percentile(counts, percents, method="inverted_cdf")
    named = {f"p{percent}": int(size) for percent, size in zip(percents, found, strict=True)}
    return named | {"max": int(counts.max())}
