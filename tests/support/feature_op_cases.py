"""Inputs on which the bodies of the features stage's operations must agree with the references."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from grace.kernels.features.feature_ops import SingleInputs, SingleTables
from support.op_cases import OpCase, Rng, normal


def _events(batch: int, lengths: tuple[int, ...], ids: int, d: int) -> OpCase:
    def arguments(rng: Rng, dtype: torch.dtype) -> tuple[Any, ...]:
        table = normal(rng, 41, d)
        table[-1] = 0.0
        events = rng.integers(41, size=(batch, sum(lengths), ids), dtype=np.int32)
        events[rng.random(events.shape[:2]) < 0.3] = 40  # no event
        return table.to(dtype), torch.from_numpy(events), lengths

    return OpCase(f"{batch}x{lengths}-ids={ids}-d={d}", arguments)


def _inputs(
    sizes: tuple[int, ...], bags: int, width: int, dense: int = 0, numbers: int = 0, ids: int = 0
) -> OpCase:
    """One request for every `bags` bags of these sizes."""

    def arguments(rng: Rng, dtype: torch.dtype) -> tuple[Any, ...]:
        requests = len(sizes) // bags
        offsets = np.cumsum([0, *sizes], dtype=np.int32)
        rows = rng.integers(41, size=offsets[-1], dtype=np.int32)
        categorical = rng.integers(19, size=(requests, ids), dtype=np.int32)
        shapes = ((dense * width, numbers), (dense * width,), (19 if ids else 0, width))
        tables = SingleTables(*(normal(rng, *each).to(dtype) for each in (*shapes, (41, width))))
        found = (categorical, offsets, rows)
        return tables, SingleInputs(normal(rng, requests, numbers), *map(torch.from_numpy, found))

    return OpCase(f"{sizes}-bags={bags}-width={width}-dense={dense}-ids={ids}", arguments)


CASES: Mapping[str, tuple[OpCase, ...]] = {
    "sum_events": (
        _events(3, (7, 5, 3), ids=6, d=24),
        _events(2, (9,), ids=1, d=2111),
        _events(5, (1, 17), ids=8, d=512),
    ),
    "join_inputs": (
        _inputs((0, 3, 67, 0, 32, 8), bags=2, width=24, dense=3, numbers=7, ids=5),
        _inputs((1, 33), bags=1, width=131, ids=1),
        _inputs((0,), bags=1, width=7),
        _inputs((5, 9), bags=2, width=129, dense=1, numbers=19),
    ),
}


def run_once(table: Any, name: str) -> Callable[..., Any]:
    """Return an operation of features that is prepared and run."""
    return lambda *arguments: getattr(table, name)(*arguments)()
