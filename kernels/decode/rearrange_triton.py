"""The block table of new beam rows on a GPU: one gather, whose launch is most of its time."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.decode.rearrange import check_rearrange
from grace.kernels.decode.shapes import require_contiguous
from grace.kernels.decode.tensors import NO_BLOCK

__all__ = ["rearrange_triton"]

_ROWS = 128


def rearrange_triton(table: Tensor, parents: Tensor, step: int) -> Tensor:
    """As `rearrange_reference`; parents are rows of the table, which nothing looks up."""
    check_rearrange(table, parents, step)
    require_contiguous(table=table, parents=parents)
    rows, length = parents.numel(), table.shape[1]
    new = torch.empty((rows, length), dtype=torch.int32, device=table.device)
    if rows:
        _gather[(triton.cdiv(rows, _ROWS),)](
            *(table, parents, new, rows),
            step=step,
            length=length,
            length_pad=triton.next_power_of_2(length),
            block_rows=_ROWS,
            no_block=NO_BLOCK,
        )
    return new


@triton.jit(do_not_specialize=["rows"])
def _gather(
    p_table: tl.tensor,
    p_parents: tl.tensor,
    p_new: tl.tensor,
    rows: tl.tensor,
    step: tl.constexpr,
    length: tl.constexpr,
    length_pad: tl.constexpr,
    block_rows: tl.constexpr,
    no_block: tl.constexpr,
) -> None:
    o_row = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    o_position = tl.arange(0, length_pad)[None, :]
    live = o_row < rows
    parent = tl.load(p_parents + o_row, mask=live, other=0).to(tl.int64)
    blocks = tl.load(
        p_table + parent[:, None] * length + o_position,
        mask=live[:, None] & (o_position <= step),
        other=no_block,
    )
    p_rows = p_new + o_row[:, None] * length + o_position
    tl.store(p_rows, blocks, mask=live[:, None] & (o_position < length))
