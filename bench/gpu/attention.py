"""The attention kernels alone: the paper's two microbenchmarks, on its shapes.

cross  before    SDPA-flash, one query per problem, keys and values spread to every beam row
       flash     SDPA-flash with beams as queries;   cudnn: cuDNN's SDPA, likewise
       ours      the product's operation
self   fa2       SDPA-flash over a dense cache;   coalesced: the paper's tile, likewise
       write     what both still need, in any step: the step's keys and values into the cache
       fused     the tile that reads the QKV product and writes the cache itself
       ours      zero-copy, paged, on the block table that a generation with these beams has at this
                 step: beams share ancestors, down to the request's one block of position 0
       ours distinct   the same with every row's past its own, as a dense cache has it

Bytes are those that must be read and written once, shared blocks once for all rows; the share is of
a copy measured in the same run. What the timed graph left is compared with the definition.
`counters` are Nsight Compute's, and only measured when named.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from grace.bench.gpu.agreement import require_close, require_equal
from grace.bench.gpu.attention_inputs import (
    BlockTable,
    CrossInputs,
    SelfInputs,
    cross_inputs,
    distinct_table,
    searched_tables,
    self_inputs,
)
from grace.bench.gpu.attention_variants import cross_variants, self_names, self_variant
from grace.bench.gpu.clock import Timing, captured, sustained
from grace.bench.gpu.counters import all_counters
from grace.bench.gpu.options import BenchOptions
from grace.bench.gpu.results import Row
from grace.bench.gpu.subject import Subject, engine_of, random_decoder_alone, subject_of
from grace.bench.rungs.attention import spread_to_rows as spread
from grace.kernels import REFERENCE, Ops, load_ops
from grace.model.engine.decode_weights import PRECISIONS, Precision

__all__ = ["measure_attention"]

_COPY_BYTES = 1 << 30
_ROTATED = 3
_ROUNDS = 4  # of quick calls in a run, so that it is long enough to be launched ahead


@dataclass(frozen=True, slots=True)
class _Work:
    """What one call must do at least."""

    bytes: int
    flop: int


@dataclass(frozen=True, slots=True)
class _Setting:
    options: BenchOptions
    subject: Subject
    ops: Ops
    copy_rate: float


def measure_attention(options: BenchOptions) -> Iterator[Row]:
    subject, ops = subject_of(options), load_ops(options.device)
    parts = options.wanted()
    if parts != ("counters",):
        copy_rate = _copy_rate(options)
        yield {"measure": "copy", "gb_per_s": round(copy_rate / 1e9, 1)}
        setting = _Setting(options, subject, ops, copy_rate)
        for precision in options.precisions:
            if "cross" in parts:
                yield from _cross(setting, precision)
            if "self" in parts:
                yield from _self(setting, precision)
    if "counters" in parts:
        yield from all_counters(options)


def _copy_rate(options: BenchOptions) -> float:
    """Bytes per second, read and written together."""
    size = _COPY_BYTES if options.device.type == "cuda" else 1 << 20
    source = torch.ones(size, dtype=torch.uint8, device=options.device).random_()
    target = torch.empty_like(source)
    timing = sustained(lambda: target.copy_(source), options.device, min(options.seconds, 1.0))
    require_equal("the copy", target, source)
    return 2 * size / timing.p50_ms * 1e3


def _cross(setting: _Setting, precision: Precision) -> Iterator[Row]:
    subject, device = setting.subject, setting.options.device
    beams, dtype = subject.fixed.beams[-1], PRECISIONS[precision]
    inputs = [cross_inputs(subject, beams, dtype, device, seed) for seed in range(_ROTATED)]
    first = inputs[0]
    expected = [
        REFERENCE.cross_attention(x.queries, x.keys, x.values, x.mask, x.scale) for x in inputs
    ]
    rows, inner = first.queries.shape
    keys = first.keys.shape[2]
    size = first.queries.element_size()
    work = _Work(
        bytes=(2 * rows * inner + 2 * first.keys.numel()) * size, flop=4 * rows * inner * keys
    )
    for name, attend in cross_variants(setting.ops, device).items():
        # Spread, keys and values are gigabytes, far beyond any cache: once is enough.
        rotated = inputs[:1] if name == "before" else inputs
        prepared = [_spread(each, beams) for each in rotated] if name == "before" else rotated
        calls = [partial(attend, each) for each in prepared]
        run = captured(calls if name == "before" else calls * _ROUNDS, device)
        results = run()
        for place, got in enumerate(results):
            require_close(f"cross-attention, {name}", got, expected[place % len(prepared)])
        timing = _time(setting.options, run, len(results))
        row = _row(setting, "cross", name, precision, timing, work)
        yield row | {"step": 0, "beams": rows}
        del prepared, calls, run, results, got


def _spread(x: CrossInputs, beams: int) -> CrossInputs:
    return CrossInputs(x.queries, spread(x.keys, beams), spread(x.values, beams), x.mask, x.scale)


def _self(setting: _Setting, precision: Precision) -> Iterator[Row]:
    """All variants with as many beams in every step; the engine, too, with the paper's dynamic
    beams where they are fewer."""
    subject, device = setting.subject, setting.options.device
    model = random_decoder_alone(subject.spec, device)
    engine = engine_of(subject, model, setting.ops, PRECISIONS[precision])
    fixed, dynamic = (
        searched_tables(subject, engine, each) for each in (subject.fixed, subject.dynamic)
    )
    del model, engine
    names = self_names(device)
    rows = subject.batch * subject.fixed.beams[-1]
    for step in range(subject.spec.sid_length):
        shown = names if step == 0 else names[1:]
        distinct = distinct_table(subject.spec, rows, step, device)
        if step:  # a search has one row per request at step 0
            for_search = [name for name in shown if name != "ours distinct"]
            yield from _self_rows(setting, precision, fixed[step], for_search)
            yield from _self_rows(setting, precision, distinct, ["ours distinct"])
        else:
            others = [name for name in shown if name != "ours"]
            yield from _self_rows(setting, precision, distinct, others)
    for table in dynamic:
        if table.step and len(table.ids) < rows:
            yield from _self_rows(setting, precision, table, ["ours"])


def _self_rows(
    setting: _Setting, precision: Precision, table: BlockTable, names: Sequence[str]
) -> Iterator[Row]:
    x = self_inputs(setting.subject.spec, table, PRECISIONS[precision])
    step, rows = table.step, len(table.ids)
    defined = {
        paged: REFERENCE.self_attention(
            x.pool, table.ids, step, x.bias, x.scale, x.factors if paged else None
        )
        for paged in (True, False)
    }
    for name in names:
        paged = name.startswith("ours")
        call = self_variant(name, setting.ops, x)
        written = (x.cache.keys[step, :rows], x.cache.values[step, :rows])
        if name in ("write", "fused"):
            for part in written:
                part.fill_(torch.nan)
        run = captured([call] if name == "fa2" else [call] * _ROUNDS, setting.options.device)
        results = run()
        for got in results:
            if got is not None:
                require_close(f"self-attention, {name}, t={step}", got, defined[paged])
        for part, new in zip(written, (x.qkv[:, 1], x.qkv[:, 2]), strict=True):
            require_equal(f"self-attention, {name}, t={step}, the cache", part, new)
        timing = _time(setting.options, run, len(results))
        row = _row(setting, "self", name, precision, timing, _self_work(name, x))
        yield row | {"step": step, "beams": rows, "past_blocks": _past(name, table)}


def _past(name: str, table: BlockTable) -> int:
    """Blocks of earlier steps that are read: a dense cache holds every row's."""
    return table.past if name.startswith("ours") else len(table.ids) * table.step


