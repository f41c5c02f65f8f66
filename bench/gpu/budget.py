"""Where a generation's time goes, kernel by kernel, against the floor that its work sets.

The decode loop of D3 runs under torch's profiler, launched operation by operation, so that every
matrix product is told with its shape. A floor is the larger of two times: bytes that must move, at
the rate of a copy, and arithmetic, at the rate of a large matrix product; both rates are measured
in the same run. `share` is of all kernels together.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from bench.gpu.catalogue import Catalogue
from bench.gpu.clock import sustained
from bench.gpu.floors import CountingSlot, Counts, Least, counting_ops
from bench.gpu.options import BenchOptions
from bench.gpu.results import Row
from bench.gpu.subject import (
    Engine,
    Subject,
    contexts_of,
    engine_of,
    random_decoder_alone,
    subject_of,
)
from index.matchers import MatcherMode
from kernels import AdmissionSlot, DecodeIndex, admission_slot, load_ops
from model.fast_search import fast_search
from model.fast_weights import PRECISIONS, Precision
from model.inputs import UserContext

__all__ = ["kind_of_kernel", "measure_budget"]

_RUNS = 10
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::addmm_")

_KINDS = (
    ("self_attention", r"^_attend"),
    ("cross_attention", r"^_(whole|long)_context"),
    ("row_factors", r"^_factors"),
    ("activate", r"^_activate"),
    ("rearrange", r"^_gather$"),
    ("admit_children", r"admit_with|\bpoint\("),
    ("select_beams", r"score_rows|select_beams"),
    ("products", r"nvjet|gemm|cutlass|cublas|xmma|splitK"),
)
"""By the kernels' names; what fits none copies, gathers or fills."""


@dataclass(frozen=True, slots=True)
class _Rates:
    """Of this GPU now: bytes and operations per second."""

    copy: float
    product: float

    def floor_ms(self, least: Least) -> float:
        return max(least.bytes / self.copy, least.flop / self.product) * 1e3


def measure_budget(options: BenchOptions) -> Iterator[Row]:
    subject = subject_of(options)
    catalogue = Catalogue.of(options, subject.default_sids)
    snapshot = catalogue.snapshot(MatcherMode.UNION)
    index = DecodeIndex.of(snapshot, options.device)
    (users,) = catalogue.users(snapshot, options.device, 1, subject.batch)
    for precision in options.precisions:
        model = random_decoder_alone(subject.spec, options.device)
        engine = engine_of(subject, model, load_ops(options.device), PRECISIONS[precision])
        slot = admission_slot(engine.ops)
        counts = Counts()
        counting = CountingSlot(slot, counts)
        counting.point_at(users, index)
        context = contexts_of(subject, options.device, PRECISIONS[precision], 1)[0]
        fast_search(
            engine.weights, engine.memo, context, counting, subject.dynamic,
            counting_ops(engine.ops, counts),
        )  # fmt: skip
        yield from _rows(options, subject, engine, context, slot, counts, precision)


def _rows(
    options: BenchOptions,
    subject: Subject,
    engine: Engine,
    context: UserContext,
    slot: AdmissionSlot,
    counts: Counts,
    precision: Precision,
) -> Iterator[Row]:
    rates = _rates(options, precision)
    yield {
        "measure": "rates",
        "precision": precision,
        "copy_gb_per_s": round(rates.copy / 1e9, 1),
        "product_tflops": round(rates.product / 1e12, 1),
    }

    def search() -> None:
        fast_search(engine.weights, engine.memo, context, slot, subject.dynamic, engine.ops)

    measured, products = _profiled(search, options.device, engine.weights.dtype)
    total = sum(measured.values()) or 1.0
    for name, (work, milliseconds) in products.items():
        yield _row("product", name, precision, work, milliseconds, total, rates)
    for name, least in counts.of.items():
        yield _row("operation", name, precision, least, measured.pop(name, 0.0), total, rates)
    measured.pop("products", None)
    for name, milliseconds in sorted(measured.items(), key=lambda each: -each[1]):
        yield _row("other", name, precision, Least(), milliseconds, total, rates)


