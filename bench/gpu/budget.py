"""`grace bench budget`: a generation's time, kernel by kernel, against the floor of its work.

The decode loop of D3 runs under torch's profiler, launched operation by operation, so that every
matrix product is reported with its shape; four batches of users and contexts take turns. A floor is
the larger of two times: bytes that must move, at a copy's rate, and arithmetic, at a large matrix
product's; both rates are measured in the same run. `share` is of all kernels together.

`whole` is the loop as one graph, with its power: a GPU at its power limit is as fast as its joules
allow. The products' part of them is their arithmetic at the large product's joules per operation.
"""

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from grace.bench.gpu.instruments import floors
from grace.bench.gpu.instruments.measure import Timing, copy_rate, require_close, sustained
from grace.bench.gpu.subjects.search import (
    DecoderBatch,
    DecoderGraph,
    SearchResult,
    check_result,
    engine_search,
    plain_result,
    traced_search,
    traced_steps,
)
from grace.bench.gpu.subjects.workload import BATCHES, Engine, Workload
from grace.bench.result_file import Row
from grace.configs.eligibility import MatcherMode
from grace.kernels import AdmissionSlot, DecodeIndex, admission_slot
from grace.kernels.products.fp8_products import E4M3, RoundedWeight, to_e4m3
from grace.model.engine.precision import PRECISIONS, Precision

_ROUNDS = 3  # over the batches
_LEAST_UNEXPLAINED = 0.02  # share of products without a shape that is worth a row
_POWER_SECONDS = 1.5  # the driver reports the mean power of a second

_TORCH_PRODUCTS = ("aten::mm", "aten::addmm")
"""The operations of the products that are not the engine's own, such as those of the context."""

_KINDS = (
    ("self_attention", r"^_attend"),
    ("cross_attention", r"^_(whole|long)_context"),
    ("row_factors", r"^_factors"),
    ("activate", r"^_activate"),
    ("rearrange", r"^_gather$"),
    ("admit_children", r"admit_with|\bpoint\("),
    ("select_beams", r"score_rows|select_beams"),
    ("products", r"nvjet|gemm|cutlass|cublas|xmma|splitK|fp8_product"),
)
"""Operations by their kernels' names; kernels that fit none copy, gather or fill."""


class _Rates(NamedTuple):
    """This GPU's bytes and operations per second, measured in this run."""

    copy: float
    product: float
    product_timing: Timing

    def floor_ms(self, least: floors.Least) -> float:
        return max(least.bytes / self.copy, least.flop / self.product) * 1e3


@dataclass(frozen=True)
class _Setting:
    """`slots` point at the batches' users, one each."""

    work: Workload
    engine: Engine
    index: DecodeIndex
    batches: Sequence[DecoderBatch]
    slots: Sequence[AdmissionSlot]
    precision: Precision

    def search(self, number: int, engine: Engine | None = None) -> SearchResult:
        """Generate for one batch, launched operation by operation."""
        context, slot = self.batches[number].context, self.slots[number]
        return traced_search(engine or self.engine, context, slot, self.work.dynamic).result


@torch.inference_mode()
def measure(work: Workload) -> Iterator[Row]:
    catalogue = work.catalogue()
    snapshot = catalogue.snapshot(MatcherMode.UNION)
    index = DecodeIndex.of(snapshot, work.device)
    users = catalogue.users(snapshot, work.device, BATCHES, work.batch)
    for precision in work.options.precisions:
        engine = work.random_engine(precision)
        contexts = work.contexts(PRECISIONS[precision], BATCHES)
        batches = [DecoderBatch(*each) for each in zip(contexts, users, strict=True)]
        slots = [admission_slot(engine.ops) for _ in batches]
        for slot, batch in zip(slots, batches, strict=True):
            slot.point_at(batch.users, index)
        yield from _rows(_Setting(work, engine, index, batches, slots, precision))


