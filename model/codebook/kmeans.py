"""Learn a codebook: k-means makes each level, balanced as far as its clusters allow.

1. Greedy k-means++ draws the first centres.
2. Lloyd's algorithm moves each centre to the mean of its points. Now and then, the least useful
   centres jump to the points with the largest errors, which corrects poor first centres.
3. Prices balance the codes. A code with more points than its cap gets a higher price, just high
   enough that the surplus moves to the next best codes (an auction, which solves the transport
   problem with these caps). No price is above the mean squared error. So a cluster far from all
   others keeps its points, however many, and codes keep their meaning.

Sums are in float64 and in the order of the points, so threads do not change the result.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grace.configs.arrays import Float32
from grace.index.codebook.codebook import Codebook, Level, Vectors, codes_of

_SEED_POINTS = 32  # per code
_TRIALS = 4  # points drawn for each first centre, of which the best stays
_ROUNDS = 20
_JUMPS = (3, 6, 9, 12)  # the rounds after which centres jump
_JUMPERS = 8  # at most one in this many centres
_PRICE_ROUNDS = 12
_MOVING_PRICE_ROUNDS = 8  # the first of these, after which centres still move
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Served:
    codes: Tensor  # int64 [points]
    counts: Tensor  # int64 [codes]
    errors: Tensor  # float64 [points]: squared distance from the own centre

    @classmethod
    def of(cls, points: Tensor, level: Level) -> "Served":
        codes = torch.from_numpy(codes_of(points.numpy(), level))
        centres = torch.from_numpy(level.centres)
        errors = (points - centres[codes]).double().square().sum(dim=1)
        return cls(codes, torch.bincount(codes, minlength=len(centres)), errors)


def learn_codebook(
    sample: Vectors,  # [n, dims], in random order
    codes: tuple[int, ...],
    balance: float,  # the cap on a code's items, as a multiple of an even share; 0 for no cap
    seed: int,
    # called with the number of levels that are done
    learned: Callable[[int], None] = lambda _: None,
) -> Codebook:
    """Learn a level from the residuals of the levels before it."""
    rng = np.random.default_rng(seed)
    residual, levels = sample, []
    for size in codes:
        levels.append(learn_level(torch.from_numpy(residual), size, balance, rng))
        residual = residual - levels[-1].centres[codes_of(residual, levels[-1])]
        learned(len(levels))
    return Codebook(tuple(levels), codes)


def learn_level(points: Tensor, codes: int, balance: float, rng: np.random.Generator) -> Level:
    """Return a level of at most `codes` centres: fewer if fewer points differ.

    points   float32 [n, dims], in random order: the first ones are a sample
    balance  a code's cap, as a multiple of an even share of the points; 0 for no cap
    """
    centres = seed_centres(points[: max(_SEED_POINTS * codes, 1 << 12)], codes, rng)
    prices = np.zeros(len(centres), np.float32)
    for done in range(1, _ROUNDS + 1):
        served = Served.of(points, Level(centres.numpy(), prices))
        centres = _means(points, served, centres)
        if done in _JUMPS:
            centres = _jumped(points, served, centres)
    level = Level(centres.numpy(), prices)
    if balance and len(centres) > 1:
        level = _balanced(points, level, balance)
    used = np.bincount(codes_of(points.numpy(), level), minlength=len(centres)) > 0
    return Level(level.centres[used], level.prices[used])


def seed_centres(points: Tensor, codes: int, rng: np.random.Generator) -> Tensor:
    """Draw points by their squared distance, each the best of several; fewer if fewer differ."""
    wide = points.double()
    squares = wide.square().sum(dim=1)
    chosen = [int(rng.integers(len(points)))]
    nearest = _squared_distances(wide, squares, chosen)[:, 0]
    while len(chosen) < codes:
        ends = nearest.cumsum(0)
        if not ends[-1] > 0:
            break
        drawn = torch.from_numpy(rng.random(_TRIALS)) * ends[-1]
        tried = torch.searchsorted(ends, drawn, right=True).clamp(max=len(points) - 1)
        left = torch.minimum(_squared_distances(wide, squares, tried), nearest[:, None])
        best = int(left.sum(dim=0).argmin())
        chosen.append(int(tried[best]))
        nearest = left[:, best].contiguous()
    return points[chosen]


def _squared_distances(points: Tensor, squares: Tensor, which: Tensor | list[int]) -> Tensor:
    """float64 [n, len(which)]"""
    sums = squares[:, None] + squares[which]
    apart = sums - 2 * (points @ points[which].T)
    # Despite rounding, equal points are at no distance.
    return torch.where(apart < 1e-12 * sums, 0.0, apart)


def _means(points: Tensor, served: Served, centres: Tensor) -> Tensor:
    """Return the means of the codes' points. A centre without points moves to the worst point."""
    order = served.codes.argsort(stable=True)
    sums = torch.segment_reduce(points[order].double(), "sum", lengths=served.counts)
    means = (sums / served.counts.clamp(min=1)[:, None]).float()
    empty = (served.counts == 0).nonzero()[:, 0]
    worst = served.errors.argsort(descending=True, stable=True)[: len(empty)]
    worst = worst[served.errors[worst] > 0]
    means[empty] = centres[empty]
    means[empty[: len(worst)]] = points[worst]
    return means