def _row(
    measure: str,
    name: str,
    precision: str,
    least: Least,
    milliseconds: float,
    total: float,
    rates: _Rates,
) -> Row:
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


def _profiled(
    search: Callable[[], None], device: torch.device, dtype: torch.dtype
) -> tuple[dict[str, float], dict[str, tuple[Least, float]]]:
    """Milliseconds of one run by kind of kernel; and by the products' shapes, with their least."""
    runs = _RUNS if device.type == "cuda" else 1
    search()
    by_kind: dict[str, float] = defaultdict(float)
    for entry in _recorded(search, device, runs, ProfilerActivity.CUDA).key_averages():
        if entry.self_device_time_total:
            by_kind[kind_of_kernel(entry.key)] += entry.self_device_time_total / 1e3 / runs
    # Shapes are the host's to tell, and telling them slows it down: a run of its own.
    told = _recorded(search, device, runs, ProfilerActivity.CPU, ProfilerActivity.CUDA)
    products: dict[str, tuple[Least, float]] = {}
    for entry in told.key_averages(group_by_input_shape=True):
        shapes = [shape for shape in entry.input_shapes or () if len(shape) == 2]
        if entry.key in _PRODUCTS:
            name, least = _product(entry.key, shapes, entry.count // runs, dtype)
            known, before = products.get(name, (Least(), 0.0))
            both = Least(
                known.calls + least.calls, known.bytes + least.bytes, known.flop + least.flop
            )
            products[name] = both, before + entry.self_device_time_total / 1e3 / runs
    return by_kind, products


def _recorded(
    search: Callable[[], None], device: torch.device, runs: int, *activities: ProfilerActivity
) -> profile:
    """On a CPU there is nothing but its own activity."""
    on_gpu = device.type == "cuda"
    wanted = activities if on_gpu else (ProfilerActivity.CPU,)
    recorded = profile(activities=wanted, record_shapes=ProfilerActivity.CPU in wanted)
    with recorded:
        for _ in range(runs):
            search()
        if on_gpu:
            torch.cuda.synchronize(device)
    return recorded


def _product(
    key: str, shapes: list[list[int]], count: int, dtype: torch.dtype
) -> tuple[str, Least]:
    """[m, k] by [k, n]; the accumulator comes first where there is one."""
    adds = "addmm" in key
    left, right = shapes[1:3] if adds else shapes[:2]
    rows, inner = left
    columns = right[1]
    moved = rows * inner + inner * columns + rows * columns * (2 if adds else 1)
    least = Least(count, moved * dtype.itemsize * count, 2 * rows * inner * columns * count)
    return f"{rows} x {inner} x {columns}{' added' if adds else ''}", least


def kind_of_kernel(name: str) -> str:
    """Of the operation that launches it, or the name's beginning."""
    for kind, pattern in _KINDS:
        if re.search(pattern, name):
            return kind
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    return re.sub(r"<.*|\(.*", "", plain)[:60]


def _rates(options: BenchOptions, precision: Precision) -> _Rates:
    on_gpu = options.device.type == "cuda"
    side = 8192 if on_gpu else 64
    dtype = PRECISIONS[precision]
    a, b = (torch.randn((side, side), device=options.device).to(dtype) for _ in range(2))
    source = torch.zeros(1 << 30 if on_gpu else 1 << 20, dtype=torch.uint8, device=options.device)
    target = torch.empty_like(source)
    seconds = min(options.seconds, 1.0)
    product = sustained(lambda: torch.mm(a, b), options.device, seconds)
    copy = sustained(lambda: target.copy_(source), options.device, seconds)
    return _Rates(2 * len(source) / copy.p50_ms * 1e3, 2 * side**3 / product.p50_ms * 1e3)
