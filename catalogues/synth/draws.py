"""Draws shared by the rule generators: which campaigns carry a rule, and one of several options."""

from collections.abc import Sequence

import numpy as np

from grace.catalogues.synth.arrays import BoolArray, FloatArray, Int64Array

_BISECTIONS = 40


def draw_share(rng: np.random.Generator, share: float, odds: FloatArray) -> BoolArray:
    """True for `share` of the rows on average, in proportion to `odds`, never where odds are 0."""
    if share <= 0 or not odds.any():
        return np.zeros(len(odds), np.bool_)
    low, high = 0.0, 1.0 / float(odds[odds > 0].min())
    for _ in range(_BISECTIONS):
        scale = (low + high) / 2
        if np.minimum(odds * scale, 1.0).mean() < share:
            low = scale
        else:
            high = scale
    return rng.random(len(odds)) < odds * high


def draw_option(
    rng: np.random.Generator, weights: Sequence[Sequence[float]], kind: Int64Array
) -> Int64Array:
    """An option per row, by the weights of the row's kind; weights are [kinds, options]."""
    table = np.array(weights, np.float64)
    cumulative = np.cumsum(table / table.sum(axis=1, keepdims=True), axis=1)
    drawn = rng.random(len(kind))[:, np.newaxis]
    passed: Int64Array = (drawn >= cumulative[kind]).sum(axis=1)
    return np.minimum(passed, np.int64(table.shape[1] - 1))
