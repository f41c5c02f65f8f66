"""The block table of new beam rows: self-attention's prefix moves as block ids, never as K/V."""

import torch
from torch import Tensor

from grace.kernels.decode.shapes import require_tensor
from grace.kernels.decode.tensors import NO_BLOCK

__all__ = ["check_rearrange", "rearrange_reference"]


def rearrange_reference(table: Tensor, parents: Tensor, step: int) -> Tensor:
    """New row i continues row parents[i]: it takes its blocks of positions 0..step.

    table    int32 [rows, L]
    parents  int32 [B, k]   rows of `table`
    -> int32 [B * k, L], NO_BLOCK at the positions beyond `step`
    """
    check_rearrange(table, parents, step)
    _check_parents(parents, len(table))
    new = table.new_full((parents.numel(), table.shape[1]), NO_BLOCK)
    new[:, : step + 1] = table[parents.flatten().long(), : step + 1]
    return new


def check_rearrange(table: Tensor, parents: Tensor, step: int) -> None:
    """Shapes and types alone: on a GPU nothing here waits for the device."""
    if table.dim() != 2:
        raise ValueError(f"table must be [rows, sid_length], got {list(table.shape)}")
    if parents.dim() != 2:
        raise ValueError(f"parents must be [requests, beams], got {list(parents.shape)}")
    rows, length = table.shape
    requests, beams = parents.shape
    require_tensor("table", table, torch.int32, rows=rows, sid_length=length)
    require_tensor("parents", parents, torch.int32, requests=requests, beams=beams)
    if not 0 <= step < length:
        raise ValueError(f"step must be 0..{length - 1}, got {step}")


def _check_parents(parents: Tensor, rows: int) -> None:
    wrong = (parents < 0) | (parents >= rows)
    if wrong.any():
        request, beam = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"parents[{request}, {beam}] is {int(parents[request, beam])}: not a row 0..{rows - 1}"
        )
