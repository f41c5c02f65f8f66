"""One level of a codebook, and the code that it gives to a vector.

The code of a vector x is the c with the least |x - centre_c|^2 + price_c; ties go to the lower c.
It depends on x alone, not on the batch, the threads or the device: float32 products find the codes
that can be best within their rounding errors, and float64 decides where these are several.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_BLOCK = 1 << 19  # scores at a time: they stay in the cache of a core
_PAIRS = 1 << 22  # numbers of a float64 comparison at a time
_ROUNDING = 2.0**-23


@dataclass(frozen=True, slots=True)
class Level:
    """
    centres  float32 [codes, dims]
    prices   float32 [codes]     0 or more, in units of squared distance
    """

    centres: Tensor
    prices: Tensor

    def to(self, device: torch.device) -> "Level":
        return Level(self.centres.to(device), self.prices.to(device))


def codes_of(vectors: Tensor, level: Level) -> Tensor:
    """Return the code of each vector.   float32 [n, dims] -> int64 [n]"""
    rows = max(1, _BLOCK // len(level.centres))
    halves = (level.centres.double().square().sum(dim=1) + level.prices.double()) / 2
    return torch.cat([_codes(block, level, halves) for block in torch.split(vectors, rows)])


def _codes(vectors: Tensor, level: Level, halves: Tensor) -> Tensor:
    """Compare halves of |x - c|^2 + price - |x|^2.   halves float64 [codes]"""
    dims = vectors.shape[1]
    scores = torch.addmm(halves.float(), vectors, level.centres.T, alpha=-1)
    best, codes = scores.min(dim=1)
    longest = level.centres.double().square().sum(dim=1).max().sqrt().float()
    error = _ROUNDING * (dims + 8) * (vectors.norm(dim=1) * longest + halves.max().float())
    near = scores <= (best + error)[:, None]
    doubtful = (near.sum(dim=1) > 1).nonzero()[:, 0]
    for part in torch.split(doubtful, max(1, _PAIRS // (dims * len(level.centres)) + 1)):
        codes[part] = _decided(vectors[part], level, near[part])
    return codes


def _decided(vectors: Tensor, level: Level, near: Tensor) -> Tensor:
    """Return the best code of each row among its near ones, by plain sums in float64."""
    row, code = near.nonzero(as_tuple=True)
    apart = vectors[row].double() - level.centres[code].double()
    costs = torch.full(near.shape, torch.inf, dtype=torch.float64, device=vectors.device)
    costs[row, code] = apart.square().sum(dim=1) + level.prices[code].double()
    least = costs.min(dim=1, keepdim=True).values
    return (costs == least).int().argmax(dim=1)
