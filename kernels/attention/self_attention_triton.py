"""Self-attention over the paged prefix on a GPU, and the gather that rearranges its block table.

The kernel is bound by its reads: one query over at most 8 keys leaves a tensor core idle.

* Nothing is copied: a block id is the row of a step's QKV output, and 8 neighbouring elements of a
  head are one 16-byte load. A program issues all its loads before the first product.
* Neighbouring rows continue the same parents. A program has several rows of a few heads, so
  siblings share reads through the L1 cache, which leaves the L2's bandwidth to what differs.
* 8 elements per thread leave room for enough threads to hide the latency of reading the table.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.attention.self_attention import NO_BLOCK, PagedPrefixes, check_rearrange
from grace.kernels.checks import require_contiguous
from grace.kernels.triton_parts import await_kernel_before, early_launch

_NO_BLOCK = tl.constexpr(NO_BLOCK)
_REARRANGED_ROWS = 128  # of a program


class _Tiles(NamedTuple):
    """A program computes `rows` x `heads`, both powers of two, with `warps` warps."""

    rows: int
    heads: int
    warps: int


def self_attention_triton(given: PagedPrefixes) -> Tensor:
    """Compute what `self_attention_reference` does, for d_head up to 256 and any pool type."""
    given.check()
    pool, table, step, bias = given.pool, given.table, given.step, given.bias
    require_contiguous(pool=pool, table=table, bias=bias)
    rows, length = table.shape
    _, _, heads, d_head = pool.shape
    d_pad = triton.next_power_of_2(d_head)
    tiles = _tiles_of(step, len(pool) < rows, heads, d_pad)
    dtype = given.dtype or pool.dtype
    out = torch.empty((rows, heads * d_head), dtype=dtype, device=pool.device)
    if out.numel():
        grid = (triton.cdiv(rows, tiles.rows), triton.cdiv(heads, tiles.heads))
        _attend[grid](
            pool,
            table,
            bias,
            given.row_scale,
            out,
            rows,
            given.scale,
            length=length,
            step=step,
            heads=heads,
            d_head=d_head,
            d_pad=d_pad,
            block_rows=tiles.rows,
            block_heads=tiles.heads,
            num_warps=tiles.warps,
            **early_launch(pool.device, rows),
        )
    return out


def rearrange_triton(table: Tensor, parents: Tensor, step: int) -> Tensor:
    """Compute what `rearrange_reference` does; parents are rows of the table, unchecked here.

    It is one gather, whose launch is most of its time.
    """
    check_rearrange(table, parents, step)
    require_contiguous(table=table, parents=parents)
    rows, length = parents.numel(), table.shape[1]
    new = torch.empty((rows, length), dtype=torch.int32, device=table.device)
    if rows:
        _gather[(triton.cdiv(rows, _REARRANGED_ROWS),)](
            table,
            parents,
            new,
            rows,
            step=step,
            length=length,
            block_rows=_REARRANGED_ROWS,
            **early_launch(table.device, rows),
        )
    return new


def _tiles_of(step: int, shared: bool, heads: int, d_pad: int) -> _Tiles:
    """Give a thread 8 elements; the rest was found on an H200, at 16 heads of 128 in bfloat16.

    Small programs read long prefixes fastest. Short prefixes, and a pool with fewer blocks than
    rows (layer 0's table), are faster with more heads of a row in one program.
    """
    wide = shared or step < 2
    block_heads = min(4, triton.next_power_of_2(heads)) if wide else 1
    block_rows = max(1, (2048 if wide else 512) // (block_heads * d_pad))
    warps = block_rows * block_heads * d_pad // 256
    return _Tiles(block_rows, block_heads, min(8, max(1, warps)))


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
    early: tl.constexpr,
) -> None:
    await_kernel_before(early)
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
        if p_scale is not None:
            factors += (tl.load(p_scale + block, mask=live, other=0.0),)
        b_bias = tl.load(p_bias + o_head * length + (step - j), mask=live, other=0.0)
        biases += (b_bias.to(tl.float32),)

    scores: tl.tuple = ()
    for j in tl.static_range(step + 1):
        score = scale * tl.sum(query * keys[j].to(tl.float32), axis=1)  # [pairs]
        if p_scale is not None:
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
        if p_scale is not None:
            weight *= factors[j]
        mixed += weight[:, None] * values[j].to(tl.float32)
    mixed = mixed / total[:, None]
    p_rows = (p_out + o_row * (heads * d_head) + o_head * d_head)[:, None] + o_d[None, :]
    tl.store(p_rows, mixed.to(p_out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _gather(
    p_table: tl.tensor,
    p_parents: tl.tensor,
    p_new: tl.tensor,
    rows: tl.tensor,
    step: tl.constexpr,
    length: tl.constexpr,
    block_rows: tl.constexpr,
    early: tl.constexpr,
) -> None:
    await_kernel_before(early)
    o_row = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    o_position = tl.arange(0, triton.next_power_of_2(length))[None, :]
    live = o_row < rows
    parent = tl.load(p_parents + o_row, mask=live, other=0).to(tl.int64)
    blocks = tl.load(
        p_table + parent[:, None] * length + o_position,
        mask=live[:, None] & (o_position <= step),
        other=_NO_BLOCK,
    )
    p_rows = p_new + o_row[:, None] * length + o_position
    tl.store(p_rows, blocks, mask=live[:, None] & (o_position < length))
