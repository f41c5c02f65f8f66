"""Small tensors of the CPU's memory, copied to a device together.

Each operation of torch takes some microseconds of the interpreter, whatever its tensors' sizes. It
also releases the interpreter's lock, and waits if another thread takes it. A batch has a dozen
tensors, so this module copies them in one operation and then splits the copy once for each type.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_ALIGNMENT = 64  # bytes; the first tensor of each type begins at a multiple of it


def copied_together(tensors: Sequence[Tensor], device: torch.device) -> tuple[Tensor, ...]:
    """Return copies, which are views of one allocation on the device, without waiting for them."""
    places: dict[torch.dtype, list[int]] = {}  # the tensors' places in the argument, by type
    for place, tensor in enumerate(tensors):
        places.setdefault(tensor.dtype, []).append(place)
    sizes = {dtype: [tensors[i].numel() for i in own] for dtype, own in places.items()}
    slices, end = {}, 0
    for dtype, own_sizes in sizes.items():
        slices[dtype] = slice(end, end + sum(own_sizes) * dtype.itemsize)
        end = -(-slices[dtype].stop // _ALIGNMENT) * _ALIGNMENT
    together = torch.empty(end, dtype=torch.uint8, pin_memory=device.type == "cuda")
    room = together.numpy()
    for dtype, own in places.items():
        arrays = [tensors[i].numpy().reshape(-1) for i in own]
        np.concatenate(arrays, out=room[slices[dtype]].view(arrays[0].dtype))
    there = together.to(device, non_blocking=True)
    copies = list(tensors)
    for dtype, own in places.items():
        parts = there[slices[dtype]].view(dtype).split_with_sizes(sizes[dtype])
        for i, part in zip(own, parts, strict=True):
            copies[i] = part if tensors[i].dim() == 1 else part.view(tensors[i].shape)
    return tuple(copies)
