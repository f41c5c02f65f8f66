"""Attention of a causal decoder: over a request's prompt, and over the beam's own tokens.

A prompt's keys and values exist once for all beams of its request. Prompts follow each other
without padding: request b has the tokens offsets[b] to offsets[b + 1]. Query heads share key heads:
head h reads key head h // (heads / kv_heads).
"""

from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from grace.kernels.attention.self_attention import require_table
from grace.kernels.checks import require_optional, require_tensor, sizes_of
from grace.kernels.products.fp8_products import in_type
from grace.kernels.row_stable import matmul


@dataclass(frozen=True, slots=True)
class Heads:
    """The product of rows with the weights of queries, keys and values, and what changes it."""

    product: Tensor  # [rows, (heads + 2 * kv_heads) * d]: queries, keys, values
    heads: int
    positions: Tensor  # int32 [rows], of each token in its sequence
    turns: Tensor  # float32 [positions, 2, d / 2]: cosines and sines
    eps: float
    bias: Tensor | None = None  # [(heads + 2 * kv_heads) * d]
    gains: Tensor | None = None  # [2, d]: of the norms of queries and of keys
    # float32 [rows], multiplies the row's product: an RMS factor not yet applied
    row_scale: Tensor | None = None

    def check(self) -> tuple[int, int]:
        """Return kv_heads and d."""
        _, _, half = sizes_of("turns", self.turns, "positions two half", torch.float32)
        rows, width = sizes_of("product", self.product, "rows width")
        d, others = 2 * half, width // (2 * half) - self.heads
        if width % d or others < 2 or others % 2 or self.heads % (others // 2):
            raise ValueError(
                f"product must have heads + 2 * kv_heads columns of {d}, with {self.heads} heads, "
                f"a multiple of kv_heads; got {width}"
            )
        require_tensor("positions", self.positions, torch.int32, rows=rows)
        require_optional("bias", self.bias, width=width)
        require_optional("gains", self.gains, two=2, d_head=d)
        require_optional("row_scale", self.row_scale, torch.float32, rows=rows)
        return others // 2, d


def place_heads_reference(given: Heads, pairs: Tensor) -> Tensor:
    """Return the queries, and write keys and values to `pairs`. It computes in float32.

    Gains, if there are any, normalise queries and keys. Then each turns by its position: number i
    of its first half and number i of its second half are a point, with turns[position, :, i].

    pairs    [rows, 2, kv_heads, d]   keys and values
    -> [rows, heads * d]
    """
    kv_heads, d = given.check()
    found = given.product.float()
    if given.row_scale is not None:
        found = found * given.row_scale.unsqueeze(1)
    if given.bias is not None:
        found = found + given.bias.float()
    by_head = found.view(len(found), -1, d)
    q, k, v = by_head.split_with_sizes([given.heads, kv_heads, kv_heads], dim=1)
    if given.gains is not None:
        of_queries, of_keys = given.gains.float()
        q, k = _normed(q, of_queries, given.eps), _normed(k, of_keys, given.eps)
    cosines, sines = given.turns[given.positions.long()].unsqueeze(2).unbind(dim=1)
    pairs[:, 0] = _turned(k, cosines, sines)
    pairs[:, 1] = v
    return _turned(q, cosines, sines).flatten(1).to(given.product.dtype)


def _normed(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * gain


def _turned(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """[rows, heads, d], both [rows, 1, d / 2]"""
    first, second = x.chunk(2, dim=-1)
    turned = first * cosines - second * sines, second * cosines + first * sines
    return torch.cat(turned, dim=-1)


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The queries of prompts' tokens. A token attends to itself and to those before it."""

    queries: Tensor  # [T, heads * d]; tokens after the last prompt belong to none
    pairs: Tensor  # [T, 2, kv_heads, d]: keys and values
    offsets: Tensor  # int32 [B + 1]
    longest: int  # tokens; no prompt has more
    scale: float
    dtype: torch.dtype | None = None  # of the result; None: the queries' type

    def check(self) -> int:
        """Return the number of query heads of a key head."""
        tokens, _, kv_heads, d = sizes_of("pairs", self.pairs, "tokens two kv_heads d_head")
        require_tensor("pairs", self.pairs, tokens=tokens, two=2, kv_heads=kv_heads, d_head=d)
        _, inner = sizes_of("queries", self.queries, "rows inner", self.pairs.dtype)
        (borders,) = sizes_of("offsets", self.offsets, "borders", torch.int32)
        if borders < 2:
            raise ValueError("offsets must be those of at least one prompt")
        if inner % (kv_heads * d):
            raise ValueError(
                f"queries must have a multiple of {kv_heads} key heads of {d} columns, got {inner}"
            )
        return inner // (kv_heads * d)


def causal_attention_reference(given: PromptTokens) -> Tensor:
    """Return softmax_j(scale * q k_j) v_j of each token over its prompt, j up to the token.

    -> [T, heads * d], computed in float32; zeros for tokens of no prompt
    """
    group = given.check()
    mixed = given.queries.new_zeros(given.queries.shape, dtype=torch.float32)
    pairs = given.pairs.float().repeat_interleave(group, dim=2).permute(1, 2, 0, 3)
    for begin, end in pairwise(given.offsets.tolist()):
        keys, values = pairs[:, :, begin:end]  # [H, T, d] each
        q = given.queries[begin:end].float().view(end - begin, *keys.shape[::2])
        scores = given.scale * matmul(q.transpose(0, 1), keys.transpose(-1, -2))
        places = torch.arange(end - begin, device=scores.device)
        weights = torch.softmax(scores.masked_fill(places > places[:, None], -torch.inf), dim=-1)
        mixed[begin:end] = matmul(weights, values).transpose(0, 1).flatten(1)
    return in_type(mixed, given.dtype or given.queries.dtype)


@dataclass(frozen=True, slots=True)
class PromptQueries(PromptTokens):
    """The queries of beams to their requests' prompts and to their own tokens: row b * M + m is
    beam m of request b."""

    pool: Tensor = field(kw_only=True)  # [blocks, 2, kv_heads, d]: of the beams' tokens
    # int32 [B * M, L]: block of a row's token at step j, from column 1 to `step`
    table: Tensor = field(kw_only=True)
    step: int = field(kw_only=True)  # 0: the rows have no own tokens

    def check(self) -> int:
        group = PromptTokens.check(self)
        rows, (_, _, kv_heads, d) = len(self.queries), self.pairs.shape
        shape = {"blocks": len(self.pool), "two": 2, "kv_heads": kv_heads, "d_head": d}
        require_tensor("pool", self.pool, self.pairs.dtype, **shape)
        _, length = require_table(self.table, self.step)
        require_tensor("table", self.table, torch.int32, rows=rows, sid_length=length)
        requests = len(self.offsets) - 1
        if rows % requests:
            raise ValueError(f"queries must be equally many per request: {rows} of {requests}")
        return group


def prompt_attention_reference(given: PromptQueries) -> Tensor:
    """Return softmax_j(scale * q k_j) v_j over a request's prompt and the row's own tokens.

    -> [B * M, heads * d], computed in float32
    """
    group = given.check()
    pairs, pool = given.pairs.float(), given.pool.float()
    _, _, kv_heads, d = pairs.shape
    requests = len(given.offsets) - 1
    q = given.queries.float().view(requests, -1, kv_heads, group, d)
    beams = q.shape[1]
    own = pool[given.table[:, 1 : given.step + 1].long()]  # [B * M, step, 2, KV, d]
    own_keys, own_values = own.view(requests, beams, given.step, 2, kv_heads, d).unbind(dim=3)
    # The beam's own tokens: sums over a few products, whose bits do not depend on the row.
    scores = (q.unsqueeze(2) * own_keys.unsqueeze(4)).sum(dim=-1)  # [B, M, step, KV, group]
    mixed = torch.empty_like(q)
    for request, (begin, end) in enumerate(pairwise(given.offsets.tolist())):
        keys, values = pairs[begin:end].permute(1, 2, 0, 3)  # [KV, T, d] each
        asked = q[request].transpose(0, 1).flatten(1, 2)  # [KV, M * group, d]
        to_prompt = matmul(asked, keys.transpose(-1, -2))  # [KV, M * group, T]
        to_own = scores[request].permute(2, 0, 3, 1).flatten(1, 2)  # [KV, M * group, step]
        weights = torch.softmax(given.scale * torch.cat([to_prompt, to_own], dim=-1), dim=-1)
        prompt_weights, own_weights = weights.split_with_sizes([end - begin, given.step], dim=-1)
        found = matmul(prompt_weights.contiguous(), values)
        found = found.view(kv_heads, beams, group, d).transpose(0, 1)
        shares = own_weights.view(kv_heads, beams, group, given.step).permute(1, 3, 0, 2)
        added = shares.unsqueeze(-1) * own_values[request].unsqueeze(3)  # [M, step, KV, group, d]
        mixed[request] = found + added.sum(dim=1)
    return in_type(mixed.view(len(given.queries), -1), given.dtype or given.queries.dtype)
