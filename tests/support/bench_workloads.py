"""Tiny workloads of `grace bench` for a CPU, and graphs that do not read their inputs again."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import torch

from grace.bench.gpu.instruments.measure import RecordedGraph
from grace.bench.gpu.subjects.workload import Workload, workload_of
from grace.bench.options import TABLES, BenchOptions
from grace.model.engine.precision import Precision

CPU = torch.device("cpu")


def tiny(
    table: str,
    *only: str,
    sids: tuple[int, ...] = (1_111,),
    seconds: float = 1e-6,
    cache: Path | None = None,
    precisions: tuple[Precision, ...] = ("fp32",),
) -> Workload:
    sids = sids if TABLES[table].sids else ()
    precisions = precisions if TABLES[table].precisions else ()
    options = BenchOptions(
        table, "cpu", tiny=True, seconds=seconds, only=only, precisions=precisions, sids=sids,
        cache=cache, commit="abc",
    )  # fmt: skip
    return workload_of(options)


def stale_graphs(first: int = 1) -> type[RecordedGraph[Any]]:
    """Return graphs of which the `first`-th and later ones return their first result again.

    A list of results is the first one, repeated.
    """
    numbers = count(1)

    class StaleGraph(RecordedGraph[Any]):
        def __init__(self, function: Callable[[], Any], device: torch.device) -> None:
            super().__init__(function, device)
            self._stale = next(numbers) >= first
            self._first: Any = None

        def __call__(self) -> Any:
            if not self._stale:
                return super().__call__()
            if self._first is None:
                self._first = super().__call__()
            return (
                self._first[:1] * len(self._first) if isinstance(self._first, list) else self._first
            )

    return StaleGraph
