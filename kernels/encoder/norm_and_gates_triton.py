"""The encoder's RMS norm and gates on a GPU: one pass over memory each.

What makes it fast: an element is read and written once, 16 bytes at a time, and a normed row stays
in registers in between. Rows of a slice, such as the summaries at the head of every sequence, are
read in place.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.checks import require_contiguous
from grace.kernels.encoder.norm_and_gates import check_gate, check_open_hidden, check_rms_norm

_TILE = 2048  # elements of a program


def rms_norm_triton(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """Compute what `rms_norm_reference` does for [T, d] or [B, T, d], contiguous in d.

    The result is contiguous. It is multiplied by the gain in float32 and rounded once.
    """
    check_rms_norm(x, gain)
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
            *(batched, gain, out, requests * tokens, tokens, *batched.stride()[:2], eps),
            d=d,
            block_rows=rows,
            block_d=columns,
            num_warps=4,
        )
    return out


def gate_triton(x: Tensor, opening: Tensor) -> Tensor:
    """Compute what `gate_reference` does; x is contiguous in d."""
    check_gate(x, opening)
    require_contiguous(opening=opening)
    return _pass_gate(x, opening, of_request=False)


def open_hidden_triton(hidden: Tensor, openings: Tensor) -> Tensor:
    """Compute what `open_hidden_reference` does; hidden is contiguous in d_ff."""
    check_open_hidden(hidden, openings)
    require_contiguous(openings=openings)
    return _pass_gate(hidden, openings, of_request=True)


def _pass_gate(x: Tensor, opening: Tensor, of_request: bool) -> Tensor:
    if x.stride(2) != 1:
        raise ValueError(f"rows must be contiguous, got strides {list(x.stride())}")
    requests, tokens, d = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel():
        columns = min(512, triton.next_power_of_2(d))
        rows = max(1, _TILE // columns)
        grid = (triton.cdiv(requests * tokens, rows), triton.cdiv(d, columns))
        _gate[grid](
            *(x, opening, out, requests * tokens, tokens, *x.stride()[:2]),
            d=d,
            of_request=of_request,
            block_rows=rows,
            block_d=columns,
            num_warps=4,
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
) -> None:
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


@triton.jit(do_not_specialize=["rows", "tokens"])
def _gate(
    p_x: tl.tensor,
    p_opening: tl.tensor,
    p_out: tl.tensor,
    rows: tl.tensor,
    tokens: tl.tensor,
    x_request: tl.tensor,
    x_token: tl.tensor,
    d: tl.constexpr,
    of_request: tl.constexpr,
    block_rows: tl.constexpr,
    block_d: tl.constexpr,
) -> None:
    o_row = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    o_d = tl.program_id(1) * block_d + tl.arange(0, block_d)
    inside = (o_row < rows)[:, None] & (o_d < d)[None, :]
    o_request = o_row // tokens
    o_x = o_request * x_request + o_row % tokens * x_token
    x = tl.load(p_x + o_x[:, None] + o_d[None, :], mask=inside, other=0.0).to(tl.float32)
    o_opening = o_request if of_request else o_row
    p_row = p_opening + o_opening[:, None] * d + o_d[None, :]
    opening = tl.load(p_row, mask=inside, other=0.0).to(tl.float32)
    passed = 1.0 / (1.0 + tl.exp(-opening))
    if of_request:
        x = tl.where(x < 0.0, 0.0, 2.0 * x)  # NaN stays NaN, which a maximum would hide
    p_result = p_out + o_row[:, None] * d + o_d[None, :]
    tl.store(p_result, (x * passed).to(p_out.dtype.element_ty), mask=inside)
