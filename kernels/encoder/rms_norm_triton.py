"""The encoder's RMS norm on a GPU: one pass over memory.

What makes it fast: an element is read and written once, 16 bytes at a time, and a normed row stays
in registers in between.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.checks import require_contiguous, require_tensor
from grace.kernels.triton_parts import await_kernel_before, early_launch

_TILE = 2048  # elements of a program


def rms_norm_triton(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """Compute what `rms_norm_reference` does. The product with the gain is rounded once."""
    d = x.shape[-1]
    require_tensor("gain", gain, d=d)
    require_contiguous(x=x, gain=gain)
    out = torch.empty(x.shape, dtype=gain.dtype, device=x.device)
    if out.numel():
        rows, columns = x.numel() // d, triton.next_power_of_2(d)
        block_rows = max(1, _TILE // columns)
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
