"""The encoder's gates on a GPU: activation, sigmoid and product in one pass.

What makes it fast: it reads and writes each element once, 16 bytes at a time. Rows of a slice are
read in place.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.decode.shapes import require_contiguous
from grace.kernels.encoder.gates import check_gate, check_open_hidden

__all__ = ["gate_triton", "open_hidden_triton"]

_TILE = 2048  # elements of a program


def gate_triton(x: Tensor, opening: Tensor) -> Tensor:
    """As `gate_reference`; x contiguous in d."""
    check_gate(x, opening)
    require_contiguous(opening=opening)
    return _let_through(x, opening, of_request=False)


def open_hidden_triton(hidden: Tensor, openings: Tensor) -> Tensor:
    """As `open_hidden_reference`; hidden contiguous in d_ff."""
    check_open_hidden(hidden, openings)
    require_contiguous(openings=openings)
    return _let_through(hidden, openings, of_request=True)


def _let_through(x: Tensor, opening: Tensor, of_request: bool) -> Tensor:
    if x.stride(2) != 1:
        raise ValueError(f"rows must be contiguous, got strides {list(x.stride())}")
    requests, tokens, d = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel():
        columns = min(512, triton.next_power_of_2(d))
        rows = max(1, _TILE // columns)
        grid = (triton.cdiv(requests * tokens, rows), triton.cdiv(d, columns))
        _let[grid](
            *(x, opening, out, requests * tokens, tokens, *x.stride()[:2]),
            d=d,
            of_request=of_request,
            block_rows=rows,
            block_d=columns,
            num_warps=4,
        )
    return out


@triton.jit(do_not_specialize=["rows", "tokens"])
def _let(
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
