"""The codebook: how vectors become Semantic IDs, and how it is learned.

Level 0 gives a vector its first token. The difference from its centre, the residual, gets the next
token from level 1, and so on. So items that share a prefix lie close to one another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grace.model.codebook.kmeans import learn_level
from grace.model.codebook.level import Level, codes_of


@dataclass(frozen=True, slots=True)
class Codebook:
    """`codes` is the size of each level's vocabulary, of which some may have no centre."""

    levels: tuple[Level, ...]
    codes: tuple[int, ...]

    @property
    def dims(self) -> int:
        return self.levels[0].centres.shape[1]

    def encode(self, vectors: Tensor) -> "Encoded":
        """Encode float32 [n, dims]. A vector has the same tokens in any batch, on any device."""
        residual, tokens, errors = vectors, [], []
        for level in self.levels:
            tokens.append(codes_of(residual, level))
            residual = residual - level.centres[tokens[-1]]
            errors.append(float(residual.double().square().sum()))
        return Encoded(torch.stack(tokens, dim=1), tuple(errors))

    def to(self, device: torch.device) -> "Codebook":
        return Codebook(tuple(level.to(device) for level in self.levels), self.codes)


@dataclass(frozen=True, slots=True)
class Encoded:
    """
    tokens  int64 [n, levels]
    errors  by level: the squared residuals that it leaves, summed over the vectors
    """

    tokens: Tensor
    errors: tuple[float, ...]


def learn_codebook(
    sample: Tensor,
    codes: Sequence[int],
    balance: float,
    seed: int,
    learned: Callable[[int], None] = lambda _: None,
) -> Codebook:
    """Learn a level from the residuals of the levels before it.

    sample   float32 [n, dims], in random order
    balance  the cap on a code's items, as a multiple of an even share; 0 for no cap
    learned  is called with the number of levels that are done
    """
    rng = np.random.default_rng(seed)
    residual, levels = sample, []
    for size in codes:
        level = learn_level(residual, size, balance, rng)
        residual = residual - level.centres[codes_of(residual, level)]
        levels.append(level)
        learned(len(levels))
    return Codebook(tuple(levels), tuple(codes))