def _self_work(name: str, x: SelfInputs) -> _Work:
    rows, inner = len(x.qkv), x.qkv.shape[2] * x.qkv.shape[3]
    size = x.qkv.element_size()
    if name == "write":
        return _Work(bytes=4 * rows * inner * size, flop=0)
    # q and the output; k and v of the rows and of their past
    moved = 2 * rows + 2 * (rows + _past(name, x.table))
    written = 2 * rows if name == "fused" else 0
    return _Work(bytes=(moved + written) * inner * size, flop=4 * rows * (x.table.step + 1) * inner)


def _time(options: BenchOptions, run: Callable[[], object], calls: int) -> Timing:
    return sustained(run, options.device, options.seconds, calls=calls)


def _row(
    setting: _Setting, measure: str, variant: str, precision: str, timing: Timing, work: _Work
) -> Row:
    seconds = timing.p50_ms / 1e3
    return {
        "measure": measure,
        "variant": variant,
        "precision": precision,
        **timing.row(),
        "mb": round(work.bytes / 1e6, 1),
        "tflops": float(f"{work.flop / seconds / 1e12:.4g}"),
        "gb_per_s": round(work.bytes / seconds / 1e9, 1),
        "share_of_copy": round(work.bytes / seconds / setting.copy_rate, 3),
    }
