"""Self-attention of one new token per beam over the beam's own prefix, paged."""

import torch
from torch import Tensor

from grace.kernels.decode.shapes import require_tensor

__all__ = ["check_self_attention", "self_attention_reference"]


def self_attention_reference(
    pool: Tensor,
    table: Tensor,
    step: int,
    bias: Tensor,
    scale: float,
    row_scale: Tensor | None = None,
) -> Tensor:
    """softmax_j(scale * q k_j + bias[h, step - j]) v_j over a row's prefix j = 0..step, in float32.

    pool       [blocks, 3, H, d]   q, k, v of one token of one beam row
    table      int32 [rows, L]     block of a row's token j; columns beyond `step` are not read
    bias       [H, L]              by distance
    row_scale  float32 [blocks]    multiplies the block's q, k and v: an RMS factor not yet applied
    -> [rows, H * d] in the pool's type; q of a row is that of its block at `step`
    """
    check_self_attention(pool, table, step, bias, row_scale)
    _check_blocks(table[:, : step + 1], len(pool))
    blocks = table[:, : step + 1].long()
    qkv = pool[blocks].float()  # [rows, step + 1, 3, H, d]
    if row_scale is not None:
        qkv = qkv * row_scale[blocks][..., None, None, None]
    query, keys, values = qkv[:, step:, 0], qkv[:, :, 1], qkv[:, :, 2]
    by_position = bias[:, : step + 1].float().flip(1).T  # [step + 1, H]
    scores = scale * (query * keys).sum(dim=-1) + by_position
    # Over the last axis: over another one, the last heads of a thread's share round otherwise.
    by_head = scores.transpose(1, 2).contiguous()
    weights = torch.softmax(by_head, dim=-1).transpose(1, 2)  # [rows, step + 1, H]
    return (weights.unsqueeze(-1) * values).sum(dim=1).flatten(1).to(pool.dtype)


def check_self_attention(
    pool: Tensor, table: Tensor, step: int, bias: Tensor, row_scale: Tensor | None
) -> None:
    """Shapes and types alone: on a GPU nothing here waits for the device."""
    if pool.dim() != 4 or pool.shape[1] != 3:
        raise ValueError(f"pool must be [blocks, 3, heads, d_head], got {list(pool.shape)}")
    if table.dim() != 2:
        raise ValueError(f"table must be [rows, sid_length], got {list(table.shape)}")
    num_blocks, _, heads, _ = pool.shape
    rows, length = table.shape
    require_tensor("table", table, torch.int32, rows=rows, sid_length=length)
    require_tensor("bias", bias, heads=heads, sid_length=length)
    if row_scale is not None:
        require_tensor("row_scale", row_scale, torch.float32, blocks=num_blocks)
    if not 0 <= step < length:
        raise ValueError(f"step must be 0..{length - 1}, got {step}")


def _check_blocks(prefix: Tensor, num_blocks: int) -> None:
    wrong = (prefix < 0) | (prefix >= num_blocks)
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"table[{row}, {column}] is {int(prefix[row, column])}: not a block 0..{num_blocks - 1}"
        )
