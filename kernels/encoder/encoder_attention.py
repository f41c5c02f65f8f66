"""Attention in an encoder: a request's tokens are queries; the same or other tokens are keys."""

from collections.abc import Sequence

import torch
from torch import Tensor

from grace.kernels.checks import require_tensor
from grace.kernels.row_stable import matmul


def encoder_attention_reference(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    heads: int,
    scale: float,
    key_mask: Tensor | None = None,
    bias: Tensor | None = None,
    parts: Sequence[int] | None = None,
) -> Tensor:
    """Return softmax_j(scale * q_i k_j + bias[h, j - i]) v_j over the keys j of a query's request.

    queries   [B, Q, H * d]       each head's d columns together
    keys      [B, K, H * d]       values likewise
    key_mask  bool [B, K]         False: the key gets no weight; it must still be finite. None: all
    bias      [H, Q + K - 1]      by distance, from 1 - Q to K - 1. None: none
    parts     tokens of each part of a request, without a bias; a query's keys are those of its part
    -> [B, Q, H * d] in the queries' type, computed in float32; zeros for a request without any key
    """
    check_encoder_attention(queries, keys, values, heads, key_mask, bias, parts)
    if parts is not None:
        sizes = list(parts)
        masks: Sequence[Tensor | None] = [None] * len(parts)
        if key_mask is not None:
            masks = key_mask.split_with_sizes(sizes, 1)
        split = (x.split_with_sizes(sizes, 1) for x in (queries, keys, values))
        found = [
            encoder_attention_reference(q, k, v, heads, scale, mask)
            for q, k, v, mask in zip(*split, masks, strict=True)
        ]
        return torch.cat(found, dim=1)
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
    parts: Sequence[int] | None,
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
    if parts is not None and (bias is not None or not count == tokens == sum(parts)):
        raise ValueError(
            f"parts {list(parts)} must be all {count} queries and all {tokens} keys, without a bias"
        )


def _by_head(x: Tensor, heads: int) -> Tensor:
    """[B, T, H * d] -> [B, H, T, d]"""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def _by_pair(bias: Tensor, queries: int, keys: int) -> Tensor:
    """[H, Q + K - 1] -> [H, Q, K]"""
    query = torch.arange(queries, device=bias.device)[:, None]
    key = torch.arange(keys, device=bias.device)
    return bias[:, key - query + (queries - 1)]
