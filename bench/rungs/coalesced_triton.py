"""The paper's short-sequence self-attention: many beam rows coalesced into one tensor-core tile.

A program takes `rows` beam rows of one head, with t + 1 keys each. Their scores are one
[rows, rows * (t + 1)] product, and a block-diagonal mask leaves every row its own keys. Only
1 / rows of the arithmetic is useful; the point is that loads are wide and regular. The fused form
reads the QKV projection's output in place and writes the step's keys and values into the cache.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.bench.rungs.attention import DenseCache


class Tile(NamedTuple):
    """How a launch cuts its work: beam rows per program, at least 16 for tensor cores; warps."""

    rows: int = 16
    warps: int = 4


DEFAULT_TILE = Tile()
TILES = tuple(Tile(*shape) for shape in ((16, 2), (16, 4), (32, 4), (32, 8), (64, 4), (64, 8)))
"""The choices of a measurement, as of the paper's autotuning."""


def attend_coalesced(
    qkv: Tensor, cache: DenseCache, step: int, scale: float, tile: Tile, *, fused: bool
) -> Tensor:
    """Do what attend_sdpa does; if `fused`, write the step's keys and values, too."""
    rows, _, heads, d_head = qkv.shape
    if not (qkv.is_contiguous() and cache.keys.is_contiguous() and cache.values.is_contiguous()):
        raise ValueError("qkv and the cache must be contiguous; copy them before")
    out = torch.empty((rows, heads * d_head), dtype=qkv.dtype, device=qkv.device)
    _coalesced_kernel[(triton.cdiv(rows, tile.rows), heads)](
        qkv,
        cache.keys,
        cache.values,
        out,
        rows,
        cache.keys.shape[1],
        scale,
        step=step,
        heads=heads,
        d_head=d_head,
        d_tile=max(16, triton.next_power_of_2(d_head)),
        block_rows=tile.rows,
        keys=triton.next_power_of_2(step + 1),
        fused=fused,
        num_warps=tile.warps,
    )
    return out


@triton.jit(do_not_specialize=["rows", "cache_rows"])
def _coalesced_kernel(
    p_qkv: tl.tensor,  # [rows, 3, H, d]
    p_keys: tl.tensor,  # [L, cache_rows, H, d]
    p_values: tl.tensor,
    p_out: tl.tensor,  # [rows, H * d]
    rows: tl.tensor,
    cache_rows: tl.tensor,
    scale: tl.tensor,
    step: tl.constexpr,
    heads: tl.constexpr,
    d_head: tl.constexpr,
    d_tile: tl.constexpr,
    block_rows: tl.constexpr,
    keys: tl.constexpr,
    fused: tl.constexpr,
) -> None:
    i_head = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0).to(tl.int64) * block_rows
    b_place = tl.arange(0, block_rows)
    b_dim = tl.arange(0, d_tile)
    b_key = tl.arange(0, block_rows * keys)
    b_owner, b_position = b_key // keys, b_key % keys

    b_row = first + b_place  # [block_rows]
    in_dim = b_dim[None, :] < d_head
    in_rows = (b_row[:, None] < rows) & in_dim
    o_row = b_row[:, None] * (3 * heads * d_head) + i_head * d_head + b_dim[None, :]
    b_q = tl.load(p_qkv + o_row, mask=in_rows, other=0.0)  # [block_rows, d_tile]

    b_key_row = first + b_owner  # [block_rows * keys]
    o_key = b_position.to(tl.int64) * cache_rows + b_key_row
    p_k = p_keys + o_key * (heads * d_head) + i_head * d_head
    p_v = p_values + o_key * (heads * d_head) + i_head * d_head
    p_new_k, p_new_v = p_k, p_v
    is_new = b_position == step
    if fused:
        # One load per key, from qkv or the cache: the kernel chooses a pointer and not a value.
        p_own = p_qkv + b_key_row * (3 * heads * d_head) + i_head * d_head
        p_k = tl.where(is_new, p_own + heads * d_head, p_k)
        p_v = tl.where(is_new, p_own + 2 * heads * d_head, p_v)
    there = (b_key_row < rows) & (b_position <= step)
    in_keys = there[:, None] & in_dim
    b_k = tl.load(p_k[:, None] + b_dim[None, :], mask=in_keys, other=0.0)
    b_v = tl.load(p_v[:, None] + b_dim[None, :], mask=in_keys, other=0.0)
    if fused:
        tl.store(p_new_k[:, None] + b_dim[None, :], b_k, mask=in_keys & is_new[:, None])
        tl.store(p_new_v[:, None] + b_dim[None, :], b_v, mask=in_keys & is_new[:, None])

    # a row of scores for each row, over all the tile's keys
    b_scores = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale
    own = (b_place[:, None] == b_owner[None, :]) & (b_position[None, :] <= step)
    b_scores = tl.where(own, b_scores, float("-inf"))
    b_weights = tl.exp(b_scores - tl.max(b_scores, axis=1)[:, None])
    b_weights /= tl.sum(b_weights, axis=1)[:, None]
    b_out = tl.dot(b_weights.to(b_v.dtype), b_v, input_precision="ieee")  # [block_rows, d_tile]
    o_out = b_row[:, None] * (heads * d_head) + i_head * d_head + b_dim[None, :]
    tl.store(p_out + o_out, b_out.to(p_out.dtype.element_ty), mask=in_rows)
