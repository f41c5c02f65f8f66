"""Small tensors of the CPU's memory, copied to a device together.

Each copy of its own costs some ten microseconds of the interpreter, whatever its size, and a batch
has dozens of them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["copied_together"]

_ALIGNMENT = 64  # bytes: wider than any vector that a kernel loads


def copied_together(tensors: Sequence[Tensor], device: torch.device) -> tuple[Tensor, ...]:
    """The same on the device, views of one allocation there, without waiting for the copy."""
    if device.type == "cpu":
        return tuple(tensors)
    begins, end = [], 0
    for tensor in tensors:
        begins.append(end)
        end += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
    packed = torch.empty(end, dtype=torch.uint8, pin_memory=True)
    bytes_of_all = packed.numpy()
    for begin, tensor in zip(begins, tensors, strict=True):
        if tensor.nbytes:  # an empty array's strides may be anything, which torch will not view
            given = tensor.contiguous().view(-1).view(torch.uint8)
            bytes_of_all[begin : begin + tensor.nbytes] = given.numpy()
    there = packed.to(device, non_blocking=True)
    return tuple(
        there[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for begin, tensor in zip(begins, tensors, strict=True)
    )
