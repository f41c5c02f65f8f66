"""Attention by general kernels: the paper's baseline, and beams as queries.

On a GPU only FlashAttention may run, as in the paper: torch cannot silently choose another kernel.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True, slots=True)
class DenseCache:
    """One layer's keys and values of every beam row, by position: [L, rows, H, d] each.

    A position is contiguous, so that moving beams copies whole rows.
    """

    keys: Tensor
    values: Tensor


def append(qkv: Tensor, cache: DenseCache, step: int) -> None:
    """Add a step's keys and values to the cache, by a copy each."""
    cache.keys[step, : len(qkv)] = qkv[:, 1]
    cache.values[step, : len(qkv)] = qkv[:, 2]


def attend_sdpa(qkv: Tensor, cache: DenseCache, step: int, scale: float) -> Tensor:
    """Solve one attention problem per row and head, over a cache that has the step.

    qkv [rows, 3, H, d] -> [rows, H * d]
    """
    rows = len(qkv)
    keys = cache.keys[: step + 1, :rows].permute(1, 2, 0, 3)  # [rows, H, step + 1, d]
    values = cache.values[: step + 1, :rows].permute(1, 2, 0, 3)
    with _only(SDPBackend.FLASH_ATTENTION, qkv):
        attended = scaled_dot_product_attention(qkv[:, 0].unsqueeze(2), keys, values, scale=scale)
    return attended.reshape(rows, -1)


def spread_to_rows(per_request: Tensor, beams: int) -> Tensor:
    """Copy a request's keys to each of its beam rows.   [B, H, T, d] -> [B * beams, H, T, d]

    It copies words of 8 bytes: elements of 2 bytes take three times as long.
    """
    batch, *rest = per_request.shape
    words = per_request.flatten(1).view(torch.int64)
    spread = words.unsqueeze(1).expand(-1, beams, -1).reshape(batch * beams, -1)
    return spread.view(per_request.dtype).view(batch * beams, *rest)


def cross_sdpa(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    backend: SDPBackend = SDPBackend.FLASH_ATTENTION,
) -> Tensor:
    """Solve one attention problem for each row of the keys, with N / B queries.

    queries [N, H * d], keys and values [B, H, T, d] -> [N, H * d]
    """
    batch, heads, _, d_head = keys.shape
    by_head = queries.view(batch, -1, heads, d_head).transpose(1, 2)  # [B, H, N / B, d]
    with _only(backend, queries):
        attended = scaled_dot_product_attention(by_head, keys, values, scale=scale)
    return attended.transpose(1, 2).reshape(queries.shape)


def _only(backend: SDPBackend, tensor: Tensor) -> AbstractContextManager[None]:
    """Allow no other kernel on a GPU; FlashAttention has none in float32."""
    half = tensor.dtype in (torch.float16, torch.bfloat16)
    if tensor.is_cuda and (half or backend is not SDPBackend.FLASH_ATTENTION):
        return sdpa_kernel(backend)
    return nullcontext()
