"""Masks: 16 requests in the bits of an int16, so that one AND or OR works for all of them."""

import torch
from torch import Tensor

REQUESTS_PER_MASK = 16


def masks_of(requests: int) -> int:
    """Return the number of masks that hold this number of requests."""
    return -(-requests // REQUESTS_PER_MASK)


def pack_masks(passes: Tensor) -> Tensor:
    """Pack bool [B, n] into int16 [ceil(B / 16), n]: request b is bit b % 16 of row b // 16."""
    requests, rows = passes.shape
    packed = torch.zeros(masks_of(requests), rows, dtype=torch.int16, device=passes.device)
    for request in range(requests):
        # The last bit is the sign of an int16, which has no literal 1 << 15.
        bit = torch.tensor(1 << request % REQUESTS_PER_MASK).to(torch.int16).to(passes.device)
        packed[request // REQUESTS_PER_MASK] |= passes[request] * bit
    return packed


def has_bit(masks: Tensor, request: int) -> Tensor:
    """Return whether a request passes.   int16 [groups, n] -> bool [n]"""
    return masks[request // REQUESTS_PER_MASK] >> request % REQUESTS_PER_MASK & 1 != 0
