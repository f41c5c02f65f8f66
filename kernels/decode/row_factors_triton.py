"""The factors of RMS norms on a GPU: a row is read once, in 16-byte loads, and never written.

What makes it fast: programs of a few rows with 2 to 4 loads per thread, all issued before the first
product, and a sum that leaves the warp once. A row longer than a tile is read in turns.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.decode.row_factors import check_row_factors
from grace.kernels.decode.shapes import require_contiguous

__all__ = ["RowFactorTiles", "row_factors_in_tiles", "row_factors_triton"]


class RowFactorTiles(NamedTuple):
    """A program computes `rows` rows, `columns` at a time, both powers of two."""

    rows: int
    columns: int
    warps: int


def row_factors_triton(x: Tensor, eps: float) -> Tensor:
    """As `row_factors_reference`."""
    check_row_factors(x)
    columns = min(4096, triton.next_power_of_2(max(1, x.shape[1])))
    return row_factors_in_tiles(x, eps, RowFactorTiles(max(1, 4096 // columns), columns, 4))


def row_factors_in_tiles(x: Tensor, eps: float, tiles: RowFactorTiles) -> Tensor:
    """The operation in tiles of the caller's choice."""
    require_contiguous(x=x)
    rows, d = x.shape
    out = torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows:
        _factors[(triton.cdiv(rows, tiles.rows),)](
            *(x, out, rows, eps),
            d=d,
            block_rows=tiles.rows,
            block_d=tiles.columns,
            num_warps=tiles.warps,
        )
    return out


@triton.jit(do_not_specialize=["rows"])
def _factors(
    p_x: tl.tensor,
    p_out: tl.tensor,
    rows: tl.tensor,
    eps: tl.tensor,
    d: tl.constexpr,
    block_rows: tl.constexpr,
    block_d: tl.constexpr,
) -> None:
    o_row = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    live = o_row < rows
    squares = tl.zeros((block_rows, block_d), dtype=tl.float32)
    for start in tl.static_range(0, d, block_d):
        o_d = start + tl.arange(0, block_d)
        inside = live[:, None] & (o_d < d)[None, :]
        x = tl.load(p_x + o_row[:, None] * d + o_d[None, :], mask=inside, other=0.0)
        squares += x.to(tl.float32) * x.to(tl.float32)
    factor = tl.rsqrt(tl.sum(squares, axis=1) / d + eps)
    tl.store(p_out + o_row, factor, mask=live)
