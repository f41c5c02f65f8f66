"""Where a generation's time goes, kernel by kernel, against the floor that its work sets.

The decode loop of D3 runs under torch's profiler, launched operation by operation, so that every
matrix product is told with its shape; four batches of users and contexts take turns. A floor is the
larger of two times: bytes that must move, at the rate of a copy, and arithmetic, at the rate of a
large matrix product; both rates are measured in the same run. `share` is of all kernels together.

`whole` is the loop as one graph, with its power: a GPU at its limit is as fast as its joules allow.
What the matrix products take of them is their arithmetic at the large product's joules.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch.profiler import ProfilerActivity, profile

from grace.bench.gpu.agreement import require_close, require_equal
from grace.bench.gpu.catalogue import Catalogue
from grace.bench.gpu.clock import Timing, sustained
from grace.bench.gpu.decoder_call import DecoderCall
from grace.bench.gpu.floors import CountingSlot, Counts, Least, counting_ops
from grace.bench.gpu.found import Found, check_found, plain_found, traced_search
from grace.bench.gpu.options import BenchOptions
from grace.bench.gpu.results import Row
from grace.bench.gpu.rotation import BATCHES, DecoderBatch
from grace.bench.gpu.subject import (
    Engine,
    Subject,
    contexts_of,
    engine_of,
    random_decoder_alone,
    subject_of,
)
from grace.bench.gpu.told_products import ADD, TOLD, ToldProducts
from grace.index.matchers.modes import MatcherMode
from grace.kernels import AdmissionSlot, DecodeIndex, admission_slot, load_ops
from grace.model.engine.decode_weights import PRECISIONS, Precision

__all__ = ["kind_of_kernel", "measure_budget"]

_ROUNDS = 3  # over the batches
_UNTOLD_SHARE = 0.02
_POWER_SECONDS = 1.5  # the driver tells the mean power of a second
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
    product_timing: Timing

    def floor_ms(self, least: Least) -> float:
        return max(least.bytes / self.copy, least.flop / self.product) * 1e3


@dataclass(frozen=True)
class _Setting:
    """`slots` point at the batches' users, one each."""

    options: BenchOptions
    subject: Subject
    engine: Engine
    index: DecodeIndex
    batches: Sequence[DecoderBatch]
    slots: Sequence[AdmissionSlot]
    precision: Precision

    def search(self, number: int, engine: Engine | None = None) -> Found:
        """Of one batch, launched operation by operation."""
        traced = traced_search(
            engine or self.engine,
            self.batches[number].context,
            self.slots[number],
            self.subject.dynamic,
        )
        return traced.found


@torch.inference_mode()
def measure_budget(options: BenchOptions) -> Iterator[Row]:
    subject = subject_of(options)
    catalogue = Catalogue.of(options, subject.default_sids)
    snapshot = catalogue.snapshot(MatcherMode.UNION)
    index = DecodeIndex.of(snapshot, options.device)
    users = catalogue.users(snapshot, options.device, BATCHES, subject.batch)
    for precision in options.precisions:
        model = random_decoder_alone(subject.spec, options.device)
        engine = engine_of(subject, model, load_ops(options.device), PRECISIONS[precision])
        contexts = contexts_of(subject, options.device, PRECISIONS[precision], BATCHES)
        batches = [DecoderBatch(*each) for each in zip(contexts, users, strict=True)]
        slots = [admission_slot(engine.ops) for _ in batches]
        for slot, batch in zip(slots, batches, strict=True):
            slot.point_at(batch.users, index)
        setting = _Setting(options, subject, engine, index, batches, slots, precision)
        yield from _rows(setting)


def _rows(setting: _Setting) -> Iterator[Row]:
    precision = setting.precision
    expected = [
        plain_found(
            setting.engine.plain.decoder, batch.context, batch.users, setting.index,
            setting.subject.dynamic,
        )
        for batch in setting.batches
    ]  # fmt: skip
    rates = _rates(setting.options, precision)
    yield {
        "measure": "rates",
        "precision": precision,
        "copy_gb_per_s": round(rates.copy / 1e9, 1),
        "product_tflops": round(rates.product / 1e12, 1),
    }
    measured, products = _profiled(setting, expected)
    flop = sum(work.flop for work, _ in products.values())
    yield _whole(setting, expected, rates, flop)
    total = sum(measured.values()) or 1.0
    for name, (work, milliseconds) in products.items():
        yield _row("product", name, precision, work, milliseconds, total, rates)
    for name, least in _least(setting).items():
        yield _row("operation", name, precision, least, measured.pop(name, 0.0), total, rates)
    untold = measured.pop("products", 0.0) - sum(spent for _, spent in products.values())
    if untold > _UNTOLD_SHARE * total:
        measured["products of no told shape"] = untold
    for name, milliseconds in sorted(measured.items(), key=lambda each: -each[1]):
        yield _row("other", name, precision, Least(), milliseconds, total, rates)


