"""The codebook: how vectors become Semantic IDs.

Level 0 gives a vector its first token. The difference from its centre, the residual, gets the next
token from level 1, and so on. So items that share a prefix lie close to one another.

The code of a vector x is the c with the least |x - centre_c|^2 + price_c; ties go to the lower c.
It depends on x alone, not on the batch, the threads or the machine: float32 products find the codes
that can be best within their rounding errors, and float64 decides if there are several.
"""

from dataclasses import dataclass

import numpy as np

from grace.configs.arrays import Bools, Float32, Float64, Int64, UInt16

_BLOCK = 1 << 19  # scores at a time: they stay in the cache of a core
_ROUNDING = 2.0**-23
_PAIRS = 1 << 22  # numbers of a float64 comparison at a time

Vectors = Float32
Tokens = UInt16


@dataclass(frozen=True, slots=True)
class Level:
    centres: Vectors  # [codes, dims]
    prices: Vectors  # [codes]: 0 or more, in units of squared distance


@dataclass(frozen=True, slots=True)
class Codebook:
    """`codes` has the size of each level's vocabulary. A level may have fewer centres."""

    levels: tuple[Level, ...]
    codes: tuple[int, ...]

    def encode(self, vectors: Vectors) -> tuple[Tokens, tuple[float, ...]]:
        """Return the SID of each vector, and by level the sum of the squared residuals."""
        residual, tokens, errors = vectors, [], []
        for level in self.levels:
            tokens.append(codes_of(residual, level))
            residual = residual - level.centres[tokens[-1]]
            errors.append(float(np.einsum("ij,ij->", residual, residual, dtype=np.float64)))
        return np.stack(tokens, axis=1).astype(np.uint16), tuple(errors)


def codes_of(vectors: Vectors, level: Level) -> Int64:
    """Return the code of each vector.   float32 [n, dims] -> int64 [n]"""
    halves = (np.square(level.centres, dtype=np.float64).sum(axis=1) + level.prices) / 2
    rows = max(1, _BLOCK // len(level.centres))
    codes = np.empty(len(vectors), np.int64)
    for first in range(0, len(vectors), rows):
        codes[first : first + rows] = _codes(vectors[first : first + rows], level, halves)
    return codes


def _codes(vectors: Vectors, level: Level, halves: Float64) -> Int64:
    """Compare halves of |x - c|^2 + price - |x|^2.   halves float64 [codes]"""
    scores = vectors @ level.centres.T
    np.subtract(halves.astype(np.float32), scores, out=scores)
    codes: Int64 = scores.argmin(axis=1)
    rows = np.arange(len(scores))
    best = scores[rows, codes]
    longest = np.sqrt(np.square(level.centres, dtype=np.float64).sum(axis=1).max())
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    error = _ROUNDING * (vectors.shape[1] + 8) * (lengths * longest + halves.max())
    scores[rows, codes] = np.inf
    doubtful = np.flatnonzero(scores.min(axis=1) <= best + error)
    scores[rows, codes] = best
    most = max(1, _PAIRS // level.centres.size)
    for part in np.split(doubtful, range(most, len(doubtful), most)):
        codes[part] = _decided(vectors[part], level, scores[part] <= (best + error)[part, None])
    return codes


def _decided(vectors: Vectors, level: Level, near: Bools) -> Int64:
    """Return the best code of each row among its near ones, by plain sums in float64."""
    row, code = near.nonzero()
    costs = np.full(near.shape, np.inf)
    apart = vectors[row].astype(np.float64) - level.centres[code]
    costs[row, code] = np.square(apart).sum(axis=1) + level.prices[code]
    codes: Int64 = costs.argmin(axis=1)
    return codes
