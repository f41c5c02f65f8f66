"""RMS factors on a GPU, the activation that applies them, and the encoder's norm: one pass each.

What makes it fast: every element is read once, in 16-byte loads, and only activation and norm write
rows. A program computes the factors of a few rows with 2 to 4 loads per thread, issues them all
before the first product, and sums across warps once. It reads a row longer than a tile in parts. A
row that is normed stays in registers between its sum and its product.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.checks import require_contiguous, require_tensor, sizes_of
from grace.kernels.products.row_factors import check_activation
from grace.kernels.triton_parts import await_kernel_before, early_launch

_FACTOR_TILE = 4096  # elements that a program reads at a time
_ACTIVATION_TILE = 2048  # elements that a program writes
_NORM_TILE = 2048  # likewise


def row_factors_triton(x: Tensor, eps: float) -> Tensor:
    rows, d = sizes_of("x", x, "rows d")
    require_contiguous(x=x)
    out = torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows:
        columns = min(_FACTOR_TILE, triton.next_power_of_2(max(1, d)))
        block_rows = _FACTOR_TILE // columns
        _factors[(triton.cdiv(rows, block_rows),)](
            x,
            out,
            rows,
            eps,
            d=d,
            block_rows=block_rows,
            block_d=columns,
            num_warps=4,
            **early_launch(x.device, rows),
        )
    return out


def activate_triton(hidden: Tensor, row_scale: Tensor, ffn: str) -> Tensor:
    check_activation(hidden, row_scale, ffn)
    require_contiguous(hidden=hidden, row_scale=row_scale)
    gated = ffn != "relu"
    rows, wide = len(hidden), hidden.shape[1] // (2 if gated else 1)
    out = torch.empty((rows, wide), dtype=hidden.dtype, device=hidden.device)
    if out.numel():
        columns = min(512, triton.next_power_of_2(wide))
        block_rows = _ACTIVATION_TILE // columns
        _activate[(triton.cdiv(rows, block_rows), triton.cdiv(wide, columns))](
            hidden,
            row_scale,
            out,
            rows,
            wide=wide,
            gated=gated,
            is_silu=ffn == "gated_silu",
            block_rows=block_rows,
            block_columns=columns,
            num_warps=4,
            **early_launch(hidden.device, rows),
        )
    return out


def rms_norm_triton(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """Compute what `rms_norm_reference` does. The product with the gain is rounded once."""
    d = x.shape[-1]
    require_tensor("gain", gain, d=d)
    require_contiguous(x=x, gain=gain)
    out = torch.empty(x.shape, dtype=gain.dtype, device=x.device)
    if out.numel():
        rows, columns = x.numel() // d, triton.next_power_of_2(d)
        block_rows = max(1, _NORM_TILE // columns)
        _norm[(triton.cdiv(rows, block_rows),)](
            x,
            gain,
            out,
            rows,
            eps,
            d=d,
            block_rows=block_rows,
            block_d=columns,
            num_warps=4,
            **early_launch(x.device),
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
    early: tl.constexpr,
) -> None:
    await_kernel_before(early)
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


@triton.jit(do_not_specialize=["rows"])
def _activate(
    p_hidden: tl.tensor,
    p_scale: tl.tensor,
    p_out: tl.tensor,
    rows: tl.tensor,
    wide: tl.constexpr,
    gated: tl.constexpr,
    is_silu: tl.constexpr,
    block_rows: tl.constexpr,
    block_columns: tl.constexpr,
    early: tl.constexpr,
) -> None:
    await_kernel_before(early)
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
        twice = x if is_silu else 1.5957691216057308 * (x + 0.044715 * x * x * x)  # 2 sqrt(2 / pi)
        result = x / (1.0 + tl.exp(-twice)) * value
    else:
        result = tl.where(x < 0.0, 0.0, x)  # NaN stays NaN, which a maximum would hide
    p_result = p_out + o_row[:, None] * wide + o_column[None, :]
    tl.store(p_result, result.to(p_out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _norm(
    p_x: tl.tensor,
    p_gain: tl.tensor,
    p_out: tl.tensor,
    rows: tl.tensor,
    eps: tl.tensor,
    d: tl.constexpr,
    block_rows: tl.constexpr,
    block_d: tl.constexpr,
    early: tl.constexpr,
) -> None:
    await_kernel_before(early)
    o_row = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    o_d = tl.arange(0, block_d)
    in_row = o_d < d
    inside = (o_row < rows)[:, None] & in_row[None, :]
    o_x = o_row[:, None] * d + o_d[None, :]
    x = tl.load(p_x + o_x, mask=inside, other=0.0).to(tl.float32)
    gain = tl.load(p_gain + o_d, mask=in_row, other=0.0).to(tl.float32)
    factor = tl.rsqrt(tl.sum(x * x, axis=1) / d + eps)
    normed = x * factor[:, None] * gain[None, :]
    tl.store(p_out + o_x, normed.to(p_out.dtype.element_ty), mask=inside)
