"""The codes of vectors by torch, for a GPU. `index/codebook/codebook.py` defines them."""

from typing import TypeAlias

import torch
from torch import Tensor

from grace.index.codebook.codebook import BLOCK, PAIRS, ROUNDING, Level, LevelOf, decided
from grace.index.codebook.codebook import codes_of as codes_on_cpu

LevelTensors: TypeAlias = LevelOf[Tensor]


def on_cpu(level: LevelTensors) -> Level:
    return Level(level.centres.cpu().numpy(), level.prices.cpu().numpy())


def codes_of(vectors: Tensor, level: LevelTensors) -> Tensor:
    """Return the code of each vector.   float32 [n, dims] -> int64 [n]"""
    if vectors.is_cpu:
        return torch.from_numpy(codes_on_cpu(vectors.numpy(), on_cpu(level)))
    return codes_on_gpu(vectors, level)


def codes_on_gpu(vectors: Tensor, level: LevelTensors) -> Tensor:
    """Return the same, with the products on the vectors' device."""
    rows = max(1, BLOCK // len(level.centres))
    halves = (level.centres.double().square().sum(dim=1) + level.prices.double()) / 2
    return torch.cat([_codes(block, level, halves) for block in torch.split(vectors, rows)])


def _codes(vectors: Tensor, level: LevelTensors, halves: Tensor) -> Tensor:
    """Compare halves of |x - c|^2 + price - |x|^2.   halves float64 [codes]"""
    scores = torch.addmm(halves.float(), vectors, level.centres.T, alpha=-1)
    best, codes = scores.min(dim=1)
    longest = level.centres.double().square().sum(dim=1).max().sqrt().float()
    lengths = vectors.norm(dim=1) * longest + halves.max().float()
    near = scores <= (best + ROUNDING * (vectors.shape[1] + 8) * lengths)[:, None]
    doubtful = (near.sum(dim=1) > 1).nonzero()[:, 0]
    for part in torch.split(doubtful, max(1, PAIRS // level.centres.numel())):
        chosen = decided(vectors[part].cpu().numpy(), on_cpu(level), near[part].cpu().numpy())
        codes[part] = torch.from_numpy(chosen).to(codes.device)
    return codes
