"""The checks at an operation's border, and what compiled code takes in place of a tensor.

A tensor has the shape, type and layout that the operation expects, or the error prints both. The
checks that all bodies share read no values, so that none waits for a GPU.
"""

from typing import Any

import torch
from torch import Tensor

NUMBER_KINDS = {torch.float32: 0, torch.bfloat16: 1}
"""The types of a model's numbers, as native/cuda/numbers.cuh numbers them."""


def require_tensor(
    name: str, tensor: Tensor, dtype: torch.dtype | None = None, **axes: int
) -> None:
    """`axes` name the expected sizes in order: rows=7, sid_length=3. Without a dtype, any fits."""
    if tensor.shape != tuple(axes.values()):
        raise ValueError(
            f"{name} must be [{', '.join(axes)}] = {list(axes.values())}, got {list(tensor.shape)}"
        )
    if dtype is not None and tensor.dtype != dtype:
        raise ValueError(f"{name} must be {_short(dtype)}, got {_short(tensor.dtype)}")


def sizes_of(name: str, tensor: Tensor, axes: str, dtype: torch.dtype | None = None) -> torch.Size:
    """Return the sizes of a tensor that must have these axes."""
    names = axes.split()
    if tensor.dim() != len(names):
        raise ValueError(f"{name} must be [{', '.join(names)}], got {list(tensor.shape)}")
    require_tensor(name, tensor, dtype, **dict(zip(names, tensor.shape, strict=True)))
    return tensor.shape


def require_optional(
    name: str, tensor: Tensor | None, dtype: torch.dtype | None = None, **axes: int
) -> None:
    """Check a tensor that may be None, as `require_tensor` does."""
    if tensor is not None:
        require_tensor(name, tensor, dtype, **axes)


def require_contiguous(**tensors: Tensor) -> None:
    """Refuse other layouts where a body computes addresses: a copy would cost what it saves."""
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous, got strides {list(tensor.stride())}")


def require_whole_rows(**tensors: Tensor | None) -> None:
    """Refuse a last axis that is not contiguous, which a kernel reads in vectors."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.stride(-1) != 1:
            strides = list(tensor.stride())
            raise ValueError(f"{name} must be contiguous in its last axis, got strides {strides}")


def number_kind(name: str, dtype: torch.dtype) -> int:
    """Return the number of a type in compiled code."""
    if dtype not in NUMBER_KINDS:
        kinds = ", ".join(map(_short, NUMBER_KINDS))
        raise ValueError(f"{name} must be one of {kinds}, got {_short(dtype)}")
    return NUMBER_KINDS[dtype]


def fields(kind: type, names: str) -> list[tuple[str, Any]]:
    """Return fields of one type in a structure of compiled code, in their order."""
    return [(name, kind) for name in names.split()]


def address(name: str, tensor: Tensor | None, device: torch.device, dtype: torch.dtype) -> int:
    """Return the address of a tensor that compiled code reads as an array; 0 for None."""
    if tensor is None:
        return 0
    if tensor.dtype != dtype or tensor.device != device or not tensor.is_contiguous():
        raise ValueError(
            f"{name} must be contiguous {dtype} on {device}, got {tensor.dtype} on "
            f"{tensor.device}, strides {list(tensor.stride())}"
        )
    return tensor.data_ptr()


def current_stream(device: torch.device) -> int:
    """Return the CUDA stream that a launch goes to; 0, the default one, for a CPU's tensors."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
