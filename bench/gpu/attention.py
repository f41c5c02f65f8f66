"""`grace bench attention`: the paper's two attention microbenchmarks, on its shapes.

cross  before          SDPA-flash, one query per problem, keys and values spread to every beam row
       flash, cudnn    SDPA-flash and cuDNN's SDPA, with beams as queries
       ours            the product's operation
self   fa2, coalesced  SDPA-flash and the paper's tile, over a dense cache
       write           what both also need in every step: its keys and values into the cache
       fused           the tile that reads the QKV product and writes the cache itself
       ours            zero-copy, paged, on the block table of a real generation at this step: beams
                       share ancestors, down to the request's one block of position 0
       ours distinct   the same kernel where no row shares its past, as in a dense cache

Bytes are those that must be read and written once; their rate is compared with a copy's in the same
run. The result that the timed graph left is compared with the definition.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from grace.bench.gpu.attention_kernels import (
    BlockTable,
    CrossInputs,
    SelfInputs,
    cross_inputs,
    cross_kernels,
    distinct_table,
    searched_tables,
    self_inputs,
    self_kernel,
    self_names,
)
from grace.bench.gpu.counters import measure_counters
from grace.bench.gpu.floors import Least
from grace.bench.gpu.measure import require_close, require_equal, sustained
from grace.bench.gpu.results import Row
from grace.bench.gpu.workload import Workload
from grace.bench.rungs.attention import spread_to_rows as spread
from grace.kernels import REFERENCE, Ops
from grace.model.engine.decode_weights import PRECISIONS, Precision

_COPY_BYTES = 1 << 30
_INPUTS = 3  # of cross-attention, in turn
_ROUNDS = 4  # of quick calls in a run, so that it is long enough to be launched ahead


@dataclass(frozen=True, slots=True)
class _Setting:
    work: Workload
    ops: Ops
    copy_rate: float

    def row(
        self, measure: str, variant: str, precision: str, run: Callable[[], object], calls: int,
        least: Least,
    ) -> Row:  # fmt: skip
        """Time the run, whose results were compared."""
        work = self.work
        timing = sustained(run, work.device, work.options.seconds, calls=calls)
        seconds = timing.p50_ms / 1e3
        return {
            "measure": measure,
            "variant": variant,
            "precision": precision,
            **timing.row(),
            "mb": round(least.bytes / 1e6, 1),
            "tflops": float(f"{least.flop / seconds / 1e12:.4g}"),
            "gb_per_s": round(least.bytes / seconds / 1e9, 1),
            "share_of_copy": round(least.bytes / seconds / self.copy_rate, 3),
        }


def measure(work: Workload) -> Iterator[Row]:
    parts = work.options.parts()
    if parts != ("counters",):
        copy_rate = _copy_rate(work)
        yield {"measure": "copy", "gb_per_s": round(copy_rate / 1e9, 1)}
        setting = _Setting(work, work.load_ops(work.device), copy_rate)
        for precision in work.options.precisions:
            if "cross" in parts:
                yield from _cross(setting, precision)
            if "self" in parts:
                yield from _self(setting, precision)
    if "counters" in parts:
        yield from measure_counters(work)


def _copy_rate(work: Workload) -> float:
    """Bytes per second, read and written together."""
    size = _COPY_BYTES if work.on_gpu else 1 << 20
    source = torch.ones(size, dtype=torch.uint8, device=work.device).random_()
    target = torch.empty_like(source)
    timing = sustained(lambda: target.copy_(source), work.device, min(work.options.seconds, 1.0))
    require_equal("the copy", target, source)
    return 2 * size / timing.p50_ms * 1e3


def _cross(setting: _Setting, precision: Precision) -> Iterator[Row]:
    work = setting.work
    beams, dtype = work.fixed.beams[-1], PRECISIONS[precision]
    inputs = [cross_inputs(work, beams, dtype, seed) for seed in range(_INPUTS)]
    first = inputs[0]
    expected = [
        REFERENCE.cross_attention(x.queries, x.keys, x.values, x.mask, x.scale) for x in inputs
    ]
    rows, inner = first.queries.shape
    keys = first.keys.shape[2]
    size = first.queries.element_size()
    least = Least(
        bytes=(2 * rows * inner + 2 * first.keys.numel()) * size, flop=4 * rows * inner * keys
    )
    for name, attend in cross_kernels(setting.ops, work.device).items():
        # Spread, keys and values are gigabytes, far beyond any cache: one input is enough.
        prepared = [_spread(first, beams)] if name == "before" else inputs
        calls = [partial(attend, each) for each in prepared]
        run = work.record_calls(calls if name == "before" else calls * _ROUNDS)
        results = run()
        for place, got in enumerate(results):
            require_close(f"cross-attention, {name}", got, expected[place % len(prepared)])
        row = setting.row("cross", name, precision, run, len(results), least)
        yield row | {"step": 0, "beams": rows}
        del prepared, calls, run, results, got


def _spread(x: CrossInputs, beams: int) -> CrossInputs:
    return CrossInputs(x.queries, spread(x.keys, beams), spread(x.values, beams), x.mask, x.scale)


def _self(setting: _Setting, precision: Precision) -> Iterator[Row]:
    """Measure all kernels with equal beams in every step, and `ours` also with the paper's
    dynamic beams where they are fewer."""
    work = setting.work
    engine = work.random_engine(precision)
    fixed, dynamic = (searched_tables(work, engine, each) for each in (work.fixed, work.dynamic))
    del engine
    names = self_names(work.device)
    rows = work.batch * work.fixed.beams[-1]
    for step in range(work.spec.sid_length):
        shown = names if step == 0 else names[1:]
        distinct = distinct_table(work, rows, step)
        if step:  # a search has one row per request at step 0
            searched = [name for name in shown if name != "ours distinct"]
            yield from _self_rows(setting, precision, fixed[step], searched)
            yield from _self_rows(setting, precision, distinct, ["ours distinct"])
        else:
            without = [name for name in shown if name != "ours"]
            yield from _self_rows(setting, precision, distinct, without)
    for table in dynamic:
        if table.step and len(table.ids) < rows:
            yield from _self_rows(setting, precision, table, ["ours"])


def _self_rows(
    setting: _Setting, precision: Precision, table: BlockTable, names: Sequence[str]
) -> Iterator[Row]:
    work = setting.work
    x = self_inputs(work, table, PRECISIONS[precision])
    step, rows = table.step, len(table.ids)
    defined = {
        paged: REFERENCE.self_attention(
            x.pool, table.ids, step, x.bias, x.scale, x.factors if paged else None
        )
        for paged in (True, False)
    }
    for name in names:
        paged = name.startswith("ours")
        call = self_kernel(work, name, setting.ops, x)
        written = (x.cache.keys[step, :rows], x.cache.values[step, :rows])
        if name in ("write", "fused"):
            for part in written:
                part.fill_(torch.nan)
        run = work.record_calls([call] if name == "fa2" else [call] * _ROUNDS)
        results = run()
        for got in results:
            if got is not None:
                require_close(f"self-attention, {name}, t={step}", got, defined[paged])
        for part, new in zip(written, (x.qkv[:, 1], x.qkv[:, 2]), strict=True):
            require_equal(f"self-attention, {name}, t={step}, the cache", part, new)
        row = setting.row("self", name, precision, run, len(results), _self_least(name, x))
        yield row | {"step": step, "beams": rows, "past_blocks": _past(name, table)}


def _past(name: str, table: BlockTable) -> int:
    """The blocks of earlier steps that are read: a dense cache holds every row's."""
    return table.past if name.startswith("ours") else len(table.ids) * table.step


def _self_least(name: str, x: SelfInputs) -> Least:
    rows, inner = len(x.qkv), x.qkv.shape[2] * x.qkv.shape[3]
    size = x.qkv.element_size()
    if name == "write":
        return Least(bytes=4 * rows * inner * size, flop=0)
    # q and the output; k and v of the rows and of their past
    moved = 2 * rows + 2 * (rows + _past(name, x.table))
    written = 2 * rows if name == "fused" else 0
    return Least(bytes=(moved + written) * inner * size, flop=4 * rows * (x.table.step + 1) * inner)