def _jumped(points: Tensor, served: Served, centres: Tensor) -> Tensor:
    """Move centres that cost little to remove to the largest errors, where that helps more."""
    wide = centres.double()
    squares = wide.square().sum(dim=1)
    apart = _squared_distances(wide, squares, torch.arange(len(wide)))
    apart.fill_diagonal_(torch.inf)
    removal = served.counts * apart.min(dim=1).values  # the points go to the nearest other centre
    order = served.codes.argsort(stable=True)
    error = torch.segment_reduce(served.errors[order], "sum", lengths=served.counts)
    begin = served.counts.cumsum(0) - served.counts
    moved = centres.clone()
    most = max(1, len(centres) // _JUMPERS)
    cheapest = removal.argsort(stable=True)[:most].tolist()
    worst = error.argsort(descending=True, stable=True)[:most].tolist()
    for source, target in zip(cheapest, worst, strict=True):
        mine = order[int(begin[target]) : int(begin[target] + served.counts[target])]
        errors = served.errors[mine]
        if target in cheapest or not len(mine):
            continue
        farthest = points[mine[errors.argmax()]]
        nearer = (points[mine] - farthest).double().square().sum(dim=1)
        if removal[source] < (errors - nearer).clamp(min=0).sum():
            moved[source] = farthest
    return moved


def _balanced(points: Tensor, level: Level, balance: float) -> Level:
    cap = max(1, round(balance * len(points) / len(level.centres)))
    for done in range(_PRICE_ROUNDS):
        served = Served.of(points, level)
        if done < _MOVING_PRICE_ROUNDS:
            centres = _means(points, served, torch.from_numpy(level.centres))
            level = Level(centres.numpy(), level.prices)
        elif int(served.counts.max()) <= cap:
            break
        highest = float(served.errors.mean())
        level = Level(level.centres, raised_prices(points, level, highest, cap))
    return level


def raised_prices(points: Tensor, level: Level, highest: float, cap: int) -> Float32:
    """Raise the prices of codes above the cap, so that their surplus finds another code better.

    No price is above `highest`. A price that would drive all points of a code away stays: these
    points are equal.
    """
    codes, regrets = _choices(points, level)
    order = regrets.argsort(stable=True)
    order = order[codes[order].argsort(stable=True)]  # by code, then by regret
    sorted_regrets = regrets[order]
    counts = torch.bincount(codes, minlength=len(level.centres))
    end = counts.cumsum(0)
    prices = level.prices.astype(np.float64)
    for code in (counts > cap).nonzero()[:, 0].tolist():
        mine = sorted_regrets[int(end[code] - counts[code]) : int(end[code])]
        surplus = len(mine) - cap
        if mine[surplus - 1] < mine[-1]:
            prices[code] += float((mine[surplus - 1] + mine[surplus]) / 2)
    return prices.clip(max=highest).astype(np.float32)


def _choices(points: Tensor, level: Level) -> tuple[Tensor, Tensor]:
    """Return each point's best code, and how much more its second best one costs, in float64."""
    centres, prices = (torch.from_numpy(each).double() for each in (level.centres, level.prices))
    costs = centres.square().sum(dim=1) + prices
    codes, regrets = [], []
    for block in torch.split(points, max(1, _BLOCK // len(centres))):
        best = torch.addmm(costs, block.double(), centres.T, alpha=-2).topk(2, largest=False)
        codes.append(best.indices[:, 0])
        regrets.append(best.values[:, 1] - best.values[:, 0])
    return torch.cat(codes), torch.cat(regrets)
