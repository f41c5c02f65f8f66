"""Attention in an encoder: a request's tokens are queries; the same or other tokens are keys."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from grace.kernels.checks import require_tensor
from grace.kernels.row_stable import matmul


class Part(NamedTuple):
    """Queries query, query + 1, ... of every request, whose keys are key, key + 1, ..."""

    query: int
    queries: int
    key: int
    keys: int


def encoder_attention_reference(
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
    """Return softmax_j(scale * q_i k_j + bias[h, j - i]) v_j over the keys j of a query's request.

    queries   [B, Q, H * d]       each head's d columns together
    keys      [B, K, H * d]       values likewise
    key_mask  bool [B, K]         False: the key gets no weight; it must still be finite. None: all
    bias      [H, Q + K - 1]      by distance, from 1 - Q to K - 1. None: none
    parts     without a bias: a query's keys are those of its part, and the rows of queries without
              a part keep what `out` has
    out       [B, Q, H * d]       where the result is written. None: new memory
    -> [B, Q, H * d] in the queries' type, computed in float32; zeros for a request without any key
    """
    check_encoder_attention(queries, keys, values, heads, key_mask, bias, parts, out)
    if out is None:
        out = torch.empty_like(queries, memory_format=torch.contiguous_format)
    if parts is None:
        return out.copy_(_attended(queries, keys, values, heads, scale, key_mask, bias))
    for part in parts:
        own = slice(part.query, part.query + part.queries)
        read = slice(part.key, part.key + part.keys)
        mask = None if key_mask is None else key_mask[:, read]
        found = _attended(queries[:, own], keys[:, read], values[:, read], heads, scale, mask, None)
        out[:, own] = found
    return out


def _attended(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    heads: int,
    scale: float,
    key_mask: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    q, k, v = (_by_head(x.float(), heads) for x in (queries, keys, values))
    scores = matmul(q, k.transpose(2, 3)) * scale
    if bias is not None:
        scores = scores + _by_pair(bias.float(), *scores.shape[2:])
    if key_mask is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        ignored = ~key_mask[:, None, None, :]
        # The least finite number, not -inf: without any key the weights are even, not NaN.
        scores = scores.masked_fill(ignored, torch.finfo(scores.dtype).min)
        weights = torch.softmax(scores, dim=-1).masked_fill(ignored, 0.0)
    return matmul(weights, v).transpose(1, 2).reshape(queries.shape).to(queries.dtype)


def check_encoder_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    heads: int,
    key_mask: Tensor | None,
    bias: Tensor | None,
    parts: Sequence[Part] | None,
    out: Tensor | None,
) -> None:
    """Check shapes and types only, so that a GPU is not waited for."""
    if queries.dim() != 3 or keys.dim() != 3:
        shapes = f"{list(queries.shape)} and {list(keys.shape)}"
        raise ValueError(f"queries and keys must be [requests, tokens, inner], got {shapes}")
    (requests, count, inner), tokens = queries.shape, keys.shape[1]
    if inner % heads:
        raise ValueError(f"inner must be a multiple of heads, got {inner} and {heads}")
    for name, tensor in (("keys", keys), ("values", values)):
        require_tensor(name, tensor, queries.dtype, requests=requests, tokens=tokens, inner=inner)
    if key_mask is not None:
        require_tensor("key_mask", key_mask, torch.bool, requests=requests, tokens=tokens)
    if bias is not None:
        require_tensor("bias", bias, heads=heads, distances=count + tokens - 1)
    if out is not None:
        require_tensor("out", out, queries.dtype, requests=requests, count=count, inner=inner)
    if parts is not None and bias is not None:
        raise ValueError("parts must be without a bias, which is by distance in a request")
    for part in parts or ():
        if part.query + part.queries > count or part.key + part.keys > tokens:
            raise ValueError(f"{part} must be within {count} queries and {tokens} keys")


def _by_head(x: Tensor, heads: int) -> Tensor:
    """[B, T, H * d] -> [B, H, T, d]"""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def _by_pair(bias: Tensor, queries: int, keys: int) -> Tensor:
    """[H, Q + K - 1] -> [H, Q, K]"""
    query = torch.arange(queries, device=bias.device)[:, None]
    key = torch.arange(keys, device=bias.device)
    return bias[:, key - query + (queries - 1)]
