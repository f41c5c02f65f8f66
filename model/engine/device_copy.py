"""A batch's small arrays, in blocks of memory that are used again and copied to a device at once.

Each operation of torch takes some microseconds of the interpreter, whatever its tensors' sizes. It
also releases the interpreter's lock, and waits if another thread takes it. So the arrays of a block
and their tensors are made once, and a batch needs one operation to copy them all.
"""

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from grace.configs.arrays import AnyArray, Shape

T = TypeVar("T")

_ALIGNMENT = 64  # bytes; each array begins at a multiple of it
KEPT_BYTES = 4 << 20  # of the largest block that is used again: callers choose how large some are


class _Block:
    """Arrays in the CPU's memory, and their tensors in the memory of a device."""

    def __init__(self, shapes: Sequence[Shape], device: torch.device) -> None:
        sizes = [np.dtype(kind).itemsize * prod(shape) for kind, shape in shapes]
        ends = np.cumsum([-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]).tolist()
        on_host = device.type == "cpu"
        self.here = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=not on_host)
        self.there = self.here if on_host else torch.empty_like(self.here, device=device)
        self.arrays: list[AnyArray] = []
        self.tensors: list[Tensor] = []
        self.made: Any = None
        for (kind, shape), size, begin in zip(shapes, sizes, [0, *ends], strict=False):
            part = slice(begin, begin + size)
            self.arrays.append(self.here.numpy()[part].view(kind).reshape(shape))
            # torch reads uint64 as int64.
            signed = torch.int64 if kind is np.uint64 else torch.from_numpy(np.empty(0, kind)).dtype
            self.tensors.append(self.there[part].view(signed).view(shape))


class Blocks:
    """Blocks for one model's batches, with what its features prepare. Any thread may use them."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.free: dict[tuple[Shape, ...], list[_Block]] = {}


class Staging:
    """A block of a batch. Keep it as long as anything reads the batch's arrays, here or on the
    device: then the next batch gets its memory."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self._block: _Block | None = None

    def arrays(self, shapes: Sequence[Shape]) -> list[AnyArray]:
        self._free = self._blocks.free.setdefault(tuple(shapes), [])
        self._block = self._free.pop() if self._free else _Block(shapes, self._blocks.device)
        return self._block.arrays

    def send(self, filled: Iterable[AnyArray] | None = None) -> list[Tensor]:
        """Copy to the device, without waiting for it: what runs later on the same stream sees it.

        Return a tensor for each array: as long as its part in `filled`, or whole without `filled`.
        """
        block = self._block
        assert block is not None
        if block.there is not block.here:
            block.there.copy_(block.here, non_blocking=True)
        pairs = zip(block.tensors, block.arrays if filled is None else filled, strict=True)
        return [each if len(each) == len(array) else each[: len(array)] for each, array in pairs]

    def once(self, make: Callable[[list[Tensor]], T]) -> T:
        """Return what `make` makes of the block's tensors on the device. A block calls it once."""
        block = self._block
        assert block is not None
        if block.made is None:
            block.made = make(block.tensors)
        made: T = block.made
        return made

    def finish(self) -> None:
        """Wait until the current stream has done all that reads the block."""
        if self._blocks.device.type != "cpu":
            torch.cuda.current_stream(self._blocks.device).synchronize()

    def __del__(self) -> None:
        if self._block is not None and self._block.here.nbytes <= KEPT_BYTES:
            self._free.append(self._block)
