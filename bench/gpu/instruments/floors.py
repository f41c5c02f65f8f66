"""Count the least that each operation of a generation must move and compute, while it runs.

Bytes are those that must come from memory or go to it once. Blocks that beams share count once.
Admission counts ids and candidates, and neither index nor matcher rows: which reads of rows reach
memory depends on the caches.
"""

from collections import defaultdict
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from grace.kernels import Beams, DecodeIndex, Ops
from grace.kernels.decode.admit_children import fan_outs
from grace.kernels.decode.cross_attention import BeamQueries
from grace.kernels.decode.select_beams import Choice
from grace.kernels.decode.self_attention import PagedPrefixes


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


def _count_self_attention(counts: Counts, given: PagedPrefixes) -> None:
    pool, table, step = given.pool, given.table, given.step
    rows, inner = len(table), pool.shape[2] * pool.shape[3]
    blocks = sum(len(torch.unique(table[:, j])) for j in range(step + 1))
    asked = len(torch.unique(table[:, step]))
    result = given.dtype or pool.dtype
    moved = ((asked + 2 * blocks) * pool.element_size() + rows * result.itemsize) * inner
    counts.add("self_attention", moved + table.nbytes, 4 * rows * (step + 1) * inner)


def _count_cross_attention(counts: Counts, given: BeamQueries) -> None:
    queries, keys, rows = given.queries, given.keys, given.rows
    asked = rows if given.query_rows is None else len(torch.unique(given.query_rows))
    inner, size = queries.shape[1], queries.element_size()
    result = given.dtype or queries.dtype
    moved = (asked * size + rows * result.itemsize) * inner + 2 * keys.numel() * size
    counts.add("cross_attention", moved, 4 * rows * inner * keys.shape[2])


def counting_ops(ops: Ops, counts: Counts) -> Ops:
    """Return the same operations, which count each call; counting may wait for the device."""

    def self_attention(given: PagedPrefixes) -> Tensor:
        _count_self_attention(counts, given)
        return ops.self_attention(given)

    def cross_attention(given: BeamQueries) -> Tensor:
        _count_cross_attention(counts, given)
        return ops.cross_attention(given)

    def row_factors(x: Tensor, eps: float) -> Tensor:
        counts.add("row_factors", x.nbytes + 4 * len(x))
        return ops.row_factors(x, eps)

    def activate(hidden: Tensor, row_scale: Tensor, ffn: str) -> Tensor:
        out = ops.activate(hidden, row_scale, ffn)
        counts.add("activate", hidden.nbytes + row_scale.nbytes + out.nbytes)
        return out

    def rearrange(table: Tensor, parents: Tensor, step: int) -> Tensor:
        out = ops.rearrange(table, parents, step)
        counts.add("rearrange", parents.nbytes + 2 * out.nbytes)
        return out

    def select_beams(given: Choice) -> Beams:
        admitted = len(given.candidates.packed().tokens)
        kept = 16 * len(given.scores) * given.k
        moved = given.logits.nbytes + given.scores.nbytes + 8 * admitted + kept
        counts.add("select_beams", moved)
        return ops.select_beams(given)

    return replace(
        ops,
        self_attention=self_attention,
        cross_attention=cross_attention,
        row_factors=row_factors,
        activate=activate,
        select_beams=select_beams,
        rearrange=rearrange,
    )
