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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from grace.bench.gpu.instruments.floors import Least
from grace.bench.gpu.instruments.measure import Timing, copy_rate, require_close, require_equal
from grace.bench.gpu.subjects.attention_kernels import (
    BlockTable,
    SelfInputs,
    cross_inputs,
    cross_kernels,
    distinct_table,
    searched_tables,
    self_inputs,
    self_kernel,
    self_names,
)
from grace.bench.gpu.subjects.workload import Workload
from grace.bench.result_file import Row
from grace.bench.rungs.attention import spread_to_rows as spread
from grace.kernels import REFERENCE, Ops
from grace.kernels.attention.self_attention import PagedPrefixes
from grace.kernels.products.fp8_products import E4M3
from grace.model.engine.precision import PRECISIONS, Precision

_INPUTS = 3  # of cross-attention, in turn
_ROUNDS = 4  # of quick calls in a run, so that it is long enough to be launched ahead


class _Setting(NamedTuple):
    work: Workload
    ops: Ops
    copy_rate: float
    precision: Precision

    @property
    def result(self) -> torch.dtype:
        """The type of attended rows."""
        return E4M3 if self.precision == "fp8" else PRECISIONS[self.precision]

    def measured(self, names: Iterable[str]) -> list[str]:
        """Return the kernels that this precision has: only ours returns rows in e4m3."""
        return [name for name in names if self.precision != "fp8" or name.startswith("ours")]

    def row(self, measure: str, variant: str, timing: Timing, least: Least) -> Row:
        seconds = timing.p50_ms / 1e3
        return {
            "measure": measure,
            "variant": variant,
            "precision": self.precision,
            **timing.row(),
            "mb": round(least.bytes / 1e6, 1),
            "tflops": float(f"{least.flop / seconds / 1e12:.4g}"),
            "gb_per_s": round(least.bytes / seconds / 1e9, 1),
            "share_of_copy": round(least.bytes / seconds / self.copy_rate, 3),
        }


def measure(work: Workload) -> Iterator[Row]:
    parts = work.options.parts()
    rate = copy_rate(work.device, work.options.seconds)
    yield {"measure": "copy", "gb_per_s": round(rate / 1e9, 1)}
    for precision in work.options.precisions:
        setting = _Setting(work, work.load_ops(work.device), rate, precision)
        if "cross" in parts:
            yield from _cross(setting)
        if "self" in parts:
            yield from _self(setting)


def _cross(setting: _Setting) -> Iterator[Row]:
    work = setting.work
    beams, dtype = work.fixed.beams[-1], PRECISIONS[setting.precision]
    inputs = [cross_inputs(work, beams, dtype, seed) for seed in range(_INPUTS)]
    first = inputs[0]
    expected = [REFERENCE.cross_attention(replace(x, dtype=setting.result)) for x in inputs]
    rows, inner = first.queries.shape
    size = first.queries.element_size()
    moved = (rows * inner + 2 * first.keys.numel()) * size + rows * inner * setting.result.itemsize
    least = Least(bytes=moved, flop=4 * rows * inner * first.keys.shape[2])
    kernels = cross_kernels(setting.ops, work.device, setting.result)
    for name in setting.measured(kernels):
        attend = kernels[name]
        if name == "before":  # one input of gigabytes exceeds every cache
            keys, values = spread(first.keys, beams), spread(first.values, beams)
            prepared, rounds = [replace(first, keys=keys, values=values)], 1
            del keys, values
        else:
            prepared, rounds = inputs, _ROUNDS

        def check(place: int, got: Tensor, what: str = f"cross-attention, {name}") -> None:
            require_close(what, got, expected[place % _INPUTS])

        timing = work.timed_calls([partial(attend, each) for each in prepared] * rounds, check)
        yield setting.row("cross", name, timing, least) | {"step": 0, "beams": rows}
        del prepared


def _self(setting: _Setting) -> Iterator[Row]:
    """Measure all kernels with equal beams in every step, and `ours` also with the paper's
    dynamic beams where they are fewer."""
    work = setting.work
    engine = work.random_engine(setting.precision)
    fixed, dynamic = (searched_tables(work, engine, each) for each in (work.fixed, work.dynamic))
    del engine
    names = self_names(work.device)
    rows = work.batch * work.fixed.beams[-1]
    for step in range(work.spec.sid_length):
        distinct = distinct_table(work, rows, step)
        if step:  # `write` takes the same time at every step, so only step 0 has it
            searched = [name for name in names if name not in ("write", "ours distinct")]
            yield from _self_rows(setting, fixed[step], searched)
            yield from _self_rows(setting, distinct, ["ours distinct"])
        else:  # no "ours": a search has one row per request at step 0
            yield from _self_rows(setting, distinct, [name for name in names if name != "ours"])
    for table in dynamic:
        if table.step and len(table.ids) < rows:
            yield from _self_rows(setting, table, ["ours"])


def _self_rows(setting: _Setting, table: BlockTable, names: Sequence[str]) -> Iterator[Row]:
    work = setting.work
    x = self_inputs(work, table, PRECISIONS[setting.precision])
    step, rows = table.step, len(table.ids)
    prefixes = PagedPrefixes(x.pool, table.ids, step, x.bias, x.scale, dtype=setting.result)
    defined = {
        paged: REFERENCE.self_attention(replace(prefixes, row_scale=x.factors if paged else None))
        for paged in (True, False)
    }
    for name in setting.measured(names):
        call = self_kernel(work, name, setting.ops, x, setting.result)
        if name in ("write", "fused"):
            for part in x.written():
                part.fill_(torch.nan)
        check = partial(_check_self, f"self-attention, {name}, t={step}", x, defined, name)
        timing = work.timed_calls([call] if name == "fa2" else [call] * _ROUNDS, check)
        row = setting.row("self", name, timing, _self_least(name, x, setting.result))
        yield row | {"step": step, "beams": rows, "past_blocks": _past(name, table)}


def _check_self(
    what: str, x: SelfInputs, defined: Mapping[bool, Tensor], name: str, _: int, got: Tensor | None
) -> None:
    if got is not None:
        require_close(what, got, defined[name.startswith("ours")])
    for part, new in zip(x.written(), (x.qkv[:, 1], x.qkv[:, 2]), strict=True):
        require_equal(f"{what}, the cache", part, new)


def _past(name: str, table: BlockTable) -> int:
    """The blocks of earlier steps that are read: a dense cache holds every row's."""
    return table.past if name.startswith("ours") else len(table.ids) * table.step


def _self_least(name: str, x: SelfInputs, result: torch.dtype) -> Least:
    rows, inner = len(x.qkv), x.qkv.shape[2] * x.qkv.shape[3]
    size = x.qkv.element_size()
    if name == "write":
        return Least(bytes=4 * rows * inner * size, flop=0)
    # q; k and v of the rows and of their past
    moved = rows + 2 * (rows + _past(name, x.table))
    written = 2 * rows if name == "fused" else 0
    moved_bytes = ((moved + written) * size + rows * result.itemsize) * inner
    return Least(bytes=moved_bytes, flop=4 * rows * (x.table.step + 1) * inner)
