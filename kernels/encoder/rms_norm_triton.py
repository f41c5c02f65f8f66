"""The encoder's RMS norm on a GPU: one pass over memory.

What makes it fast: an element is read and written once, 16 bytes at a time, and a normed row stays
in registers in between. Rows of a slice are read in place.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.checks import require_contiguous, require_tensor
from grace.kernels.triton_parts import await_kernel_before, early_launch

_TILE = 2048  # elements of a program


def rms_norm_triton(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """Compute what `rms_norm_reference` does for [T, d] or [B, T, d], contiguous in d.

    The result is contiguous. It is multiplied by the gain in float32 and rounded once.
    """
    require_tensor("gain", gain, d=x.shape[-1])
    require_contiguous(gain=gain)
    if x.dim() not in (2, 3) or x.stride(-1) != 1:
        raise ValueError(
            "x must be [T, d] or [B, T, d] and contiguous in d, "
            f"got {list(x.shape)} with strides {list(x.stride())}"
        )
    batched = x if x.dim() == 3 else x.unsqueeze(0)
    requests, tokens, d = batched.shape
    out = torch.empty(x.shape, dtype=gain.dtype, device=x.device)
    if out.numel():
        columns = triton.next_power_of_2(d)
        rows = max(1, _TILE // columns)
        _norm[(triton.cdiv(requests * tokens, rows),)](
            batched,
            gain,
            out,
            requests * tokens,
            tokens,
            *batched.stride()[:2],
            eps,
            d=d,
            block_rows=rows,
            block_d=columns,
            num_warps=4,
            **early_launch(x.device),
        )
    return out


@triton.jit(do_not_specialize=["rows", "tokens"])
def _norm(
    p_x: tl.tensor,
    p_gain: tl.tensor,
    p_out: tl.tensor,
    rows: tl.tensor,
    tokens: tl.tensor,
    x_request: tl.tensor,
    x_token: tl.tensor,
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
    o_x = o_row // tokens * x_request + o_row % tokens * x_token
    x = tl.load(p_x + o_x[:, None] + o_d[None, :], mask=inside, other=0.0).to(tl.float32)
    gain = tl.load(p_gain + o_d, mask=in_row, other=0.0).to(tl.float32)
    factor = tl.rsqrt(tl.sum(x * x, axis=1) / d + eps)
    normed = x * factor[:, None] * gain[None, :]
    p_row = p_out + o_row[:, None] * d + o_d[None, :]
    tl.store(p_row, normed.to(p_out.dtype.element_ty), mask=inside)
