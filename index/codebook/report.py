"""Measure the quality of SIDs: their balance, their prefixes and their error."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.index.codebook.codebook import Tokens

Int64 = npt.NDArray[np.int64]

PERCENTILES = (50, 90, 99, 100)


@dataclass(frozen=True, slots=True)
class LevelReport:
    """
    codes     the size of the vocabulary
    unused    codes that no item has
    fullest   items of the most frequent code, as a multiple of an even share
    entropy   of the codes, in bits; log2(codes) if all have equally many
    prefixes  distinct prefixes up to this level
    error     the squared distances of the vectors from the sums of their centres up to this
              level, relative to their squared distances from the mean vector
    """

    codes: int
    unused: int
    fullest: float
    entropy: float
    prefixes: int
    error: float


@dataclass(frozen=True, slots=True)
class SidReport:
    """`items_per_sid` is by percentile of the SIDs; 100 is the maximum."""

    sid_space: str
    items: int
    sids: int
    items_per_sid: dict[int, int]
    levels: tuple[LevelReport, ...]

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        values["levels"] = [
            {**level, **{name: round(level[name], 4) for name in ("fullest", "entropy", "error")}}
            for level in values["levels"]
        ]
        return values


@dataclass(frozen=True, slots=True)
class Counts:
    """
    of_codes  by level: int64 [codes], items of each code
    of_sids   int64 [sids], items of each SID
    prefixes  by level
    """

    of_codes: tuple[Int64, ...]
    of_sids: Int64
    prefixes: tuple[int, ...]

    @classmethod
    def of(cls, tokens: Tokens, codes: tuple[int, ...]) -> "Counts":
        of_codes = [
            np.bincount(tokens[:, level], minlength=size) for level, size in enumerate(codes)
        ]
        prefix, prefixes = np.zeros(len(tokens), np.int64), []
        for level, size in enumerate(codes):
            # Renumbered at each level, so that the numbers of long prefixes stay small.
            _, prefix = np.unique(prefix * size + tokens[:, level], return_inverse=True)
            prefixes.append(int(prefix.max()) + 1)
        return cls(tuple(of_codes), np.bincount(prefix), tuple(prefixes))


def report_of(
    sid_space: str, counts: Counts, errors: tuple[float, ...], spread: float
) -> SidReport:
    """
    errors  the squared residuals of all items, by level
    spread  the squared distances of all items from their mean
    """
    percentiles = np.percentile(counts.of_sids, PERCENTILES, method="inverted_cdf").astype(int)
    return SidReport(
        sid_space=sid_space,
        items=int(counts.of_sids.sum()),
        sids=len(counts.of_sids),
        items_per_sid=dict(zip(PERCENTILES, percentiles.tolist(), strict=True)),
        levels=tuple(
            LevelReport(
                codes=len(of_codes),
                unused=int((of_codes == 0).sum()),
                fullest=float(of_codes.max() * len(of_codes) / of_codes.sum()),
                entropy=_entropy(of_codes),
                prefixes=prefixes,
                error=error / spread if spread > 0 else 0.0,
            )
            for of_codes, prefixes, error in zip(
                counts.of_codes, counts.prefixes, errors, strict=True
            )
        ),
    )


def _entropy(counts: Int64) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum()) + 0.0
