"""Cross-attention on a GPU with beams as queries: many beams share one read of keys and values.

* A program keeps the keys and values of one head of one request in shared memory. It takes one
  block of beams after the other through them, while the queries of the next block load.
* A user context is short, so its scores fit one tile: the softmax needs one pass, and scores and
  weights stay in registers. Longer contexts, and float32, which tensor cores do not multiply, go
  through `_long_context`, block by block with a running maximum. So do contexts that would not
  fit the shared memory of a smaller GPU.
* The RMS factor multiplies scores, not queries, and queries of a memo are gathered in place.

The kernel pads sizes that are not powers of two. It assumes d contiguous.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from grace.kernels.attention.cross_attention import BeamQueries
from grace.kernels.checks import require_contiguous, require_whole_rows
from grace.kernels.devices import limits_of, side_of_tile
from grace.kernels.triton_parts import LOG2_E, add_keys, await_kernel_before, early_launch, padded

_BEAMS = 64  # of a block, at most
_CONTEXT_BYTES = 131072  # of keys and values in shared memory, at most
_WHOLE_TOKENS = 256  # at most: the scores of more would not fit the registers
_PROGRAMS = 256  # that an H200 runs at once, two per SM


class _Tiles(NamedTuple):
    """A program does `turns` blocks of `beams` rows, with `keys` keys at a time."""

    beams: int
    keys: int
    turns: int
    stages: int


def cross_attention_triton(given: BeamQueries, programs: int = _PROGRAMS) -> Tensor:
    given.check()
    queries, keys, values, key_mask = given.queries, given.keys, given.values, given.key_mask
    requests, heads, tokens, d_head = keys.shape
    require_contiguous(queries=queries, key_mask=key_mask)
    require_whole_rows(keys=keys, values=values)
    rows, beams = given.rows, given.rows // requests
    row_bytes = padded(d_head) * keys.element_size()
    context_bytes, block_bytes = 2 * padded(tokens) * row_bytes, _BEAMS * row_bytes
    fits = context_bytes + 2 * block_bytes <= limits_of(keys.device).block_memory
    fits = fits and context_bytes <= _CONTEXT_BYTES and padded(tokens) <= _WHOLE_TOKENS
    whole = queries.dtype != torch.float32 and fits
    tiles = _tiles_of(beams, keys, whole, programs)
    dtype = given.dtype or queries.dtype
    out = torch.empty((rows, heads * d_head), dtype=dtype, device=queries.device)
    if out.numel():
        kernel = _whole_context if whole else _long_context
        grid = (triton.cdiv(beams, tiles.beams * tiles.turns), heads, requests)
        kernel[grid](
            queries,
            keys,
            values,
            key_mask.view(torch.uint8),
            given.row_scale,
            given.query_rows,
            out,
            given.request_scale,
            given.scale * LOG2_E.value,
            beams,
            *keys.stride()[:3],
            *values.stride()[:3],
            heads=heads,
            d_head=d_head,
            d_pad=padded(d_head),
            tokens=tokens,
            block_keys=tiles.keys,
            block_beams=tiles.beams,
            **({"turns": tiles.turns} if whole else {"stages": tiles.stages}),
            num_warps=4,
            num_stages=tiles.stages,
            **early_launch(queries.device, rows),
        )
    return out


def _tiles_of(beams: int, keys: Tensor, whole: bool, programs: int) -> _Tiles:
    """`programs` is the number that the GPU runs at once."""
    requests, heads, tokens, d_head = keys.shape
    if keys.dtype == torch.float32:
        return _Tiles(beams=16, keys=32, turns=1, stages=1)
    block_beams = min(_BEAMS, padded(beams))
    if not whole:
        most = side_of_tile(keys.device, 64, wide=d_head > 128)
        return _Tiles(min(most, block_beams), keys=most, turns=1, stages=2)
    # Every program runs at once, with as many turns as that takes.
    blocks = triton.cdiv(beams, block_beams)
    turns = min(blocks, max(1, requests * heads * blocks // programs))
    return _Tiles(block_beams, padded(tokens), turns, stages=1)


@triton.jit
def _load_queries(
    p_queries: tl.tensor,
    p_query_rows: tl.tensor,
    o_row: tl.tensor,
    live: tl.tensor,
    i_head: tl.tensor,
    heads: tl.constexpr,
    d_head: tl.constexpr,
    d_pad: tl.constexpr,
) -> tl.tensor:
    """-> [beams, d_pad]"""
    o_d = tl.arange(0, d_pad)[None, :]
    o_query = o_row
    if p_query_rows is not None:
        o_query = tl.load(p_query_rows + o_row, mask=live, other=0).to(tl.int64)
    p_query = (p_queries + o_query * (heads * d_head) + i_head * d_head)[:, None]
    return tl.load(p_query + o_d, mask=live[:, None] & (o_d < d_head), other=0.0)


@triton.jit(do_not_specialize=["beams"])
def _whole_context(
    p_queries: tl.tensor,
    p_keys: tl.tensor,
    p_values: tl.tensor,
    p_mask: tl.tensor,
    p_scale: tl.tensor,
    p_query_rows: tl.tensor,
    p_out: tl.tensor,
    p_request_scale: tl.tensor,
    scale: tl.tensor,
    beams: tl.tensor,
    key_request: tl.tensor,
    key_head: tl.tensor,
    key_token: tl.tensor,
    value_request: tl.tensor,
    value_head: tl.tensor,
    value_token: tl.tensor,
    heads: tl.constexpr,
    d_head: tl.constexpr,
    d_pad: tl.constexpr,
    tokens: tl.constexpr,
    block_keys: tl.constexpr,
    block_beams: tl.constexpr,
    turns: tl.constexpr,
    early: tl.constexpr,
) -> None:
    await_kernel_before(early)
    i_head = tl.program_id(1).to(tl.int64)
    i_request = tl.program_id(2).to(tl.int64)
    o_key = tl.arange(0, block_keys)
    o_d = tl.arange(0, d_pad)
    in_head = (o_d < d_head)[None, :]
    present = (o_key < tokens)[:, None] & in_head  # [keys, d_pad]
    p_key = p_keys + i_request * key_request + i_head * key_head + o_key[:, None] * key_token
    p_value = (
        p_values + i_request * value_request + i_head * value_head + o_key[:, None] * value_token
    )
    keys = tl.load(p_key + o_d[None, :], mask=present, other=0.0)
    values = tl.load(p_value + o_d[None, :], mask=present, other=0.0)
    counts = tl.load(p_mask + i_request * tokens + o_key, mask=o_key < tokens, other=0) != 0
    any_key = tl.max(counts.to(tl.int32), axis=0) != 0

    o_first = tl.program_id(0).to(tl.int64) * (turns * block_beams) + tl.arange(0, block_beams)
    end = tl.minimum(beams, (tl.program_id(0) + 1) * (turns * block_beams))
    following = _load_queries(
        *(p_queries, p_query_rows, i_request * beams + o_first, o_first < end, i_head),
        *(heads, d_head, d_pad),
    )
    for turn in tl.range(turns, num_stages=1):
        o_beam = o_first + turn * block_beams
        live = o_beam < end
        o_row = i_request * beams + o_beam
        queries = following
        following = _load_queries(
            *(p_queries, p_query_rows, o_row + block_beams, o_beam + block_beams < end),
            *(i_head, heads, d_head, d_pad),
        )
        scores = tl.dot(queries, tl.trans(keys))  # [beams, keys]
        if p_scale is not None:
            scores *= (scale * tl.load(p_scale + o_row, mask=live, other=0.0))[:, None]
        else:
            scores *= scale
        scores = tl.where(counts[None, :], scores, float("-inf"))
        highest = tl.max(scores, axis=1)
        highest = tl.where(highest == float("-inf"), 0.0, highest)
        weights = tl.exp2(scores - highest[:, None])
        total = tl.sum(weights, axis=1)
        mixed = tl.dot(weights.to(values.dtype), values)  # [beams, d_pad]
        mixed = tl.where(any_key, mixed / total[:, None], 0.0)
        if p_request_scale is not None:
            mixed *= tl.load(p_request_scale + i_request)
        p_row = (p_out + o_row * (heads * d_head) + i_head * d_head)[:, None] + o_d[None, :]
        tl.store(p_row, mixed.to(p_out.dtype.element_ty), mask=live[:, None] & in_head)


@triton.jit(do_not_specialize=["beams"])
def _long_context(
    p_queries: tl.tensor,
    p_keys: tl.tensor,
    p_values: tl.tensor,
    p_mask: tl.tensor,
    p_scale: tl.tensor,
    p_query_rows: tl.tensor,
    p_out: tl.tensor,
    p_request_scale: tl.tensor,
    scale: tl.tensor,
    beams: tl.tensor,
    key_request: tl.tensor,
    key_head: tl.tensor,
    key_token: tl.tensor,
    value_request: tl.tensor,
    value_head: tl.tensor,
    value_token: tl.tensor,
    heads: tl.constexpr,
    d_head: tl.constexpr,
    d_pad: tl.constexpr,
    tokens: tl.constexpr,
    block_keys: tl.constexpr,
    block_beams: tl.constexpr,
    stages: tl.constexpr,
    early: tl.constexpr,
) -> None:
    await_kernel_before(early)
    i_head = tl.program_id(1).to(tl.int64)
    i_request = tl.program_id(2).to(tl.int64)
    o_d = tl.arange(0, d_pad)
    in_head = (o_d < d_head)[None, :]
    p_key = p_keys + i_request * key_request + i_head * key_head + o_d[None, :]
    p_value = p_values + i_request * value_request + i_head * value_head + o_d[None, :]
    o_beam = tl.program_id(0).to(tl.int64) * block_beams + tl.arange(0, block_beams)
    live = o_beam < beams
    o_row = i_request * beams + o_beam
    queries = _load_queries(p_queries, p_query_rows, o_row, live, i_head, heads, d_head, d_pad)
    factor = tl.full((block_beams,), scale, tl.float32)
    if p_scale is not None:
        factor *= tl.load(p_scale + o_row, mask=live, other=0.0)

    highest = tl.full((block_beams,), float("-inf"), tl.float32)
    total = tl.zeros((block_beams,), tl.float32)
    mixed = tl.zeros((block_beams, d_pad), tl.float32)
    any_key = tl.max(tl.zeros((16,), tl.int32), axis=0)
    for start in tl.range(0, tokens, block_keys, num_stages=stages):
        o_key = (start + tl.arange(0, block_keys)).to(tl.int64)
        present = (o_key < tokens)[:, None] & in_head  # [keys, d_pad]
        keys = tl.load(p_key + o_key[:, None] * key_token, mask=present, other=0.0)
        values = tl.load(p_value + o_key[:, None] * value_token, mask=present, other=0.0)
        counts = tl.load(p_mask + i_request * tokens + o_key, mask=o_key < tokens, other=0)
        any_key = tl.maximum(any_key, tl.max(counts.to(tl.int32), axis=0))
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * factor[:, None]
        scores = tl.where(counts[None, :] != 0, scores, float("-inf"))
        highest, total, mixed = add_keys(scores, values, highest, total, mixed)
    mixed = tl.where(any_key != 0, mixed / total[:, None], 0.0)
    if p_request_scale is not None:
        mixed *= tl.load(p_request_scale + i_request)
    p_row = (p_out + o_row * (heads * d_head) + i_head * d_head)[:, None] + o_d[None, :]
    tl.store(p_row, mixed.to(p_out.dtype.element_ty), mask=live[:, None] & in_head)