def _rows(setting: _Setting) -> Iterator[Row]:
    precision, beams = setting.precision, setting.work.dynamic
    decoder = setting.engine.plain.decoder
    expected = [plain_result(decoder, x, setting.index, beams) for x in setting.batches]
    rates = _rates(setting.work, precision)
    yield {
        "measure": "rates",
        "precision": precision,
        "copy_gb_per_s": round(rates.copy / 1e9, 1),
        "product_tflops": round(rates.product / 1e12, 1),
    }
    measured, products = _profiled(setting, expected)
    yield _whole(setting, expected, rates, sum(work.flop for work, _ in products.values()))
    total = sum(measured.values()) or 1.0

    def row(measure: str, name: str, least: floors.Least, milliseconds: float) -> Row:
        return {
            "measure": measure,
            "kernel": name,
            "precision": precision,
            "calls": least.calls,
            "gflop": round(least.flop / 1e9, 2),
            "mb": round(least.bytes / 1e6, 2),
            "floor_ms": round(rates.floor_ms(least), 4),
            "measured_ms": round(milliseconds, 4),
            "share": round(milliseconds / total, 4),
        }

    for name, (work, milliseconds) in products.items():
        yield row("product", name, work, milliseconds)
    for name, least in _least(setting).items():
        yield row("operation", name, least, measured.pop(name, 0.0))
    unexplained = measured.pop("products", 0.0) - sum(spent for _, spent in products.values())
    if unexplained > _LEAST_UNEXPLAINED * total:
        measured["products of unknown shape"] = unexplained
    for name, milliseconds in sorted(measured.items(), key=lambda each: -each[1]):
        yield row("other", name, floors.Least(), milliseconds)


def _whole(
    setting: _Setting, expected: Sequence[SearchResult], rates: _Rates, product_flop: int
) -> Row:
    """One generation as a graph: the joules of a batch, and its products' part of them."""
    work, dtype = setting.work, setting.engine.weights.dtype
    search = engine_search(setting.engine, work.dynamic, setting.index)
    decoder = DecoderGraph(work, search, setting.batches, dtype)
    decoder.check("the decoder", expected, setting.precision)
    timing = sustained(
        decoder,
        work.device,
        work.options.seconds,
        before=decoder.take_next,
        warm_up_seconds=_POWER_SECONDS,
    )
    joules = timing.joules
    large = rates.product_timing
    per_flop = None if large.joules is None else large.joules / (rates.product * large.p50_ms / 1e3)
    return {
        "measure": "whole",
        "precision": setting.precision,
        **timing.row(),
        "joules": None if joules is None else round(joules, 3),
        "product_joules": None if per_flop is None else round(per_flop * product_flop, 3),
        "large_product_sm_clock_mhz": large.draw.sm_clock_mhz,
        "large_product_power_w": large.draw.power_w,
    }


def _least(setting: _Setting) -> dict[str, floors.Least]:
    """The least work of each operation in a generation, the mean of all batches."""
    counts, engine = floors.Counts(), setting.engine
    counting_engine = replace(engine, ops=floors.counting_ops(engine.ops, counts))
    for slot, batch in zip(setting.slots, setting.batches, strict=True):
        for step in traced_steps(counting_engine, batch.context, slot, setting.work.dynamic):
            floors.count_admission(counts, step.nodes, len(step.admitted.tokens), setting.index)
    return counts.means(len(setting.batches))


