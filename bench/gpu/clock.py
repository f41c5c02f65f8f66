"""How times are taken: sustained, with the GPU's own clock, and with its clock rate and power.

A call is run again and again for some seconds, without gaps: at the power limit a GPU slows down,
and a few milliseconds would not show it. Each run lies between two events on the stream, which the
GPU stamps itself. A run may hold many calls on inputs of their own, so that none is found in the
cache and launching costs nothing.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch

from bench.gpu.machine import Draw, PowerMeter
from bench.gpu.replay import Replay

__all__ = ["Timing", "by_turns", "captured", "sustained", "timed_on_host"]

_WARM_UP_SHARE = 0.1  # of the seconds, before the first that counts
_AHEAD = 8  # runs that wait on the stream: it is never empty, and a long one ends soon
_LEAST_RUNS = 3
_TURNS = 4


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of one call."""

    p50_ms: float
    p99_ms: float
    mean_ms: float
    runs: int
    seconds: float
    draw: Draw

    @staticmethod
    def of(milliseconds: Sequence[float], calls: int, seconds: float, draw: Draw) -> "Timing":
        each = np.asarray(milliseconds) / calls
        p50, p99 = (float(np.quantile(each, q)) for q in (0.5, 0.99))
        return Timing(p50, p99, float(each.mean()), len(each), seconds, draw)

    def row(self) -> dict[str, Any]:
        times = (("p50_ms", self.p50_ms), ("p99_ms", self.p99_ms), ("mean_ms", self.mean_ms))
        return {
            **{name: float(f"{value:.4g}") for name, value in times},
            "runs": self.runs,
            **asdict(self.draw),
        }


def captured(calls: Sequence[Callable[[], object]], device: torch.device) -> Callable[[], object]:
    """All calls, one after the other, as one CUDA graph; on a CPU as they are."""

    def run_all() -> list[object]:
        return [call() for call in calls]

    return Replay(run_all, device)


def sustained(
    run: Callable[[], object], device: torch.device, seconds: float, calls: int = 1
) -> Timing:
    """Times of `run`, which holds so many calls."""
    if device.type != "cuda":
        return timed_on_host(run, device, seconds, calls)
    _run_for(run, device, seconds * _WARM_UP_SHARE)
    with PowerMeter(device) as meter:
        begin = perf_counter()
        times = _run_for(run, device, seconds)
        took = perf_counter() - begin
    return Timing.of(times, calls, took, meter.draw)


def by_turns(
    runs: Sequence[Callable[[], object]], device: torch.device, seconds: float, calls: int = 1
) -> list[Timing]:
    """Times of each, `seconds` in several turns: what drifts meanwhile drifts for all of them."""
    measure = _run_for if device.type == "cuda" else _run_on_host
    times: list[list[float]] = [[] for _ in runs]
    draws: list[list[Draw]] = [[] for _ in runs]
    for run in runs:
        measure(run, device, seconds * _WARM_UP_SHARE)
    for _ in range(_TURNS):
        for place, run in enumerate(runs):
            with PowerMeter(device) as meter:
                times[place] += measure(run, device, seconds / _TURNS)
            draws[place].append(meter.draw)
    return [
        Timing.of(each, calls, seconds, Draw.median_of(drawn))
        for each, drawn in zip(times, draws, strict=True)
    ]


def _run_for(run: Callable[[], object], device: torch.device, seconds: float) -> list[float]:
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
    run: Callable[[], object], device: torch.device, seconds: float, calls: int = 1
) -> Timing:
    """By the host's clock, each run waited for: of what does not run on the GPU alone."""
    run()
    with PowerMeter(device) as meter:
        begin = perf_counter()
        times = _run_on_host(run, device, seconds)
        took = perf_counter() - begin
    return Timing.of(times, calls, took, meter.draw)


def _run_on_host(run: Callable[[], object], device: torch.device, seconds: float) -> list[float]:
    times: list[float] = []
    start = now = perf_counter()
    while now - start < seconds or len(times) < _LEAST_RUNS:
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        before, now = now, perf_counter()
        times.append((now - before) * 1e3)
    return times


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
