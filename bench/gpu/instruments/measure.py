"""Take times: sustained, by the GPU's own clock, with its clock rate and power.

A call runs again and again for seconds, without gaps: at its power limit a GPU slows down, and a
few milliseconds would not show it. Each run lies between two events, which the GPU stamps itself.
A run may hold many calls, each on its own inputs, so that no input is still in the cache and
launching costs nothing. Its time is then the mean of its calls, and the 99th percentile of such
means is not called a P99. The work of `before`, such as copying the next batch to where a graph
reads it, is not timed. Only what agrees with its definition (`require_*`) is timed.
"""

import gc
import platform
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from grace.bench.background import in_background
from grace.bench.result_file import machine
from grace.configs.errors import DeviceError
from grace.kernels.products.fp8_products import E4M3
from grace.model.engine.cuda_graphs import GraphedCall, GraphMemory

_SAMPLE_SECONDS = 0.05
_WARM_UP_SHARE = 0.1  # of the seconds, before the first run that counts
_AHEAD = 8  # runs that wait on the stream: it is never empty, and a long one ends soon
_LEAST_RUNS = 3
_TURNS = 4

_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 3e-2, E4M3: 0.125}
"""Relative to the largest value: products of half precision round at the size of their terms, and
neighbours in e4m3 differ by up to an eighth."""

Run: TypeAlias = Callable[[], object]
T = TypeVar("T")


class PowerDraw(NamedTuple):
    """Medians over a measurement; None where there is no GPU, or the measurement was too short."""

    sm_clock_mhz: int | None = None
    power_w: float | None = None

    @staticmethod
    def of(samples: Sequence[tuple[int, float]]) -> "PowerDraw":
        """Return the median clock and the median power of (MHz, W) samples."""
        if not samples:
            return PowerDraw()
        clocks, watts = zip(*samples, strict=True)
        return PowerDraw(round(median(clocks)), round(median(watts), 1))


class Timing(NamedTuple):
    """Milliseconds of one call; quantiles are over runs, each the mean of its `calls`."""

    p50_ms: float
    p99_ms: float
    mean_ms: float
    runs: int
    calls: int
    draw: PowerDraw

    @staticmethod
    def of(milliseconds: Sequence[float], calls: int, draw: PowerDraw) -> "Timing":
        each = np.asarray(milliseconds) / calls
        p50, p99 = (float(np.quantile(each, q)) for q in (0.5, 0.99))
        return Timing(p50, p99, float(each.mean()), len(each), calls, draw)

    @property
    def joules(self) -> float | None:
        """The energy of one call at the median power; None where the power is unknown."""
        watts = self.draw.power_w
        return None if watts is None else watts * self.mean_ms / 1e3

    def quantiles(self) -> dict[str, float]:
        """Return p50_ms with p99_ms, or with p99_of_means_ms if each run makes several calls."""
        last = "p99_ms" if self.calls == 1 else "p99_of_means_ms"
        return {"p50_ms": _rounded(self.p50_ms), last: _rounded(self.p99_ms)}

    def row(self) -> dict[str, Any]:
        counts = {"mean_ms": _rounded(self.mean_ms), "runs": self.runs, "calls": self.calls}
        return {**self.quantiles(), **counts, **self.draw._asdict()}


def _rounded(milliseconds: float) -> float:
    return float(f"{milliseconds:.4g}")


class RecordedGraph(Generic[T]):
    """A function as one CUDA graph. Calling it replays the graph and returns the same memory again.

    On a CPU it is the function itself. It frees unused memory before and after recording, because
    a baseline of the ladder holds tens of gigabytes. PyTorch's cached memory belongs to one stream
    or one graph: kept after a first run, after the warm-up runs and in the graph, the same
    gigabytes would be taken three times.
    """

    def __init__(self, function: Callable[[], T], device: torch.device) -> None:
        self._function = function
        self._graph: GraphedCall[T] | None = None
        if device.type != "cuda":
            return

        def run() -> T:
            result = function()
            if not torch.cuda.is_current_stream_capturing():
                torch.cuda.empty_cache()
            return result

        free_memory(device)
        self._graph = GraphedCall(run, GraphMemory(device))

    def __call__(self) -> T:
        if self._graph is None:
            return self._function()
        self._graph.replay()
        return self._graph.result


