"""Self-attention over the paged prefix on a GPU: the QKV rows are read where the GEMM wrote them.

One query over at most 8 keys has nothing for a tensor core to do: the kernel is as fast as its
reads. What makes it fast:

* Nothing is copied: a block id is the row of a step's QKV output, and 8 neighbouring elements of a
  head are one 16-byte load. All loads of a program are issued before the first product.
* Rows next to each other continue the same parents, so a program has several rows of a few heads:
  what siblings share is read from the L1 cache, and the L2's bandwidth, the next limit after the
  memory's, goes to what differs.
* A program of 8 elements per thread leaves room for so many threads on an SM that their loads in
  flight hide the table's latency.

It assumes a contiguous pool, and ids that are blocks wherever `step` reaches: nothing is looked up
on the host.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.decode.self_attention import check_self_attention
from grace.kernels.decode.shapes import require_contiguous

__all__ = ["SelfAttentionTiles", "self_attention_in_tiles", "self_attention_triton"]


class SelfAttentionTiles(NamedTuple):
    """A program computes `rows` x `heads`, both powers of two, with so many warps."""

    rows: int
    heads: int
    warps: int


def self_attention_triton(
    pool: Tensor,
    table: Tensor,
    step: int,
    bias: Tensor,
    scale: float,
    row_scale: Tensor | None = None,
) -> Tensor:
    """As `self_attention_reference`, for d_head up to 256 and any pool type."""
    check_self_attention(pool, table, step, bias, row_scale)
    _, _, heads, d_head = pool.shape
    shared = len(pool) < len(table)
    tiles = _tiles_of(step, shared, heads, triton.next_power_of_2(d_head))
    return self_attention_in_tiles(pool, table, step, bias, scale, row_scale, tiles)


def self_attention_in_tiles(
    pool: Tensor,
    table: Tensor,
    step: int,
    bias: Tensor,
    scale: float,
    row_scale: Tensor | None,
    tiles: SelfAttentionTiles,
) -> Tensor:
    """The operation, on shapes known to be right, in tiles of the caller's choice."""
    require_contiguous(pool=pool, table=table, bias=bias)
    rows, length = table.shape
    _, _, heads, d_head = pool.shape
    out = torch.empty((rows, heads * d_head), dtype=pool.dtype, device=pool.device)
    if out.numel():
        grid = (triton.cdiv(rows, tiles.rows), triton.cdiv(heads, tiles.heads))
        _attend[grid](
            *(pool, table, bias, row_scale, out, rows, scale),
            length=length,
            step=step,
            heads=heads,
            d_head=d_head,
            d_pad=triton.next_power_of_2(d_head),
            block_rows=tiles.rows,
            block_heads=tiles.heads,
            scaled=row_scale is not None,
            num_warps=tiles.warps,
        )
    return out


def _tiles_of(step: int, shared: bool, heads: int, d_pad: int) -> SelfAttentionTiles:
    """8 elements per thread; the rest was found on an H200, at 16 heads of 128 in bfloat16.

    Small programs read long prefixes fastest. Short ones, and those of a pool of fewer blocks than
    rows (layer 0's table), want more heads of a row side by side.
    """
    wide = shared or step < 2
    block_heads = min(4, triton.next_power_of_2(heads)) if wide else 1
    block_rows = max(1, (2048 if wide else 512) // (block_heads * d_pad))
    warps = block_rows * block_heads * d_pad // 256
    return SelfAttentionTiles(block_rows, block_heads, min(8, max(1, warps)))


@triton.jit(do_not_specialize=["rows"])
def _attend(
    p_pool: tl.tensor,
    p_table: tl.tensor,
    p_bias: tl.tensor,
    p_scale: tl.tensor,
    p_out: tl.tensor,
    rows: tl.tensor,
    scale: tl.tensor,
    length: tl.constexpr,
    step: tl.constexpr,
    heads: tl.constexpr,
    d_head: tl.constexpr,
    d_pad: tl.constexpr,
    block_rows: tl.constexpr,
    block_heads: tl.constexpr,
    scaled: tl.constexpr,
) -> None:
    o_pair = tl.arange(0, block_rows * block_heads)
    o_row = tl.program_id(0).to(tl.int64) * block_rows + o_pair // block_heads  # [pairs]
    o_head = tl.program_id(1) * block_heads + o_pair % block_heads  # [pairs]
    o_d = tl.arange(0, d_pad)
    live = (o_row < rows) & (o_head < heads)
    inside = live[:, None] & (o_d < d_head)[None, :]  # [pairs, d_pad]

    keys: tl.tuple = ()
    values: tl.tuple = ()
    factors: tl.tuple = ()
    biases: tl.tuple = ()
    query = 0.0
    for j in tl.static_range(step + 1):
        block = tl.load(p_table + o_row * length + j, mask=live, other=0).to(tl.int64)
        p_block = (p_pool + block * (3 * heads * d_head) + o_head * d_head)[:, None] + o_d[None, :]
        keys += (tl.load(p_block + heads * d_head, mask=inside, other=0.0),)
        values += (tl.load(p_block + 2 * heads * d_head, mask=inside, other=0.0),)
        if j == step:
            query = tl.load(p_block, mask=inside, other=0.0).to(tl.float32)
        if scaled:
            factors += (tl.load(p_scale + block, mask=live, other=0.0),)
        b_bias = tl.load(p_bias + o_head * length + (step - j), mask=live, other=0.0)
        biases += (b_bias.to(tl.float32),)

    scores: tl.tuple = ()
    for j in tl.static_range(step + 1):
        score = scale * tl.sum(query * keys[j].to(tl.float32), axis=1)  # [pairs]
        if scaled:
            score *= factors[step] * factors[j]
        scores += (score + biases[j],)

    highest = scores[0]
    for j in tl.static_range(1, step + 1):
        highest = tl.maximum(highest, scores[j])
    total = tl.exp(scores[0] - highest) * 0.0
    mixed = query * 0.0
    for j in tl.static_range(step + 1):
        weight = tl.exp(scores[j] - highest)
        total += weight
        if scaled:
            weight *= factors[j]
        mixed += weight[:, None] * values[j].to(tl.float32)
    mixed = mixed / total[:, None]
    p_rows = (p_out + o_row * (heads * d_head) + o_head * d_head)[:, None] + o_d[None, :]
    tl.store(p_rows, mixed.to(p_out.dtype.element_ty), mask=inside)
