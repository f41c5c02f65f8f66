"""The attention kernels alone: the paper's two microbenchmarks, on its shapes.

cross  before    SDPA-flash, one query per problem, keys and values spread to every beam row
       flash     SDPA-flash with beams as queries;   cudnn: cuDNN's SDPA, likewise
       ours      the product's operation
self   fa2       SDPA-flash over a dense cache;   coalesced: the paper's tile, likewise
       write     what both still need: the step's keys and values into the cache
       fused     the tile that reads the QKV product and writes the cache itself
       ours      zero-copy, paged; `tree`: beams share ancestors as after a search, `distinct`: none

Bytes are those that must be read and written once; the share is of a copy measured in the same run.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from bench.gpu.agreement import require_close
from bench.gpu.attention_inputs import CrossInputs, SelfInputs, cross_inputs, self_inputs
from bench.gpu.clock import Timing, captured, sustained
from bench.gpu.counters import kernel_counters
from bench.gpu.options import BenchOptions
from bench.gpu.results import Row
from bench.gpu.subject import Subject, subject_of
from bench.rungs.attention import append, beams_as_queries, beams_as_rows, sdpa_over_cache
from bench.rungs.attention import spread_to_rows as spread
from bench.rungs.coalesced_triton import TILES, Tile, attend_fused, coalesced_over_cache
from kernels import REFERENCE, Ops, load_ops
from model.fast_weights import PRECISIONS, Precision

__all__ = ["best_tile", "cross_variants", "measure_attention", "self_variants"]

PARTS = ("copy", "cross", "self", "counters")
_COPY_BYTES = 1 << 30
_ROTATED = 3
_ROUNDS = 4  # of quick calls in a run, so that it is long enough to be launched ahead
_TILE_SECONDS = 0.05

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class _Work:
    """What one call must do at least."""

    bytes: int
    flop: int


def measure_attention(options: BenchOptions) -> Iterator[Row]:
    subject, ops = subject_of(options), load_ops(options.device)
    parts = options.wanted(PARTS)
    copy_rate = _copy_rate(options)
    yield {"measure": "copy", "gb_per_s": round(copy_rate / 1e9, 1)}
    for precision in options.precisions:
        if "cross" in parts:
            yield from _cross(options, subject, ops, precision, copy_rate)
        if "self" in parts:
            for step in range(subject.spec.sid_length):
                rows = subject.batch * subject.fixed.beams[-1]
                yield from _self(options, subject, ops, precision, copy_rate, step, rows)
            rows = subject.batch * subject.dynamic.beams[1]
            yield from _self(options, subject, ops, precision, copy_rate, 1, rows)
    if "counters" in parts:
        for kind, variant in (("cross", "ours"), ("self", "fa2"), ("self", "ours tree")):
            yield {"measure": "counters", "kernel": kind, "variant": variant} | kernel_counters(
                options, kind, variant
            )


def _copy_rate(options: BenchOptions) -> float:
    """Bytes per second, read and written together."""
    size = _COPY_BYTES if options.device.type == "cuda" else 1 << 20
    source = torch.ones(size, dtype=torch.uint8, device=options.device)
    target = torch.empty_like(source)
    timing = sustained(lambda: target.copy_(source), options.device, min(options.seconds, 1.0))
    return 2 * size / timing.p50_ms * 1e3


def _cross(
    options: BenchOptions, subject: Subject, ops: Ops, precision: Precision, copy_rate: float
) -> Iterator[Row]:
    beams = subject.fixed.beams[-1]
    dtype, device = PRECISIONS[precision], options.device
    inputs = [cross_inputs(subject, beams, dtype, device, seed) for seed in range(_ROTATED)]
    first = inputs[0]
    expected = REFERENCE.cross_attention(
        first.queries, first.keys, first.values, first.mask, first.scale
    )
    rows, inner = first.queries.shape
    keys = first.keys.shape[2]
    size = first.queries.element_size()
    work = _Work(
        bytes=(2 * rows * inner + 2 * first.keys.numel()) * size, flop=4 * rows * inner * keys
    )
    for name, attend in cross_variants(ops, device).items():
        # Spread, keys and values are gigabytes, far beyond any cache: once is enough.
        rotated = inputs[:1] if name == "before" else inputs
        prepared = [_spread(each, beams) for each in rotated] if name == "before" else rotated
        require_close(f"cross-attention, {name}", attend(prepared[0]), expected)
        calls = [_bound(attend, each) for each in prepared]
        timing = _time(options, calls if name == "before" else calls * _ROUNDS)
        yield _row("cross", name, precision, 0, rows, timing, work, copy_rate)
        del prepared, calls


def cross_variants(ops: Ops, device: torch.device) -> dict[str, Callable[[CrossInputs], Tensor]]:
    """By name. `before` takes keys and values of every row."""

    def cudnn(x: CrossInputs) -> Tensor:
        batch, heads, _, d_head = x.keys.shape
        by_head = x.queries.view(batch, -1, heads, d_head).transpose(1, 2)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            out = scaled_dot_product_attention(by_head, x.keys, x.values, scale=x.scale)
        return out.transpose(1, 2).reshape(x.queries.shape)

    variants: dict[str, Callable[[CrossInputs], Tensor]] = {
        "before": lambda x: beams_as_rows(x.queries, x.keys, x.values, x.scale),
        "flash": lambda x: beams_as_queries(x.queries, x.keys, x.values, x.scale),
    }
    if device.type == "cuda":
        variants["cudnn"] = cudnn
    variants["ours"] = lambda x: ops.cross_attention(x.queries, x.keys, x.values, x.mask, x.scale)
    return variants


def _spread(x: CrossInputs, beams: int) -> CrossInputs:
    return CrossInputs(x.queries, spread(x.keys, beams), spread(x.values, beams), x.mask, x.scale)


def _self(
    options: BenchOptions,
    subject: Subject,
    ops: Ops,
    precision: Precision,
    copy_rate: float,
    step: int,
    rows: int,
) -> Iterator[Row]:
    dtype, device = PRECISIONS[precision], options.device
    for shape in ("tree", "distinct"):
        x = self_inputs(subject, rows, step, dtype, device, tree=shape == "tree")
        expected = REFERENCE.self_attention(x.pool, x.table, step, x.bias, x.scale)
        inner = x.qkv.shape[2] * x.qkv.shape[3]
        unique = sum(len(torch.unique(x.table[:, j])) for j in range(step + 1))
        variants = self_variants(ops, device, x, step)
        if shape == "distinct":
            variants = {"ours distinct": variants["ours tree"]}
        for name, attend in variants.items():
            paged = name.startswith("ours")
            blocks = unique if paged else rows * (step + 1)
            written = 2 * rows if name in ("fused", "write") else 0
            work = _Work(
                bytes=(2 * rows + 2 * blocks + written) * inner * x.qkv.element_size(),
                flop=4 * rows * (step + 1) * inner,
            )
            got = attend()
            if isinstance(got, Tensor):
                require_close(f"self-attention, {name}, t={step}", got, expected)
            else:
                work = _Work(bytes=4 * rows * inner * x.qkv.element_size(), flop=0)
            timing = _time(options, [attend] if name == "fa2" else [attend] * _ROUNDS)
            yield _row("self", name, precision, step, rows, timing, work, copy_rate)
        del x, expected, variants


def self_variants(
    ops: Ops, device: torch.device, x: SelfInputs, step: int
) -> dict[str, Callable[[], Tensor | None]]:
    """By name, on the same numbers: the dense cache holds what the table points at."""
    variants: dict[str, Callable[[], Tensor | None]] = {
        "fa2": lambda: sdpa_over_cache(x.qkv, x.cache, step, None, x.scale)
    }
    if device.type == "cuda":
        tile = best_tile(x, step, fused=False)
        fused = best_tile(x, step, fused=True)
        variants |= {
            "coalesced": lambda: coalesced_over_cache(x.qkv, x.cache, step, None, x.scale, tile),
            "fused": lambda: attend_fused(x.qkv, x.cache, step, None, x.scale, fused),
        }
    variants["write"] = lambda: append(x.qkv, x.cache, step)
    variants["ours tree"] = lambda: ops.self_attention(x.pool, x.table, step, x.bias, x.scale)
    return variants


def best_tile(x: SelfInputs, step: int, *, fused: bool) -> Tile:
    """The fastest on this GPU, as the paper's autotuning picks it."""
    attend = attend_fused if fused else coalesced_over_cache
    times = {}
    for tile in TILES:

        def call(tile: Tile = tile) -> Tensor:
            return attend(x.qkv, x.cache, step, None, x.scale, tile)

        run = captured([call] * 4, x.qkv.device)
        times[tile] = sustained(run, x.qkv.device, _TILE_SECONDS, calls=4).p50_ms
    return min(times, key=times.__getitem__)


def _bound(attend: Callable[[CrossInputs], Tensor], x: CrossInputs) -> Call:
    return lambda: attend(x)


def _time(options: BenchOptions, calls: Sequence[Call]) -> Timing:
    return sustained(
        captured(calls, options.device), options.device, options.seconds, calls=len(calls)
    )


def _row(
    measure: str,
    variant: str,
    precision: str,
    step: int,
    rows: int,
    timing: Timing,
    work: _Work,
    copy_rate: float,
) -> Row:
    seconds = timing.p50_ms / 1e3
    return {
        "measure": measure,
        "variant": variant,
        "precision": precision,
        "step": step,
        "beams": rows,
        **timing.row(),
        "tflops": float(f"{work.flop / seconds / 1e12:.4g}"),
        "gb_per_s": round(work.bytes / seconds / 1e9, 1),
        "share_of_copy": round(work.bytes / seconds / copy_rate, 3),
    }
