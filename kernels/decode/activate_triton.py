"""The hidden rows of a feed-forward network on a GPU: factor, activation and gate in one pass.

What makes it fast: it reads and writes each element once, 16 bytes at a time.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.decode.activate import check_activation
from grace.kernels.decode.shapes import require_contiguous

__all__ = ["ActivationTiles", "activate_in_tiles", "activate_triton"]


class ActivationTiles(NamedTuple):
    """A program computes `rows` x `columns` of the result, both powers of two."""

    rows: int
    columns: int
    warps: int


def activate_triton(hidden: Tensor, row_scale: Tensor, ffn: str) -> Tensor:
    """As `activate_reference`."""
    check_activation(hidden, row_scale, ffn)
    wide = hidden.shape[1] if ffn == "relu" else hidden.shape[1] // 2
    columns = min(512, triton.next_power_of_2(max(1, wide)))
    tiles = ActivationTiles(max(1, 2048 // columns), columns, 4)
    return activate_in_tiles(hidden, row_scale, ffn, tiles)


def activate_in_tiles(
    hidden: Tensor, row_scale: Tensor, ffn: str, tiles: ActivationTiles
) -> Tensor:
    """The operation in tiles of the caller's choice."""
    require_contiguous(hidden=hidden, row_scale=row_scale)
    gated = ffn == "gated_gelu"
    rows, wide = len(hidden), hidden.shape[1] // (2 if gated else 1)
    out = torch.empty((rows, wide), dtype=hidden.dtype, device=hidden.device)
    if out.numel():
        grid = (triton.cdiv(rows, tiles.rows), triton.cdiv(wide, tiles.columns))
        _activate[grid](
            *(hidden, row_scale, out, rows),
            wide=wide,
            gated=gated,
            block_rows=tiles.rows,
            block_columns=tiles.columns,
            num_warps=tiles.warps,
        )
    return out


@triton.jit(do_not_specialize=["rows"])
def _activate(
    p_hidden: tl.tensor,
    p_scale: tl.tensor,
    p_out: tl.tensor,
    rows: tl.tensor,
    wide: tl.constexpr,
    gated: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
) -> None:
    o_row = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    o_column = tl.program_id(1) * block_columns + tl.arange(0, block_columns)
    live = o_row < rows
    inside = live[:, None] & (o_column < wide)[None, :]
    factor = tl.load(p_scale + o_row, mask=live, other=0.0)[:, None]
    p_row = p_hidden + o_row[:, None] * ((1 + gated) * wide) + o_column[None, :]
    x = tl.load(p_row, mask=inside, other=0.0).to(tl.float32) * factor
    if gated:
        value = tl.load(p_row + wide, mask=inside, other=0.0).to(tl.float32) * factor
        # x (1 + tanh(u)) / 2 = x / (1 + exp(-2u)), without tanh and its cancellation.
        twice = 1.5957691216057308 * (x + 0.044715 * x * x * x)  # 2 sqrt(2 / pi)
        result = x / (1.0 + tl.exp(-twice)) * value
    else:
        result = tl.where(x < 0.0, 0.0, x)  # NaN stays NaN, which a maximum would hide
    p_result = p_out + o_row[:, None] * wide + o_column[None, :]
    tl.store(p_result, result.to(p_out.dtype.element_ty), mask=inside)