def _whole(setting: _Setting, expected: Sequence[Found], rates: _Rates, product_flop: int) -> Row:
    """One generation as a graph; joules of a batch, and what its products take of them."""
    own = admission_slot(setting.engine.ops)
    decoder = DecoderCall(
        setting.engine, setting.batches, own, setting.index, setting.subject.dynamic
    )
    decoder.check("the decoder", expected, setting.precision)
    device = setting.options.device
    timing = sustained(
        decoder,
        device,
        setting.options.seconds,
        before=decoder.rotation,
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


def _least(setting: _Setting) -> dict[str, Least]:
    """Of a generation, the mean of all batches."""
    counts, engine = Counts(), setting.engine
    counting_engine = replace(engine, ops=counting_ops(engine.ops, counts))
    for slot, batch in zip(setting.slots, setting.batches, strict=True):
        counting = CountingSlot(slot, counts)
        counting.point_at(batch.users, setting.index)
        traced_search(counting_engine, batch.context, counting, setting.subject.dynamic)
    size = len(setting.batches)
    return {
        name: Least(each.calls // size, each.bytes // size, each.flop // size)
        for name, each in counts.of.items()
    }


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
    setting: _Setting, expected: Sequence[Found]
) -> tuple[dict[str, float], dict[str, tuple[Least, float]]]:
    """Milliseconds of one run by kind of kernel; and by the products' shapes, with their least."""
    device, dtype = setting.options.device, setting.engine.weights.dtype
    rounds = _ROUNDS if device.type == "cuda" else 1
    for number, wanted in enumerate(expected):
        check_found(f"a search, batch {number}", setting.search(number), wanted, setting.precision)
    runs = rounds * len(expected)

    def search(engine: Engine) -> None:
        for number in range(runs):
            setting.search(number % len(expected), engine)

    by_kind: dict[str, float] = defaultdict(float)
    own = setting.engine
    for entry in _recorded(lambda: search(own), device, ProfilerActivity.CUDA).key_averages():
        if entry.self_device_time_total:
            by_kind[kind_of_kernel(entry.key)] += entry.self_device_time_total / 1e3 / runs
    # Shapes are the host's to tell, and telling them slows it down: a run of its own.
    products = ToldProducts(own.weights.products)
    telling = replace(own, weights=replace(own.weights, products=products))
    try:
        told = _recorded(
            lambda: search(telling), device, ProfilerActivity.CPU, ProfilerActivity.CUDA
        )
    finally:
        products.close()
    return by_kind, _products(told, runs, dtype)


def _products(told: profile, runs: int, dtype: torch.dtype) -> dict[str, tuple[Least, float]]:
    products: dict[str, tuple[Least, float]] = {}
    for entry in told.key_averages(group_by_input_shape=True):
        # One of TOLD without kernels of its own has another product inside, which counts.
        if entry.key in _PRODUCTS or (entry.key in TOLD and entry.self_device_time_total):
            shapes = [shape for shape in entry.input_shapes or () if len(shape) == 2]
            name, least = _product(entry.key, shapes, entry.count // runs, dtype)
            known, before = products.get(name, (Least(), 0.0))
            both = Least(
                known.calls + least.calls, known.bytes + least.bytes, known.flop + least.flop
            )
            products[name] = both, before + entry.self_device_time_total / 1e3 / runs
    return products


def _recorded(
    searches: Callable[[], None], device: torch.device, *activities: ProfilerActivity
) -> profile:
    """On a CPU there is nothing but its own activity."""
    on_gpu = device.type == "cuda"
    wanted = activities if on_gpu else (ProfilerActivity.CPU,)
    recorded = profile(activities=wanted, record_shapes=ProfilerActivity.CPU in wanted)
    with recorded:
        searches()
        if on_gpu:
            torch.cuda.synchronize(device)
    return recorded


def _product(
    key: str, shapes: list[list[int]], count: int, dtype: torch.dtype
) -> tuple[str, Least]:
    """[m, k] by [k, n]; the accumulator comes first where there is one. TOLD have [n, k]."""
    adds = "addmm" in key or key == ADD
    left, right = shapes[1:3] if "addmm" in key else shapes[:2]
    rows, inner = left
    columns = right[0] if key in TOLD else right[1]
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
    product = sustained(
        lambda: torch.mm(a, b), options.device, options.seconds, warm_up_seconds=_POWER_SECONDS
    )
    rows = a[:64].float() @ b.float()
    require_close("the large product", torch.mm(a, b)[:64] / side**0.5, rows / side**0.5)
    source.random_(generator=torch.Generator(options.device).manual_seed(7))
    copy = sustained(lambda: target.copy_(source), options.device, min(options.seconds, 1.0))
    require_equal("the copy", target, source)
    return _Rates(2 * len(source) / copy.p50_ms * 1e3, 2 * side**3 / product.p50_ms * 1e3, product)
