"""The generator's score of every prefix for one user, in torch: on a GPU, milliseconds for 30 M.

catalogues/paper/generator.py defines them. So every way to decode reads the same scores, and the
best eligible SIDs of the whole catalogue are known.
"""

from itertools import pairwise

import torch
from torch import Tensor

from grace.catalogues.paper.draws import Stream
from grace.catalogues.paper.generator import Generator
from grace.kernels.devices import staged_copy

_GOLDEN = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)
_AT_ONCE = 1 << 23
_TWO_PI = 6.283185307179586


class PathScores:
    def __init__(
        self, generator: Generator, level_starts: tuple[int, ...], device: torch.device
    ) -> None:
        """`level_starts` is the first node of each level, and at the end the number of nodes."""
        self._generator = generator
        self._levels = tuple(pairwise(level_starts))
        self._log_ads = staged_copy(generator.log_ads, device)
        offsets = staged_copy(generator.node_offsets, device).long()
        parents = torch.arange(len(offsets) - 1, device=device, dtype=torch.int32)
        self._parents = parents.repeat_interleave(offsets.diff())  # of node j + 1, at j

    def of(self, user: int) -> Tensor:
        """Return the log-probability of the path to each node.   float32 [nodes]"""
        paths = torch.zeros_like(self._log_ads)
        for (above, _), (first, end) in pairwise(self._levels):
            logits = self._logits(user, first, end)
            parents = self._parents[first - 1 : end - 1].long() - above
            sums = logits.new_zeros(first - above, dtype=torch.float64)
            sums.index_add_(0, parents, logits.double().exp())  # logits are below 40
            begin = paths[above:first].double() - sums.log()
            paths[first:end] = begin[parents] + logits
        return paths

    def _logits(self, user: int, first: int, end: int) -> Tensor:
        """Return the logit of each node first .. end - 1."""
        weight, liking = self._generator.popularity_weight(user), self._generator.knobs.liking
        start = self._generator.draws.start(Stream.AFFINITY)
        logits = self._log_ads[first:end] * weight
        for begin in range(first, end, _AT_ONCE):
            nodes = torch.arange(begin, min(begin + _AT_ONCE, end), device=logits.device)
            normal = normals(start, nodes | user << 32)
            logits[begin - first : begin - first + len(nodes)] += liking * normal
        return logits


def normals(start: int, keys: Tensor) -> Tensor:
    """Return `Draws.normal` of a stream that starts at `start`.   int64 [n] -> float32 [n]"""
    bits = keys * _signed(_GOLDEN) + _signed(start)
    for shift, factor in zip(_SHIFTS, (*_FACTORS, None), strict=True):
        bits ^= _shifted(bits, shift)
        if factor is not None:
            bits *= _signed(factor)
    first = (_shifted(bits, 32).float() + 0.5) * 2.0**-32
    angle = (bits & 0xFFFFFFFF).float() * (_TWO_PI * 2.0**-32)
    return (-2 * first.log()).sqrt() * angle.cos()


def _shifted(bits: Tensor, by: int) -> Tensor:
    """Shift right as if the words were unsigned."""
    return (bits >> by).bitwise_and_((1 << 64 - by) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