def _profiled(
    setting: _Setting, expected: Sequence[SearchResult]
) -> tuple[dict[str, float], dict[str, tuple[floors.Least, float]]]:
    """Milliseconds of one run by kind of kernel; and by the products' shapes, with their least."""
    device, own = setting.work.device, setting.engine
    for number, wanted in enumerate(expected):
        check_result(f"a search, batch {number}", setting.search(number), wanted, setting.precision)
    runs = _ROUNDS * len(expected) if setting.work.on_gpu else 1

    def search(engine: Engine) -> None:
        for number in range(runs):
            setting.search(number % len(expected), engine)

    by_kind: dict[str, float] = defaultdict(float)
    for entry in _recorded(lambda: search(own), device, ProfilerActivity.CUDA).key_averages():
        if entry.self_device_time_total:
            by_kind[kind_of_kernel(entry.key)] += entry.self_device_time_total / 1e3 / runs
    # The host reports ranges and shapes, and that slows it down: so they have a run of their own.
    counts, weights = floors.Counts(), own.weights
    named = replace(
        weights,
        products=floors.NamedProducts(counts),
        rounded=None if weights.rounded is None else floors.named_rounded(weights.rounded, counts),
    )
    profiled = _recorded(
        lambda: search(replace(own, weights=named)),
        device,
        ProfilerActivity.CPU,
        ProfilerActivity.CUDA,
    )
    return by_kind, _products(profiled, runs, counts, weights.dtype)


def _products(
    profiled: profile, runs: int, counts: floors.Counts, dtype: torch.dtype
) -> dict[str, tuple[floors.Least, float]]:
    """Return each shape's least work and milliseconds: of our ranges, and of torch's products."""
    events = list(profiled.events())  # type: ignore[no-untyped-call]
    ours, spent = set(counts.by_name), defaultdict[str, float](float)
    on_gpu = [event for event in events if event.device_type.name == "CUDA"]
    ranges = sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in on_gpu
        if event.name in ours
    )
    for kernel in on_gpu:  # a range has gaps between its kernels, so each is added
        at = bisect_right(ranges, (kernel.time_range.start, math.inf, "")) - 1
        if kernel.name not in ours and at >= 0 and kernel.time_range.end <= ranges[at][1]:
            spent[ranges[at][2]] += kernel.time_range.elapsed_us()
    for event in events:
        parent = event.cpu_parent
        if event.name in _TORCH_PRODUCTS and (parent is None or parent.name not in ours):
            (rows, inner), (_, columns) = [x for x in event.input_shapes if len(x) == 2][-2:]
            name = f"{rows} x {inner} x {columns}"
            moved = (rows * inner + inner * columns + rows * columns) * dtype.itemsize
            counts.add(name, moved, 2 * rows * inner * columns)
            spent[name] += event.self_device_time_total
    means = counts.means(runs)
    return {name: (least, spent[name] / 1e3 / runs) for name, least in means.items()}


def _recorded(
    searches: Callable[[], None], device: torch.device, *activities: ProfilerActivity
) -> profile:
    """Profile the searches; on a CPU there is nothing but its own activity."""
    on_gpu = device.type == "cuda"
    wanted = activities if on_gpu else (ProfilerActivity.CPU,)
    recorded = profile(activities=wanted, record_shapes=ProfilerActivity.CPU in wanted)
    with recorded:
        searches()
        if on_gpu:
            torch.cuda.synchronize(device)
    return recorded


def kind_of_kernel(name: str) -> str:
    """Return the operation that launches the kernel, or the beginning of its name."""
    for kind, pattern in _KINDS:
        if re.search(pattern, name):
            return kind
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    return re.sub(r"<.*|\(.*", "", plain)[:60]


def _rates(work: Workload, precision: Precision) -> _Rates:
    side = 8192 if work.on_gpu else 128
    dtype, device, seconds = PRECISIONS[precision], work.device, work.options.seconds
    x, weight = (torch.randn((side, side), device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(x)
    run: Callable[[], object] = partial(torch.mm, x, weight.t(), out=out)
    if precision == "fp8":
        by = RoundedWeight.of(weight, reads="plain")
        run = partial(work.rounded.product, to_e4m3(x), by, out)
    product = sustained(run, device, seconds, warm_up_seconds=_POWER_SECONDS)
    expected = x[:64].float() @ weight.float().t()
    like = E4M3 if precision == "fp8" else None
    require_close("the large product", out[:64] / side**0.5, expected / side**0.5, like)
    return _Rates(copy_rate(device, seconds), 2 * side**3 / product.p50_ms * 1e3, product)
