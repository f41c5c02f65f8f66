"""The normaliser of a large vocabulary on a GPU: a product per part, whose logits stay in cache."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.checks import require_contiguous
from grace.kernels.products.log_sums import check_log_sums
from grace.kernels.triton_parts import await_kernel_before, early_launch

_LOGITS = 1 << 23  # of a part: 32 MB, which a large GPU's cache holds
_BLOCK = 4096  # logits that a program reads at a time


def log_sums_triton(rows: Tensor, head: Tensor, row_scale: Tensor) -> Tensor:
    check_log_sums(rows, head, row_scale)
    require_contiguous(rows=rows, row_scale=row_scale)
    count = len(rows)
    sums = torch.empty((count, 2), dtype=torch.float32, device=rows.device)
    out = torch.empty(count, dtype=torch.float32, device=rows.device)
    width = max(_BLOCK, _LOGITS // max(1, count) // _BLOCK * _BLOCK)
    for begin in range(0, len(head) if count else 0, width):
        part = head[begin : begin + width]
        logits = (
            rows @ part.t()
            if rows.dtype == torch.float32
            else torch.mm(rows, part.t(), out_dtype=torch.float32)
        )
        _add[(count,)](
            logits,
            row_scale,
            sums,
            out,
            columns=len(part),
            block=_BLOCK,
            first=begin == 0,
            last=begin + width >= len(head),
            num_warps=8,
            **early_launch(rows.device, count),
        )
    return out


@triton.jit
def _add(
    p_logits: tl.tensor,
    p_scale: tl.tensor,
    p_sums: tl.tensor,
    p_out: tl.tensor,
    columns: tl.constexpr,
    block: tl.constexpr,
    first: tl.constexpr,
    last: tl.constexpr,
    early: tl.constexpr,
) -> None:
    """Add a part's logits to each row's largest logit and sum relative to it."""
    await_kernel_before(early)
    i_row = tl.program_id(0).to(tl.int64)
    o_column = tl.arange(0, block)
    scale = tl.load(p_scale + i_row)
    highest = tl.full((block,), float("-inf"), tl.float32)
    total = tl.zeros((block,), tl.float32)
    for start in tl.range(0, columns, block):
        inside = start + o_column < columns
        logits = tl.load(p_logits + i_row * columns + start + o_column, mask=inside, other=0.0)
        logits = tl.where(inside, logits * scale, float("-inf"))
        reached = tl.maximum(highest, logits)
        base = tl.where(reached == float("-inf"), 0.0, reached)
        total = total * tl.exp(highest - base) + tl.exp(logits - base)
        highest = reached
    most = tl.max(highest, axis=0)
    if not first:
        before, sum_before = tl.load(p_sums + 2 * i_row), tl.load(p_sums + 2 * i_row + 1)
        most = tl.maximum(most, before)
    own = tl.sum(total * tl.exp(highest - most), axis=0)
    if not first:
        own += sum_before * tl.exp(before - most)
    if last:
        tl.store(p_out + i_row, most + tl.log(own))
    else:
        tl.store(p_sums + 2 * i_row, most)
        tl.store(p_sums + 2 * i_row + 1, own)
