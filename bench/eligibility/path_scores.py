"""A stand-in for the model: hierarchical scores from popularity and each user's preferences.

A child's logit is made of the number of ads below it and of a preference fixed for (seed, user,
node). The log-softmax over siblings is the token's score, and a SID's score their sum. Every prefix
has its score, by torch: on a GPU, milliseconds for 30 M. So every way to decode reads the same
scores, and the best eligible SIDs of the whole catalogue are known.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from grace.catalogues.paper.draws import Draws, Stream
from grace.configs.arrays import Float32, Integers
from grace.index.snapshot import Snapshot
from grace.kernels.devices import staged_copy

BEAMS = (1, 512, 1024, 1024)
NUM_SIDS = 1024

_GOLDEN = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)
_AT_ONCE = 1 << 23
_TWO_PI = 6.283185307179586


@dataclass(frozen=True, slots=True)
class GeneratorKnobs:
    popularity: float = 0.52  # weight of log(ads below), for the average user
    popularity_spread: float = 0.065  # its standard deviation over users: some follow the crowd
    liking: float = 2.0  # standard deviation of a user's liking of a node


class PathScores:
    """
    log_ads  float32 [nodes]   logarithm of the ads below
    """

    def __init__(
        self, snapshot: Snapshot, draws: Draws, knobs: GeneratorKnobs, device: torch.device
    ) -> None:
        self.draws, self.knobs, self.log_ads = draws, knobs, _log_ads(snapshot)
        self._levels = tuple(pairwise(snapshot.trie.level_starts))
        self._placed = staged_copy(self.log_ads, device)
        offsets = staged_copy(snapshot.trie.node_offsets, device).long()
        parents = torch.arange(len(offsets) - 1, device=device, dtype=torch.int32)
        self._parents = parents.repeat_interleave(offsets.diff())  # of node j + 1, at j

    def popularity_weight(self, user: int) -> float:
        """Return what log(ads below) weighs for a user."""
        taste = float(self.draws.normal(Stream.TASTE, np.array([user]))[0])
        return self.knobs.popularity + self.knobs.popularity_spread * taste

    def of(self, user: int) -> Tensor:
        """Return the log-probability of the path to each node.   float32 [nodes]"""
        paths = torch.zeros_like(self._placed)
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
        weight, liking = self.popularity_weight(user), self.knobs.liking
        start = self.draws.start(Stream.AFFINITY)
        logits = self._placed[first:end] * weight
        for begin in range(first, end, _AT_ONCE):
            nodes = torch.arange(begin, min(begin + _AT_ONCE, end), device=logits.device)
            normal = normals(start, nodes | user << 32)
            logits[begin - first : begin - first + len(nodes)] += liking * normal
        return logits


def _log_ads(snapshot: Snapshot) -> Float32:
    trie = snapshot.trie
    log_ads = np.empty(trie.num_entries + 1, np.float32)
    first_ads: Integers = snapshot.ads.ad_offsets
    log_ads[trie.first_leaf :] = np.log(np.diff(first_ads))
    for level in range(trie.sid_length - 1, -1, -1):
        begin, end = trie.level_starts[level], trie.level_starts[level + 1]
        children = trie.node_offsets[begin : end + 1].astype(np.int64) + 1
        first_ads = first_ads[children - trie.level_starts[level + 1]]
        log_ads[begin:end] = np.log(np.diff(first_ads))
    return log_ads


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
