"""Where a launch goes, and what it may read."""

import torch
from torch import Tensor

__all__ = ["address", "current_stream"]


def current_stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream


def address(name: str, tensor: Tensor | None, device: torch.device, dtype: torch.dtype) -> int:
    """Of a tensor that a kernel reads as an array; 0 for none."""
    if tensor is None:
        return 0
    if tensor.dtype != dtype or tensor.device != device or not tensor.is_contiguous():
        raise ValueError(
            f"{name} must be contiguous {dtype} on {device}, got {tensor.dtype} on "
            f"{tensor.device}, strides {list(tensor.stride())}"
        )
    return tensor.data_ptr()
