"""The checks at an operation's border: a tensor has the shape, type and layout it should have."""

import torch
from torch import Tensor

__all__ = ["require_contiguous", "require_tensor"]


def require_tensor(
    name: str, tensor: Tensor, dtype: torch.dtype | None = None, **axes: int
) -> None:
    """`axes` name the expected sizes in order: rows=7, sid_length=3. No dtype: any will do."""
    if tensor.shape != tuple(axes.values()):
        raise ValueError(
            f"{name} must be [{', '.join(axes)}] = {list(axes.values())}, got {list(tensor.shape)}"
        )
    if dtype is not None and tensor.dtype != dtype:
        raise ValueError(f"{name} must be {_short(dtype)}, got {_short(tensor.dtype)}")


def require_contiguous(**tensors: Tensor) -> None:
    """For bodies that compute addresses: a copy made here would cost what they save."""
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous, got strides {list(tensor.stride())}")


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
