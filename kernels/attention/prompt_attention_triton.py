"""Attention of a causal decoder on a GPU, over prompts and the own tokens of beams.

* A program takes a block of queries of one key head through the prompt: the beams of a request
  share each read of its keys and values, and so do the query heads of a key head.
* The same program then reads the beams' own tokens by block ids. So no result is merged in memory.
* A program reads the length of its prompt from memory, so one launch fits any lengths.

The placing of heads is one pass over the product, bound by memory.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.attention.prompt_attention import Heads, PromptQueries, PromptTokens
from grace.kernels.checks import require_contiguous, require_tensor
from grace.kernels.devices import side_of_tile
from grace.kernels.triton_parts import LOG2_E, add_keys, await_kernel_before, early_launch, padded

_PLACED_ROWS = 16  # of a program


class _Tiles(NamedTuple):
    """A program has `queries` queries and reads `keys` keys at a time."""

    queries: int
    keys: int
    warps: int
    stages: int


def causal_attention_triton(given: PromptTokens) -> Tensor:
    """Compute `causal_attention_reference`. Results for tokens of no prompt are undefined."""
    return _attended(given, None, given.longest)


def prompt_attention_triton(given: PromptQueries) -> Tensor:
    require_contiguous(pool=given.pool, table=given.table)
    return _attended(given, given, len(given.queries) // (len(given.offsets) - 1))


def _attended(given: PromptTokens, own: PromptQueries | None, beams: int) -> Tensor:
    """`beams` is the number of rows per request or, without `own`, the most that one has."""
    group = given.check()
    queries, pairs = given.queries, given.pairs
    require_contiguous(queries=queries, pairs=pairs)
    rows, inner = queries.shape
    _, _, kv_heads, d_head = pairs.shape
    requests = len(given.offsets) - 1
    tiles = _tiles_of(beams * group, d_head, queries)
    out = torch.empty((rows, inner), dtype=given.dtype or queries.dtype, device=queries.device)
    if rows:
        _attend[(triton.cdiv(beams * group, tiles.queries), kv_heads, requests)](
            queries,
            pairs,
            given.offsets,
            None if own is None else own.pool,
            None if own is None else own.table,
            out,
            given.scale * LOG2_E.value,
            beams,
            length=0 if own is None else own.table.shape[1],
            step=0 if own is None else own.step,
            kv_heads=kv_heads,
            group=group,
            d_head=d_head,
            d_pad=padded(d_head),
            block_queries=tiles.queries,
            block_keys=tiles.keys,
            stages=tiles.stages,
            num_warps=tiles.warps,
            **early_launch(queries.device, rows),
        )
    return out


def _tiles_of(count: int, d_head: int, queries: Tensor) -> _Tiles:
    if queries.dtype == torch.float32:
        return _Tiles(16, 32, warps=4, stages=1)
    wide = d_head > 128
    most = side_of_tile(queries.device, 64, wide=wide)
    return _Tiles(min(most, padded(count)), most, warps=4, stages=2 if wide else 3)


@triton.jit
def _pair(
    p_head: tl.tensor,
    o_token: tl.tensor,
    o_d: tl.tensor,
    present: tl.tensor,
    kv_heads: tl.constexpr,
    d_head: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return keys and values of tokens, [tokens, d_pad] each."""
    p_key = p_head + o_token.to(tl.int64)[:, None] * (2 * kv_heads * d_head) + o_d
    keys = tl.load(p_key, mask=present, other=0.0)
    return keys, tl.load(p_key + kv_heads * d_head, mask=present, other=0.0)


