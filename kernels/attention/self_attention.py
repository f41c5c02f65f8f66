"""Self-attention of one new token per beam over the beam's own prefix, and its block table.

The keys and values of a token are one block of the pool. A row of the table lists the blocks of
its prefix, so a beam search moves block ids and never keys or values.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from grace.kernels.checks import require_optional, require_tensor, sizes_of
from grace.kernels.products.fp8_products import in_type

NO_BLOCK = -1  # the entry of a block table where a beam has no token yet


@dataclass(frozen=True, slots=True)
class PagedPrefixes:
    """The prefixes of beam rows in a pool of blocks."""

    pool: Tensor  # [blocks, 3, H, d]: q, k, v of one token of one beam row
    table: Tensor  # int32 [rows, L]: block of a row's token j; columns beyond `step` are not read
    step: int
    bias: Tensor  # [H, L] by distance
    scale: float
    # float32 [blocks], multiplies the block's q, k and v: an RMS factor not yet applied
    row_scale: Tensor | None = None
    dtype: torch.dtype | None = None  # of the result; None: the pool's type

    def check(self) -> None:
        if self.pool.dim() != 4 or self.pool.shape[1] != 3:
            raise ValueError(f"pool must be [blocks, 3, heads, d_head], got {[*self.pool.shape]}")
        num_blocks, _, heads, _ = self.pool.shape
        _, length = require_table(self.table, self.step)
        require_tensor("bias", self.bias, heads=heads, sid_length=length)
        require_optional("row_scale", self.row_scale, torch.float32, blocks=num_blocks)


def self_attention_reference(given: PagedPrefixes) -> Tensor:
    """Return softmax_j(scale * q k_j + bias[h, step - j]) v_j over a row's prefix j = 0..step.

    -> [rows, H * d], computed in float32; q of a row is that of its block at `step`
    """
    given.check()
    pool, table, step, bias = given.pool, given.table, given.step, given.bias
    _require_ids("table", table[:, : step + 1], len(pool), "block")
    blocks = table[:, : step + 1].long()
    qkv = pool[blocks].float()  # [rows, step + 1, 3, H, d]
    if given.row_scale is not None:
        qkv = qkv * given.row_scale[blocks][..., None, None, None]
    query, keys, values = qkv[:, step:, 0], qkv[:, :, 1], qkv[:, :, 2]
    by_position = bias[:, : step + 1].float().flip(1).T  # [step + 1, H]
    scores = given.scale * (query * keys).sum(dim=-1) + by_position
    # A softmax over another axis than the last rounds a thread's last heads differently.
    by_head = scores.transpose(1, 2).contiguous()
    weights = torch.softmax(by_head, dim=-1).transpose(1, 2)  # [rows, step + 1, H]
    mixed = (weights.unsqueeze(-1) * values).sum(dim=1).flatten(1)
    return in_type(mixed, given.dtype or pool.dtype)


def rearrange_reference(table: Tensor, parents: Tensor, step: int) -> Tensor:
    """Return the table of new rows: row i continues row parents[i] and takes its blocks 0..step.

    table    int32 [rows, L]
    parents  int32 [B, k]   rows of `table`
    -> int32 [B * k, L], NO_BLOCK at the positions after `step`
    """
    check_rearrange(table, parents, step)
    _require_ids("parents", parents, len(table), "row")
    new = table.new_full((parents.numel(), table.shape[1]), NO_BLOCK)
    new[:, : step + 1] = table[parents.flatten().long(), : step + 1]
    return new


def check_rearrange(table: Tensor, parents: Tensor, step: int) -> None:
    require_table(table, step)
    sizes_of("parents", parents, "requests beams", torch.int32)


def require_table(table: Tensor, step: int) -> tuple[int, int]:
    """Return the rows and the length of a block table that has the step."""
    rows, length = sizes_of("table", table, "rows sid_length", torch.int32)
    if not 0 <= step < length:
        raise ValueError(f"step must be 0..{length - 1}, got {step}")
    return rows, length


def _require_ids(name: str, ids: Tensor, count: int, noun: str) -> None:
    wrong = (ids < 0) | (ids >= count)
    if wrong.any():
        row, column = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"{name}[{row}, {column}] is {int(ids[row, column])}: not a {noun} 0..{count - 1}"
        )
