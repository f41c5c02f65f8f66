"""How times are taken: sustained, with the GPU's own clock, and with its clock rate and power.

A call is run again and again for some seconds, without gaps: at the power limit a GPU slows down,
and a few milliseconds would not show it. Each run lies between two events on the stream, which the
GPU stamps itself. A run may hold many calls on inputs of their own, so that none is found in the
cache and launching costs nothing; its time is then told as the mean of its calls, and what 99 % of
such means stay below is no P99 of calls and is not called one.

What `before` does, such as copying the next batch to where a graph reads it, is not timed.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch

from grace.bench.gpu.machine import Draw, PowerMeter
from grace.bench.gpu.replay import Replay

__all__ = ["Timing", "by_turns", "captured", "sustained", "timed_on_host"]

_WARM_UP_SHARE = 0.1  # of the seconds, before the first that counts
_AHEAD = 8  # runs that wait on the stream: it is never empty, and a long one ends soon
_LEAST_RUNS = 3
_TURNS = 4

Run: TypeAlias = Callable[[], object]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of one call; quantiles are of runs, each the mean of its `calls`."""

    p50_ms: float
    p99_ms: float
    mean_ms: float
    runs: int
    calls: int
    seconds: float
    draw: Draw

    @staticmethod
    def of(milliseconds: Sequence[float], calls: int, seconds: float, draw: Draw) -> "Timing":
        each = np.asarray(milliseconds) / calls
        p50, p99 = (float(np.quantile(each, q)) for q in (0.5, 0.99))
        return Timing(p50, p99, float(each.mean()), len(each), calls, seconds, draw)

    @property
    def joules(self) -> float | None:
        """Of one call, at the median power; None where nobody told of power."""
        watts = self.draw.power_w
        return None if watts is None else watts * self.mean_ms / 1e3

    def quantiles(self) -> dict[str, float]:
        """p50_ms and p99_ms, or p99_of_means_ms where a run is more than one call."""
        last = "p99_ms" if self.calls == 1 else "p99_of_means_ms"
        times = {"p50_ms": self.p50_ms, last: self.p99_ms}
        return {name: float(f"{value:.4g}") for name, value in times.items()}

    def row(self) -> dict[str, Any]:
        return {
            **self.quantiles(),
            "mean_ms": float(f"{self.mean_ms:.4g}"),
            "runs": self.runs,
            "calls": self.calls,
            **asdict(self.draw),
        }


def captured(calls: Sequence[Callable[[], T]], device: torch.device) -> Callable[[], list[T]]:
    """All calls, one after the other, as one CUDA graph; on a CPU as they are.

    What a run returns is what the calls left.
    """

    def run_all() -> list[T]:
        return [call() for call in calls]

    return Replay(run_all, device)


def sustained(
    run: Run,
    device: torch.device,
    seconds: float,
    calls: int = 1,
    before: Run | None = None,
    warm_up_seconds: float = 0.0,
) -> Timing:
    """Times of `run`, which holds so many calls. `warm_up_seconds` at least do not count."""
    if device.type != "cuda":
        return timed_on_host(run, device, seconds, calls, before)
    _run_for(run, device, max(warm_up_seconds, seconds * _WARM_UP_SHARE), before)
    with PowerMeter(device) as meter:
        begin = perf_counter()
        times = _run_for(run, device, seconds, before)
        took = perf_counter() - begin
    return Timing.of(times, calls, took, meter.draw)


def by_turns(
    runs: Sequence[Run],
    device: torch.device,
    seconds: float,
    calls: int = 1,
    befores: Sequence[Run | None] | None = None,
) -> list[Timing]:
    """Times of each, `seconds` in several turns: what drifts meanwhile drifts for all of them."""
    each_before = befores or [None] * len(runs)
    measure = _run_for if device.type == "cuda" else _run_on_host
    times: list[list[float]] = [[] for _ in runs]
    draws: list[list[Draw]] = [[] for _ in runs]
    for run, before in zip(runs, each_before, strict=True):
        measure(run, device, seconds * _WARM_UP_SHARE, before)
    for _ in range(_TURNS):
        for place, (run, before) in enumerate(zip(runs, each_before, strict=True)):
            with PowerMeter(device) as meter:
                times[place] += measure(run, device, seconds / _TURNS, before)
            draws[place].append(meter.draw)
    return [
        Timing.of(each, calls, seconds, Draw.median_of(drawn))
        for each, drawn in zip(times, draws, strict=True)
    ]


def _run_for(
    run: Run, device: torch.device, seconds: float, before: Run | None = None
) -> list[float]:
    """Milliseconds between the events around each run."""
    waiting: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
    times: list[float] = []

    def finish() -> None:
        begin, end = waiting.popleft()
        end.synchronize()
        times.append(begin.elapsed_time(end))

    start = perf_counter()
    with torch.cuda.device(device):
        while perf_counter() - start < seconds or len(times) + len(waiting) < _LEAST_RUNS:
            begin, end = _event(), _event()
            if before is not None:
                before()
            begin.record()
            run()
            end.record()
            waiting.append((begin, end))
            if len(waiting) >= _AHEAD:
                finish()
        while waiting:
            finish()
    return times


def timed_on_host(
    run: Run, device: torch.device, seconds: float, calls: int = 1, before: Run | None = None
) -> Timing:
    """By the host's clock, each run waited for: of what does not run on the GPU alone."""
    if before is not None:
        before()
    run()
    with PowerMeter(device) as meter:
        begin = perf_counter()
        times = _run_on_host(run, device, seconds, before)
        took = perf_counter() - begin
    return Timing.of(times, calls, took, meter.draw)


def _run_on_host(
    run: Run, device: torch.device, seconds: float, before: Run | None = None
) -> list[float]:
    times: list[float] = []
    start = perf_counter()
    while perf_counter() - start < seconds or len(times) < _LEAST_RUNS:
        if before is not None:
            before()
            _wait_for(device)
        begin = perf_counter()
        run()
        _wait_for(device)
        times.append((perf_counter() - begin) * 1e3)
    return times


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
