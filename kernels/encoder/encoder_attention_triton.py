"""Attention in an encoder on a GPU: one kernel, whose scores and weights never leave the SM.

What makes it fast: a program takes a block of queries of one head through the request's keys, block
by block with a running maximum, on tensor cores. It reads queries, keys and values in place, in the
layout of the products before it, and writes the layout that the next product reads. The kernel pads
sizes that are not powers of two, and the keys after the last whole block have a tile of their size.
Sequences of different lengths are parts of one launch.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.attention_triton import LOG2_E, add_keys, padded
from grace.kernels.checks import require_contiguous
from grace.kernels.encoder.encoder_attention import Part, check_encoder_attention


class _Tiles(NamedTuple):
    """A program does `queries` queries, with `keys` keys at a time, both powers of two."""

    queries: int
    keys: int
    warps: int
    stages: int


def encoder_attention_triton(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    heads: int,
    scale: float,
    key_mask: Tensor | None = None,
    bias: Tensor | None = None,
    parts: Sequence[Part] | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Compute what `encoder_attention_reference` does; rows are contiguous in H * d."""
    check_encoder_attention(queries, keys, values, heads, key_mask, bias, parts, out)
    for name, tensor in (("queries", queries), ("keys", keys), ("values", values), ("out", out)):
        if tensor is not None and tensor.stride(2) != 1:
            raise ValueError(
                f"{name} must be contiguous in inner, got strides {list(tensor.stride())}"
            )
    if key_mask is not None and key_mask.stride(1) != 1:
        raise ValueError(f"key_mask must be contiguous, got strides {list(key_mask.stride())}")
    if bias is not None:
        require_contiguous(bias=bias)
    (requests, count, inner), tokens = queries.shape, keys.shape[1]
    if out is None:
        out = torch.empty((requests, count, inner), dtype=queries.dtype, device=queries.device)
    own = (Part(0, count, 0, tokens),) if parts is None else parts
    most_queries = max((part.queries for part in own), default=0)
    key_counts = [part.keys for part in own]
    tiles = _tiles_of(queries.dtype, most_queries, key_counts, padded(inner // heads))
    blocks = sum(triton.cdiv(part.queries, tiles.queries) for part in own)
    rest = _rest(key_counts, tiles.keys)
    if out.numel() and blocks:
        _attend[(blocks, heads, requests)](
            *(queries, keys, values, None if key_mask is None else key_mask.view(torch.uint8)),
            *(bias, out, scale * LOG2_E.value, count, tokens),
            *(*queries.stride()[:2], *keys.stride()[:2], *values.stride()[:2]),
            *(0 if key_mask is None else key_mask.stride(0), *out.stride()[:2]),
            parts=None if parts is None else tuple(map(tuple, parts)),
            d_head=inner // heads,
            d_pad=padded(inner // heads),
            block_queries=tiles.queries,
            block_keys=tiles.keys,
            block_rest=rest,
            masked=key_mask is not None,
            biased=bias is not None,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
        )
    return out


def _tiles_of(dtype: torch.dtype, queries: int, key_counts: Sequence[int], d_pad: int) -> _Tiles:
    """Return what was fastest on an H200 for 16 requests, 8 heads of 64 and up to 260 tokens."""
    most_queries, most_keys, warps = 64, 128, 4  # fewer turns than with 64
    if dtype == torch.float32:
        most_queries, most_keys = 32, 32  # no tensor cores: what the registers hold
    elif d_pad > 128:
        most_keys, warps = 32, 8  # fewer warps could not hold the sums
    elif d_pad > 64:
        most_keys = 64  # with more, two stages leave room for one program per SM
    keys = min(most_keys, padded(max(key_counts, default=0)))
    if keys > 64:
        keys = min(keys, 64, key=lambda tile: (_padded_keys(key_counts, tile), -tile))
    return _Tiles(
        queries=min(most_queries, padded(queries)),
        keys=keys,
        warps=warps,
        stages=2,
    )


def _rest(key_counts: Sequence[int], tile: int) -> int:
    """Return the tile of the keys after the last whole block, or 0."""
    rest = max((each % tile for each in key_counts), default=0)
    return padded(rest) if rest else 0


def _padded_keys(key_counts: Sequence[int], tile: int) -> int:
    return sum(each // tile * tile + _rest(key_counts, tile) for each in key_counts)


@triton.jit(do_not_specialize=["count", "tokens"])
def _attend(
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
    masked: tl.constexpr,
    biased: tl.constexpr,
) -> None:
    i_head = tl.program_id(1).to(tl.int64)
    i_request = tl.program_id(2).to(tl.int64)
    o_d = tl.arange(0, d_pad)
    in_head = (o_d < d_head)[None, :]
    o_column = i_head * d_head + o_d[None, :]
    first_query, last_query, first_key, last_key = 0, count, 0, tokens
    block = tl.program_id(0)
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
    p_counts = p_mask
    if masked:
        p_counts += i_request * mask_request

    highest = tl.full((block_queries,), float("-inf"), tl.float32)
    total = tl.zeros((block_queries,), tl.float32)
    mixed = tl.zeros((block_queries, d_pad), tl.float32)
    end = last_key - (last_key - first_key) % block_keys
    for start in tl.range(first_key, end, block_keys):
        o_key = (start + tl.arange(0, block_keys)).to(tl.int64)
        keys = tl.load(p_key + o_key[:, None] * key_token, mask=in_head, other=0.0)
        values = tl.load(p_value + o_key[:, None] * value_token, mask=in_head, other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        if biased:
            scores = _with_bias(scores, p_bias, o_query, o_key, i_head, count, tokens)
        if masked:
            counts = tl.load(p_counts + o_key) != 0
            scores = tl.where(counts[None, :], scores, float("-inf"))
        highest, total, mixed = add_keys(scores, values, highest, total, mixed)
    if block_rest > 0:
        o_key = (end + tl.arange(0, block_rest)).to(tl.int64)
        there = o_key < last_key
        present = there[:, None] & in_head  # [keys, d_pad]
        keys = tl.load(p_key + o_key[:, None] * key_token, mask=present, other=0.0)
        values = tl.load(p_value + o_key[:, None] * value_token, mask=present, other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        if biased:
            scores = _with_bias(scores, p_bias, o_query, o_key, i_head, count, tokens)
        counts = there
        if masked:
            counts = tl.load(p_counts + o_key, mask=there, other=0) != 0
        scores = tl.where(counts[None, :], scores, float("-inf"))
        highest, total, mixed = add_keys(scores, values, highest, total, mixed)
    # A request without any key has a total of 0; NaN stays NaN.
    mixed = tl.where((total == 0.0)[:, None], 0.0, mixed / total[:, None])
    p_row = p_out + i_request * out_request + o_query[:, None] * out_token + o_column
    tl.store(p_row, mixed.to(p_out.dtype.element_ty), mask=live)


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