def free_memory(device: torch.device) -> None:
    """Free the device's unreferenced memory, on every stream and of every graph."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


def sustained(
    run: Run,
    device: torch.device,
    seconds: float,
    calls: int = 1,
    before: Run | None = None,
    warm_up_seconds: float = 0.0,
) -> Timing:
    """Time `run`, which holds `calls` calls; runs of the first `warm_up_seconds` do not count."""
    (timing,) = by_turns(
        [(run, before)], device, seconds, calls, turns=1, warm_up_seconds=warm_up_seconds
    )
    return timing


def by_turns(
    runs: Sequence[tuple[Run, Run | None]],
    device: torch.device,
    seconds: float,
    calls: int = 1,
    *,
    turns: int = _TURNS,
    warm_up_seconds: float = 0.0,
) -> list[Timing]:
    """Time runs with their `before` for `seconds` each: drift of the machine affects all alike."""
    measure = _run_on_gpu if device.type == "cuda" else _run_on_host
    times: list[list[float]] = [[] for _ in runs]
    samples: list[list[tuple[int, float]]] = [[] for _ in runs]
    for run, before in runs:
        measure(run, device, max(warm_up_seconds, seconds * _WARM_UP_SHARE), before, least=1)
    for _ in range(turns):
        for place, (run, before) in enumerate(runs):
            with _power_samples(device) as drawn:
                times[place] += measure(run, device, seconds / turns, before)
            samples[place] += drawn
    return [
        Timing.of(each, calls, PowerDraw.of(own)) for each, own in zip(times, samples, strict=True)
    ]


def timed_on_host(run: Run, device: torch.device, seconds: float) -> Timing:
    """Time `run` by the host's clock, waiting for each: for work that also needs the host."""
    run()
    with _power_samples(device) as samples:
        times = _run_on_host(run, device, seconds, None)
    return Timing.of(times, 1, PowerDraw.of(samples))


def _run_on_gpu(
    run: Run, device: torch.device, seconds: float, before: Run | None, least: int = _LEAST_RUNS
) -> list[float]:
    """Return the milliseconds between the events around each run; there are at least `least`."""
    waiting: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
    times: list[float] = []

    def finish() -> None:
        begin, end = waiting.popleft()
        end.synchronize()
        times.append(begin.elapsed_time(end))

    start = perf_counter()
    with torch.cuda.device(device):
        while perf_counter() - start < seconds or len(times) + len(waiting) < least:
            begin, end = (
                torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                for _ in range(2)
            )
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


def _run_on_host(
    run: Run, device: torch.device, seconds: float, before: Run | None, least: int = _LEAST_RUNS
) -> list[float]:
    times: list[float] = []
    start = perf_counter()
    while perf_counter() - start < seconds or len(times) < least:
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


def copy_rate(device: torch.device, seconds: float) -> float:
    """Return the rate of a copy in bytes per second; bytes read and bytes written both count."""
    size = 1 << 30 if device.type == "cuda" else 1 << 20
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    source.random_(generator=torch.Generator(device).manual_seed(7))
    target = torch.empty_like(source)
    timing = sustained(lambda: target.copy_(source), device, min(seconds, 1.0))
    require_equal("the copy", target, source)
    return 2 * size / timing.p50_ms * 1e3


@contextmanager
def _power_samples(device: torch.device) -> Iterator[list[tuple[int, float]]]:
    """MHz and W, which a thread samples while the block runs; none on a CPU."""
    samples: list[tuple[int, float]] = []
    if device.type != "cuda":
        yield samples
        return
    nvml = _nvml()
    uuid = torch.cuda.get_device_properties(device).uuid
    handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")

    def sample() -> None:
        clock = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
        samples.append((clock, nvml.nvmlDeviceGetPowerUsage(handle) / 1e3))

    try:
        with in_background(sample, _SAMPLE_SECONDS):
            yield samples
    finally:
        nvml.nvmlShutdown()


def _nvml() -> Any:
    """Open the GPU's library, whose package a machine without a GPU does not need."""
    import pynvml  # noqa: PLC0415

    pynvml.nvmlInit()
    return pynvml


def device_text(device: torch.device) -> str:
    """Such as "2 NVIDIA H200, driver 580.82, CUDA 13.0, torch 2.11.0, ...; 16 cores of ..."."""
    software = f"torch {torch.__version__}, Python {platform.python_version()}"
    if device.type != "cuda":
        return f"{machine()}, {software}"
    nvml = _nvml()
    try:
        driver = nvml.nvmlSystemGetDriverVersion()
    finally:
        nvml.nvmlShutdown()
    count = torch.cuda.device_count()
    name = f"{count} " * (count > 1) + torch.cuda.get_device_name(device)
    return f"{name}, driver {driver}, CUDA {torch.version.cuda}, {software}; {machine()}"


def require_close(
    what: str, got: Tensor, expected: Tensor, rounded: torch.dtype | None = None
) -> None:
    """Raise if numbers differ by more than their type, or the type `rounded` on the way, allows."""
    scale = max(1.0, float(expected.float().abs().max()))
    worst = float((got.float() - expected.float()).abs().max())
    allowed = _TOLERANCE[rounded or got.dtype] * scale
    if not worst <= allowed:  # NaN, too, is no agreement
        fault = f"differs from its definition by {worst:.3g}, {allowed:.3g} is allowed"
        raise _disagreement(what, fault, "kernels")


def require_equal(what: str, got: Tensor, expected: Tensor) -> None:
    if not torch.equal(got, expected):
        raise _disagreement(what, "is not equal to its definition", "kernels")


def require_overlap(what: str, share: float, least: float) -> None:
    if not share >= least:
        fault = f"{share:.1%} of the SIDs of its definition were found, expected {least:.0%}"
        raise _disagreement(what, fault, "model")


def _disagreement(what: str, fault: str, package: str) -> DeviceError:
    return DeviceError(
        f"{what}: {fault}: it is wrong, and was not measured; run the gpu tests of {package}"
    )
