"""Count the least that each operation and product of a generation must move and compute.

Bytes are those that must come from memory or go to it once. Blocks that beams share count once.
Admission counts ids and candidates, and neither index nor matcher rows: which reads of rows reach
memory depends on the caches.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.profiler import record_function

from grace.kernels import Beams, DecodeIndex, Ops
from grace.kernels.attention.cross_attention import BeamQueries
from grace.kernels.attention.self_attention import PagedPrefixes
from grace.kernels.decode.admit_children import fan_outs
from grace.kernels.decode.select_beams import Choice
from grace.kernels.products.fp8_products import Addition, RoundedOps, RoundedRows, RoundedWeight
from grace.model.engine.residual import Products


class Least(NamedTuple):
    calls: int = 0
    bytes: int = 0
    flop: int = 0

    def plus(self, other: "Least") -> "Least":
        return Least(*(own + more for own, more in zip(self, other, strict=True)))


class Counts:
    """The counts of each operation, by its name in Ops."""

    def __init__(self) -> None:
        self.by_name = defaultdict[str, Least](Least)

    def add(self, name: str, moved: int, flop: int = 0) -> None:
        self.by_name[name] = self.by_name[name].plus(Least(1, moved, flop))

    def means(self, runs: int) -> dict[str, Least]:
        """Return the counts of one run of several."""
        return {
            name: Least(*(total // runs for total in each)) for name, each in self.by_name.items()
        }


def count_admission(counts: Counts, nodes: Tensor, admitted: int, index: DecodeIndex) -> None:
    """Count one step's admission of the children of these nodes."""
    live = torch.unique(nodes[nodes >= 0])
    children = int(fan_outs(live, index).sum())
    ids = 4 * (1 + (index.bitmask_index is not None) + len(index.blooms))
    counts.add("admit_children", 4 * nodes.numel() + ids * children + 8 * admitted)


def _self_attention(out: Tensor, given: PagedPrefixes) -> tuple[int, int]:
    pool, table, step = given.pool, given.table, given.step
    blocks = sum(len(torch.unique(table[:, j])) for j in range(step + 1))
    asked, inner = len(torch.unique(table[:, step])), pool.shape[2] * pool.shape[3]
    moved = (asked + 2 * blocks) * inner * pool.element_size() + out.nbytes
    return moved + table.nbytes, 4 * len(table) * (step + 1) * inner


def _cross_attention(out: Tensor, given: BeamQueries) -> tuple[int, int]:
    queries, keys, rows = given.queries, given.keys, given.rows
    asked = rows if given.query_rows is None else len(torch.unique(given.query_rows))
    inner, size = queries.shape[1], queries.element_size()
    moved = asked * inner * size + out.nbytes + 2 * keys.numel() * size
    return moved, 4 * rows * inner * keys.shape[2]


def _row_factors(_: Tensor, x: Tensor, _eps: float) -> tuple[int, int]:
    return x.nbytes + 4 * len(x), 0


def _activate(out: Tensor, hidden: Tensor, row_scale: Tensor, _ffn: str) -> tuple[int, int]:
    return hidden.nbytes + row_scale.nbytes + out.nbytes, 0


def _rearrange(out: Tensor, _table: Tensor, parents: Tensor, _step: int) -> tuple[int, int]:
    return parents.nbytes + 2 * out.nbytes, 0


def _select_beams(_: Beams, given: Choice) -> tuple[int, int]:
    admitted = len(given.candidates.packed().tokens)
    kept = 16 * len(given.scores) * given.k
    return given.logits.nbytes + given.scores.nbytes + 8 * admitted + kept, 0


_LEAST: Mapping[str, Callable[..., tuple[int, int]]] = {
    "self_attention": _self_attention,
    "cross_attention": _cross_attention,
    "row_factors": _row_factors,
    "activate": _activate,
    "rearrange": _rearrange,
    "select_beams": _select_beams,
}
"""The bytes and arithmetic of a call, from what it returned and was given, by name in Ops."""


def counting_ops(ops: Ops, counts: Counts) -> Ops:
    """Return the same operations, which count each call; counting may wait for the device."""

    def counting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any) -> Any:
            out = call(*given)
            counts.add(name, *_LEAST[name](out, *given))
            return out

        return counted

    return replace(ops, **{name: counting(name, getattr(ops, name)) for name in _LEAST})


class NamedProducts(Products):
    """Plain products, each in a range that the profiler reports, named by its shape.

    Some are launched through ctypes, where a profiler sees a kernel but no operation. `counts` gets
    the least work of each.
    """

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def into(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        with _named(self._counts, x, weight, "", out.element_size()):
            super().into(x, weight, out)

    def add(self, residual: Tensor, x: Tensor, weight: Tensor) -> None:
        with _named(self._counts, x, weight, " added", 2 * residual.element_size()):
            super().add(residual, x, weight)


def named_rounded(ops: RoundedOps, counts: Counts) -> RoundedOps:
    """Do the same for products with rounded weights."""

    def product(x: Tensor, weight: RoundedWeight, out: Tensor) -> None:
        with _named(counts, x, weight, " fp8", 2):
            ops.product(x, weight, out)

    def add_product(by: Addition) -> RoundedRows:
        read_written_and_rounded = 2 + 2 + 1
        with _named(counts, by.rounded, by.weight, " fp8 added", read_written_and_rounded):
            return ops.add_product(by)

    def hidden(rows: RoundedRows, weight: RoundedWeight, ffn: str) -> Tensor:
        with _named(counts, rows.rounded, weight, " fp8 rounded", 1):
            return ops.hidden(rows, weight, ffn)

    return replace(ops, product=product, add_product=add_product, hidden=hidden)


def _named(
    counts: Counts, x: Tensor, weight: Tensor | RoundedWeight, suffix: str, result_bytes: int
) -> record_function:
    """Count a product, an element of whose result costs some bytes, and return its range."""
    (rows, inner), columns = x.shape, len(weight)
    name = f"{rows} x {inner} x {columns}{suffix}"
    moved = (rows * inner + inner * columns) * x.element_size() + rows * columns * result_bytes
    counts.add(name, moved, 2 * rows * inner * columns)
    return record_function(name)
