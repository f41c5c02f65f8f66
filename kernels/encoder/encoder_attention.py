"""Attention in an encoder: a request's tokens are queries; the same or other tokens are keys."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from grace.kernels.checks import require_optional, require_tensor, sizes_of
from grace.kernels.row_stable import masked_softmax, matmul


class Part(NamedTuple):
    """Queries query, query + 1, ... of every request, whose keys are key, key + 1, ..."""

    query: int
    queries: int
    key: int
    keys: int


@dataclass(frozen=True, slots=True)
class TokenQueries:
    """The queries of tokens to the tokens of their requests."""

    queries: Tensor  # [B, Q, H * d] each head's d columns together
    keys: Tensor  # [B, K, H * d], values likewise
    values: Tensor
    heads: int
    scale: float
    # bool [B, K], False: the key gets no weight; it must still be finite. None: all
    key_mask: Tensor | None = None
    bias: Tensor | None = None  # [H, Q + K - 1] by distance, from 1 - Q to K - 1. None: none
    # without a bias: a query's keys are those of its part, and the rows of queries without a part
    # keep what `out` has
    parts: Sequence[Part] | None = None
    out: Tensor | None = None  # [B, Q, H * d], where the result is written. None: new memory

    def check(self) -> None:
        axes = "requests tokens inner"
        requests, count, inner = sizes_of("queries", self.queries, axes)
        tokens = sizes_of("keys", self.keys, axes)[1]
        dtype, heads = self.queries.dtype, self.heads
        if inner % heads:
            raise ValueError(f"inner must be a multiple of heads, got {inner} and {heads}")
        for name, tensor in (("keys", self.keys), ("values", self.values)):
            require_tensor(name, tensor, dtype, requests=requests, tokens=tokens, inner=inner)
        require_optional("key_mask", self.key_mask, torch.bool, requests=requests, tokens=tokens)
        require_optional("bias", self.bias, heads=heads, distances=count + tokens - 1)
        require_optional("out", self.out, dtype, requests=requests, count=count, inner=inner)
        if self.parts is not None and self.bias is not None:
            raise ValueError("parts must be without a bias, which is by distance in a request")
        for part in self.parts or ():
            if part.query + part.queries > count or part.key + part.keys > tokens:
                raise ValueError(f"{part} must be within {count} queries and {tokens} keys")


def encoder_attention_reference(given: TokenQueries) -> Tensor:
    """Return softmax_j(scale * q_i k_j + bias[h, j - i]) v_j over the keys j of a query's request.

    -> [B, Q, H * d] in the queries' type, computed in float32; zeros for a request without any key
    """
    return _by_parts(given, _attended)


def encoder_attention_differentiated(given: TokenQueries) -> Tensor:
    """Compute the reference's result in the queries' type, with an operation of torch whose
    gradients need little memory and time, too."""
    return _by_parts(given, _attended_at_once)


def _by_parts(given: TokenQueries, attended: Callable[[TokenQueries], Tensor]) -> Tensor:
    given.check()
    out, mask = given.out, given.key_mask
    if given.parts is None:
        return attended(given) if out is None else out.copy_(attended(given))
    if out is None:
        out = torch.empty_like(given.queries, memory_format=torch.contiguous_format)
    for part in given.parts:
        own = slice(part.query, part.query + part.queries)
        read = slice(part.key, part.key + part.keys)
        of_part = replace(
            given,
            queries=given.queries[:, own],
            keys=given.keys[:, read],
            values=given.values[:, read],
            key_mask=None if mask is None else mask[:, read],
        )
        out[:, own] = attended(of_part)
    return out


def _attended(given: TokenQueries) -> Tensor:
    heads, shape = given.heads, given.queries.shape
    q, k, v = (_by_head(x.float(), heads) for x in (given.queries, given.keys, given.values))
    scores = matmul(q, k.transpose(2, 3)) * given.scale
    if given.bias is not None:
        scores = scores + _by_pair(given.bias.float(), *scores.shape[2:])
    if given.key_mask is None:
        weights = torch.softmax(scores, dim=-1)
    else:
        weights = masked_softmax(scores, given.key_mask)
    return matmul(weights, v).transpose(1, 2).reshape(shape).to(given.queries.dtype)


def _attended_at_once(given: TokenQueries) -> Tensor:
    q, k, v = (_by_head(x, given.heads) for x in (given.queries, given.keys, given.values))
    added = None if given.bias is None else _by_pair(given.bias, q.shape[2], k.shape[2]).to(q.dtype)
    if given.key_mask is not None:
        # Half the lowest number: its sum with a bias is not -inf, so no weight is NaN.
        ignored = torch.zeros_like(given.key_mask, dtype=q.dtype)
        ignored = ignored.masked_fill(~given.key_mask, torch.finfo(q.dtype).min / 2)
        ignored = ignored[:, None, None]
        added = ignored.expand(-1, -1, q.shape[2], -1) if added is None else added + ignored
    mixed = functional.scaled_dot_product_attention(q, k, v, added, scale=given.scale)
    mixed = mixed.transpose(1, 2).reshape(given.queries.shape)
    if given.key_mask is not None:
        mixed = mixed * given.key_mask.any(dim=1)[:, None, None]
    return mixed


def _by_head(x: Tensor, heads: int) -> Tensor:
    """[B, T, H * d] -> [B, H, T, d]"""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def _by_pair(bias: Tensor, queries: int, keys: int) -> Tensor:
    """[H, Q + K - 1] -> [H, Q, K]"""
    query = torch.arange(queries, device=bias.device)[:, None]
    key = torch.arange(keys, device=bias.device)
    return bias[:, key - query + (queries - 1)]