@triton.jit(do_not_specialize=["beams"])
def _attend(
    p_queries: tl.tensor,
    p_pairs: tl.tensor,
    p_offsets: tl.tensor,
    p_pool: tl.tensor,
    p_table: tl.tensor,
    p_out: tl.tensor,
    scale: tl.tensor,
    beams: tl.tensor,
    length: tl.constexpr,
    step: tl.constexpr,
    kv_heads: tl.constexpr,
    group: tl.constexpr,
    d_head: tl.constexpr,
    d_pad: tl.constexpr,
    block_queries: tl.constexpr,
    block_keys: tl.constexpr,
    stages: tl.constexpr,
    early: tl.constexpr,
) -> None:
    await_kernel_before(early)
    i_head = tl.program_id(1).to(tl.int64)
    i_request = tl.program_id(2).to(tl.int64)
    begin, end = tl.load(p_offsets + i_request), tl.load(p_offsets + i_request + 1)
    i_block = tl.program_id(0)
    if p_table is None:  # the last blocks have the most keys, and begin first
        i_block = tl.num_programs(0) - 1 - i_block
    o_query = i_block.to(tl.int64) * block_queries + tl.arange(0, block_queries)
    if p_table is None:  # the rows of a request are its prompt's tokens
        if i_block * block_queries >= (end - begin) * group:
            return
        o_row = begin + o_query // group
        live = o_row < end
        end = tl.minimum(end, begin + ((i_block + 1) * block_queries - 1) // group + 1)
        # Every query of the block counts the keys up to that of its first row.
        seen = begin + (i_block * block_queries // group + 1) // block_keys * block_keys
    else:
        o_row = i_request * beams + o_query // group
        live = o_query < beams * group
        seen = begin + (end - begin) // block_keys * block_keys
    o_d = tl.arange(0, d_pad)[None, :]
    in_head = o_d < d_head
    inside = live[:, None] & in_head
    # Query heads of a key head are neighbours.
    o_own = (o_row * kv_heads + i_head) * group + o_query % group
    queries = tl.load(p_queries + o_own[:, None] * d_head + o_d, mask=inside, other=0.0)

    highest = tl.full((block_queries,), float("-inf"), tl.float32)
    total = tl.zeros((block_queries,), tl.float32)
    mixed = tl.zeros((block_queries, d_pad), tl.float32)
    p_head = p_pairs + i_head * d_head
    for start in tl.range(begin, seen, block_keys, num_stages=stages):
        o_key = start + tl.arange(0, block_keys)
        keys, values = _pair(p_head, o_key, o_d, in_head, kv_heads, d_head)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        highest, total, mixed = add_keys(scores, values, highest, total, mixed)
    for start in tl.range(seen, end, block_keys, num_stages=1):
        o_key = start + tl.arange(0, block_keys)
        present = (o_key < end)[:, None] & in_head
        keys, values = _pair(p_head, o_key, o_d, present, kv_heads, d_head)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        counts = (o_key < end)[None, :]
        if p_table is None:
            counts = counts & (o_key[None, :] <= o_row[:, None])
        scores = tl.where(counts, scores, float("-inf"))
        highest, total, mixed = add_keys(scores, values, highest, total, mixed)
    asked = queries.to(tl.float32)
    for place in tl.static_range(1, step + 1):
        block = tl.load(p_table + o_row * length + place, mask=live, other=0)
        key, value = _pair(p_pool + i_head * d_head, block, o_d, inside, kv_heads, d_head)
        score = tl.sum(asked * key.to(tl.float32), axis=1) * scale
        reached = tl.maximum(highest, score)
        weight, shrunk = tl.exp2(score - reached), tl.exp2(highest - reached)
        total = total * shrunk + weight
        mixed = mixed * shrunk[:, None] + weight[:, None] * value.to(tl.float32)
        highest = reached
    mixed = tl.where((total == 0.0)[:, None], 0.0, mixed / total[:, None])  # NaN stays NaN
    tl.store(p_out + o_own[:, None] * d_head + o_d, mixed.to(p_out.dtype.element_ty), mask=inside)


def place_heads_triton(given: Heads, pairs: Tensor) -> Tensor:
    kv_heads, d_head = given.check()
    rows, heads, product = len(given.product), given.heads, given.product
    queries = torch.empty((rows, heads * d_head), dtype=product.dtype, device=product.device)
    require_tensor("pairs", pairs, rows=rows, two=2, kv_heads=kv_heads, d_head=d_head)
    require_contiguous(product=product, turns=given.turns, pairs=pairs)
    require_contiguous(positions=given.positions)
    if rows:
        _place[(triton.cdiv(rows, _PLACED_ROWS), heads + 2 * kv_heads)](
            product,
            given.row_scale,
            given.bias,
            given.gains,
            given.positions,
            given.turns,
            queries,
            pairs,
            rows,
            given.eps,
            heads=heads,
            kv_heads=kv_heads,
            half=d_head // 2,
            half_pad=triton.next_power_of_2(d_head // 2),
            block_rows=_PLACED_ROWS,
            num_warps=4,
            **early_launch(pairs.device, rows),
        )
    return queries


@triton.jit(do_not_specialize=["rows"])
def _place(
    p_product: tl.tensor,
    p_scale: tl.tensor,
    p_bias: tl.tensor,
    p_gains: tl.tensor,
    p_positions: tl.tensor,
    p_turns: tl.tensor,
    p_queries: tl.tensor,
    p_pairs: tl.tensor,
    rows: tl.tensor,
    eps: tl.tensor,
    heads: tl.constexpr,
    kv_heads: tl.constexpr,
    half: tl.constexpr,
    half_pad: tl.constexpr,
    block_rows: tl.constexpr,
    early: tl.constexpr,
) -> None:
    await_kernel_before(early)
    o_row = tl.program_id(0).to(tl.int64) * block_rows + tl.arange(0, block_rows)
    i_head = tl.program_id(1)
    o_half = tl.arange(0, half_pad)[None, :]
    live, inside = o_row < rows, o_half < half
    there = live[:, None] & inside
    is_turned = i_head < heads + kv_heads
    o_in = (o_row * (heads + 2 * kv_heads) + i_head)[:, None] * (2 * half) + o_half
    first = tl.load(p_product + o_in, mask=there, other=0.0).to(tl.float32)
    second = tl.load(p_product + o_in + half, mask=there, other=0.0).to(tl.float32)
    if p_scale is not None:
        factor = tl.load(p_scale + o_row, mask=live, other=0.0)[:, None]
        first, second = first * factor, second * factor
    if p_bias is not None:
        p_own = p_bias + i_head * (2 * half) + o_half
        first += tl.load(p_own, mask=inside, other=0.0).to(tl.float32)
        second += tl.load(p_own + half, mask=inside, other=0.0).to(tl.float32)
    if p_gains is not None:
        square = (tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)) / (2 * half)
        norm = tl.where(is_turned, tl.rsqrt(square + eps), 1.0)[:, None]
        p_gain = p_gains + tl.where(i_head < heads, 0, 2 * half) + o_half
        has_gain = inside & is_turned
        first *= norm * tl.load(p_gain, mask=has_gain, other=1.0).to(tl.float32)
        second *= norm * tl.load(p_gain + half, mask=has_gain, other=1.0).to(tl.float32)
    position = tl.load(p_positions + o_row, mask=live, other=0).to(tl.int64)
    p_turn = p_turns + position[:, None] * (2 * half) + o_half
    cosine = tl.load(p_turn, mask=there & is_turned, other=1.0)
    sine = tl.load(p_turn + half, mask=there & is_turned, other=0.0)
    turned_first = first * cosine - second * sine
    turned_second = second * cosine + first * sine
    if i_head < heads:
        p_out = p_queries + (o_row * heads + i_head)[:, None] * (2 * half) + o_half
        tl.store(p_out, turned_first.to(p_queries.dtype.element_ty), mask=there)
        tl.store(p_out + half, turned_second.to(p_queries.dtype.element_ty), mask=there)
    else:
        o_pair = (o_row * (2 * kv_heads) + i_head - heads)[:, None] * (2 * half) + o_half
        tl.store(p_pairs + o_pair, turned_first.to(p_pairs.dtype.element_ty), mask=there)
        tl.store(p_pairs + o_pair + half, turned_second.to(p_pairs.dtype.element_ty), mask=there)
