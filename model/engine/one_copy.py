"""Small tensors of the CPU's memory, copied to a device together.

Each operation of torch costs some microseconds of the interpreter, whatever its tensors' sizes, and
gives its lock away, to wait for it again if another thread has taken it. A batch has a dozen
tensors: so they are one copy, and one split for each of their types.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

_ALIGNMENT = 64  # bytes, of what a type's tensors begin with


@dataclass(frozen=True, slots=True)
class Packed:
    """Tensors side by side, those of a type together.

    whole   uint8 [...]
    places  of each tensor: its type, and its number among those of that type
    """

    whole: Tensor
    shapes: tuple[torch.Size, ...]
    places: tuple[tuple[torch.dtype, int], ...]
    begins: dict[torch.dtype, int]
    sizes: dict[torch.dtype, list[int]]  # in numbers

    def spread(self, whole: Tensor) -> tuple[Tensor, ...]:
        """Views of a copy of `whole`."""
        parts = {}
        for dtype, sizes in self.sizes.items():
            begin, size = self.begins[dtype], sum(sizes) * dtype.itemsize
            parts[dtype] = whole[begin : begin + size].view(dtype).split_with_sizes(sizes)
        return tuple(
            parts[dtype][number] if len(shape) == 1 else parts[dtype][number].view(shape)
            for (dtype, number), shape in zip(self.places, self.shapes, strict=True)
        )


def packed(tensors: Sequence[Tensor], pinned: bool) -> Packed:
    sizes: dict[torch.dtype, list[int]] = {}
    places = []
    for tensor in tensors:
        of_type = sizes.setdefault(tensor.dtype, [])
        places.append((tensor.dtype, len(of_type)))
        of_type.append(tensor.numel())
    begins, end = {}, 0
    for dtype, of_type in sizes.items():
        begins[dtype] = end
        end += -(-sum(of_type) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
    whole = torch.empty(end, dtype=torch.uint8, pin_memory=pinned)
    room = whole.numpy()
    starts = {
        dtype: [
            begins[dtype] + before * dtype.itemsize for before in accumulate(of_type, initial=0)
        ]
        for dtype, of_type in sizes.items()
    }
    for tensor, (dtype, number) in zip(tensors, places, strict=True):
        begin, after = starts[dtype][number : number + 2]
        if begin < after:
            room[begin:after].view(tensor.numpy().dtype)[:] = tensor.numpy().reshape(-1)
    shapes = tuple(tensor.shape for tensor in tensors)
    return Packed(whole, shapes, tuple(places), begins, sizes)


def copied_together(tensors: Sequence[Tensor], device: torch.device) -> tuple[Tensor, ...]:
    """The same on the device, views of one allocation there, without waiting for the copy."""
    if device.type == "cpu":
        return tuple(tensors)
    together = packed(tensors, pinned=True)
    return together.spread(together.whole.to(device, non_blocking=True))
