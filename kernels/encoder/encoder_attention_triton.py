"""Attention in an encoder on a GPU: one kernel, whose scores and weights never leave the SM.

What makes it fast: a program takes a block of queries of one head through the request's keys, block
by block with a running maximum, on tensor cores. It reads queries, keys and values in place, in the
layout of the products before it, and writes the layout that the next product reads. The kernel pads
sizes that are not powers of two, and the keys after the last whole block have a tile of their size.
Sequences of different lengths are parts of one launch. In a large launch on Hopper or B200, a copy
engine loads keys and values. It needs no addresses in registers, so more programs fit an SM.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from grace.kernels.checks import require_contiguous, require_whole_rows
from grace.kernels.devices import reads_operands, side_of_tile
from grace.kernels.encoder.encoder_attention import Part, TokenQueries
from grace.kernels.triton_parts import LOG2_E, add_keys, await_kernel_before, early_launch, padded

_MAPPED_REGISTERS = 96  # of a thread, if a copy engine loads its keys and values
_LEAST_MAPPED = 256  # programs; fewer of them leave room enough


class _Tiles(NamedTuple):
    """A program does `queries` queries, with `keys` keys at a time, both powers of two."""

    queries: int
    keys: int
    warps: int
    stages: int


def encoder_attention_triton(given: TokenQueries) -> Tensor:
    """Compute what `encoder_attention_reference` does; rows are contiguous in H * d."""
    given.check()
    queries, keys, values, heads = given.queries, given.keys, given.values, given.heads
    key_mask, bias, parts, out = given.key_mask, given.bias, given.parts, given.out
    require_whole_rows(queries=queries, keys=keys, values=values, key_mask=key_mask, out=out)
    if bias is not None:
        require_contiguous(bias=bias)
    (requests, count, inner), tokens = queries.shape, keys.shape[1]
    if out is None:
        out = torch.empty((requests, count, inner), dtype=queries.dtype, device=queries.device)
    own = (Part(0, count, 0, tokens),) if parts is None else parts
    most_queries = max((part.queries for part in own), default=0)
    key_counts = [part.keys for part in own]
    tiles = _tiles_of(queries, most_queries, key_counts, padded(inner // heads))
    blocks = sum(triton.cdiv(part.queries, tiles.queries) for part in own)
    rest = _rest(key_counts, tiles.keys)
    maps: tuple[TensorDescriptor | None, ...] = (None, None)
    if blocks * heads * requests >= _LEAST_MAPPED and _mappable(keys, values, heads, tiles):
        # Tokens [B, T, inner] are one matrix, [B * T, inner], that is read in blocks.
        shape, block = [requests * tokens, inner], [tiles.keys, inner // heads]
        maps = tuple(TensorDescriptor(x, shape, [x.stride(1), 1], block) for x in (keys, values))
    if out.numel() and blocks:
        _attend[(blocks, heads, requests)](
            *maps,
            queries,
            keys,
            values,
            None if key_mask is None else key_mask.view(torch.uint8),
            bias,
            out,
            given.scale * LOG2_E.value,
            count,
            tokens,
            *queries.stride()[:2],
            *keys.stride()[:2],
            *values.stride()[:2],
            0 if key_mask is None else key_mask.stride(0),
            *out.stride()[:2],
            parts=None if parts is None else tuple(map(tuple, parts)),
            d_head=inner // heads,
            d_pad=padded(inner // heads),
            block_queries=tiles.queries,
            block_keys=tiles.keys,
            block_rest=rest,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
            maxnreg=None if maps[0] is None else _MAPPED_REGISTERS,
            **early_launch(queries.device),
        )
    return out


def _tiles_of(queries: Tensor, count: int, key_counts: Sequence[int], d_pad: int) -> _Tiles:
    """Return what was fastest on an H200 for 16 requests, 8 heads of 64 and up to 260 tokens."""
    most_queries, most_keys, warps = 64, 128, 4  # fewer turns than with 64
    if queries.dtype == torch.float32:
        most_queries, most_keys = 32, 32  # no tensor cores: what the registers hold
    elif d_pad > 128:
        most_keys, warps = 32, 8  # fewer warps could not hold the sums
    elif d_pad > 64:
        most_keys = 64  # with more, two stages leave room for one program per SM
    most_queries, most_keys = (
        side_of_tile(queries.device, most, wide=d_pad > 64) for most in (most_queries, most_keys)
    )
    keys = min(most_keys, padded(max(key_counts, default=0)))
    if keys > 64:
        keys = min(keys, 64, key=lambda tile: (_padded_keys(key_counts, tile), -tile))
    return _Tiles(min(most_queries, padded(count)), keys, warps, stages=2)


def _rest(key_counts: Sequence[int], tile: int) -> int:
    """Return the tile of the keys after the last whole block, or 0."""
    rest = max((each % tile for each in key_counts), default=0)
    return padded(rest) if rest else 0


def _padded_keys(key_counts: Sequence[int], tile: int) -> int:
    return sum(each // tile * tile + _rest(key_counts, tile) for each in key_counts)


def _mappable(keys: Tensor, values: Tensor, heads: int, tiles: _Tiles) -> bool:
    """Return whether a copy engine can load blocks, and few registers hold the rest."""
    (_, tokens, inner), size = keys.shape, keys.element_size()
    block = inner // heads, tiles.queries, tiles.keys
    fits = reads_operands(keys.device) and size == 2 and block == (64, 64, 64)
    return fits and all(
        each.stride(0) == tokens * each.stride(1)
        and each.data_ptr() % 16 == 0
        and each.stride(1) * size % 16 == 0
        for each in (keys, values)
    )


@triton.jit(do_not_specialize=["count", "tokens"])
def _attend(
    key_map: tl.tensor,
    value_map: tl.tensor,
    p_queries: tl.tensor,
    p_keys: tl.tensor,
    p_values: tl.tensor,
    p_mask: tl.tensor,
    p_bias: tl.tensor,
    p_out: tl.tensor,
    scale: tl.tensor,
    count: tl.tensor,
    tokens: tl.tensor,
    query_request: tl.tensor,
    query_token: tl.tensor,
    key_request: tl.tensor,
    key_token: tl.tensor,
    value_request: tl.tensor,
    value_token: tl.tensor,
    mask_request: tl.tensor,
    out_request: tl.tensor,
    out_token: tl.tensor,
    parts: tl.constexpr,
    d_head: tl.constexpr,
    d_pad: tl.constexpr,
    block_queries: tl.constexpr,
    block_keys: tl.constexpr,
    block_rest: tl.constexpr,
    early: tl.constexpr,
) -> None:
    await_kernel_before(early)
    i_head, i_request = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    o_d = tl.arange(0, d_pad)
    in_head = (o_d < d_head)[None, :]
    o_column = i_head * d_head + o_d[None, :]
    first_query, last_query, first_key, last_key, block = 0, count, 0, tokens, tl.program_id(0)
    if parts is not None:
        first_block = 0
        for i in tl.static_range(len(parts)):
            here = tl.program_id(0) >= first_block
            block = tl.where(here, tl.program_id(0) - first_block, block)
            first_query = tl.where(here, parts[i][0], first_query)
            last_query = tl.where(here, parts[i][0] + parts[i][1], last_query)
            first_key = tl.where(here, parts[i][2], first_key)
            last_key = tl.where(here, parts[i][2] + parts[i][3], last_key)
            first_block += (parts[i][1] + block_queries - 1) // block_queries
    o_query = (first_query + block * block_queries + tl.arange(0, block_queries)).to(tl.int64)
    live = (o_query < last_query)[:, None] & in_head  # [queries, d_pad]
    p_query = p_queries + i_request * query_request + o_query[:, None] * query_token + o_column
    queries = tl.load(p_query, mask=live, other=0.0)
    p_key = p_keys + i_request * key_request + o_column
    p_value = p_values + i_request * value_request + o_column
    if p_mask is not None:
        p_mask += i_request * mask_request
    highest = tl.full((block_queries,), float("-inf"), tl.float32)
    total = tl.zeros((block_queries,), tl.float32)
    mixed = tl.zeros((block_queries, d_pad), tl.float32)
    end = last_key - (last_key - first_key) % block_keys
    # What comes from memory is asked for before the products, which it would delay.
    if block_rest > 0:
        o_rest = (end + tl.arange(0, block_rest)).to(tl.int64)
        rest_counts = o_rest < last_key
        present = rest_counts[:, None] & in_head  # [keys, d_pad]
        rest_keys = tl.load(p_key + o_rest[:, None] * key_token, mask=present, other=0.0)
        rest_values = tl.load(p_value + o_rest[:, None] * value_token, mask=present, other=0.0)
        if p_mask is not None:
            rest_counts = tl.load(p_mask + o_rest, mask=rest_counts, other=0) != 0
    for start in tl.range(first_key, end, block_keys):
        o_key = (start + tl.arange(0, block_keys)).to(tl.int64)
        if p_mask is not None:
            counts = tl.load(p_mask + o_key) != 0
        row, column = tl.program_id(2) * tokens + start, tl.program_id(1) * d_head
        keys = _block(key_map, row, column, p_key + o_key[:, None] * key_token, in_head)
        values = _block(value_map, row, column, p_value + o_key[:, None] * value_token, in_head)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        if p_bias is not None:
            scores = _with_bias(scores, p_bias, o_query, o_key, i_head, count, tokens)
        if p_mask is not None:
            scores = tl.where(counts[None, :], scores, float("-inf"))
        highest, total, mixed = add_keys(scores, values, highest, total, mixed)
    if block_rest > 0:
        scores = tl.dot(queries, tl.trans(rest_keys), input_precision="ieee") * scale
        if p_bias is not None:
            scores = _with_bias(scores, p_bias, o_query, o_rest, i_head, count, tokens)
        scores = tl.where(rest_counts[None, :], scores, float("-inf"))
        highest, total, mixed = add_keys(scores, rest_values, highest, total, mixed)
    # A request without any key has a total of 0; NaN stays NaN.
    mixed = tl.where((total == 0.0)[:, None], 0.0, mixed / total[:, None])
    p_row = p_out + i_request * out_request + o_query[:, None] * out_token + o_column
    tl.store(p_row, mixed.to(p_out.dtype.element_ty), mask=live)


@triton.jit
def _block(
    copied: tl.tensor, row: tl.tensor, column: tl.tensor, p_block: tl.tensor, in_head: tl.tensor
) -> tl.tensor:
    """Load a block of a head's keys or values, by a copy engine if it has their map."""
    if copied is not None:
        return copied.load([row, column])
    return tl.load(p_block, mask=in_head, other=0.0)


@triton.jit
def _with_bias(
    scores: tl.tensor,
    p_bias: tl.tensor,
    o_query: tl.tensor,
    o_key: tl.tensor,
    i_head: tl.tensor,
    count: tl.tensor,
    tokens: tl.tensor,
) -> tl.tensor:
    """Add each pair's bias, in powers of two."""
    o_pair = o_key[None, :] - o_query[:, None] + (count - 1)
    known = (o_query < count)[:, None] & (o_key < tokens)[None, :]
    p_pair = p_bias + i_head * (count + tokens - 1) + o_pair
    return scores + tl.load(p_pair, mask=known, other=0.0).to(tl.float32) * LOG2_E
