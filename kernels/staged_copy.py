"""Copy large arrays to a GPU without delaying other work on it."""

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

PIECE_BYTES = 4 << 20


def staged_copy(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Copy an array to a device. A GPU gets it in pieces, through two pinned buffers in turn.

    Copying the whole array at once takes longer, because its memory is pageable, and blocks all
    other streams of the GPU.
    """
    source = torch.from_numpy(array)
    if device.type != "cuda" or array.nbytes <= PIECE_BYTES:
        return source.to(device)
    there = torch.empty(source.shape, dtype=source.dtype, device=device)
    given, taken = (each.reshape(-1).view(torch.uint8) for each in (source, there))
    buffers = [torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    copied = [torch.cuda.Event() for _ in buffers]  # type: ignore[no-untyped-call]
    for number, begin in enumerate(range(0, len(given), PIECE_BYTES)):
        piece = given[begin : begin + PIECE_BYTES]
        buffer, done = buffers[number % 2], copied[number % 2]
        done.synchronize()  # until the last copy that used this buffer has read it
        staged = buffer[: len(piece)].copy_(piece)
        taken[begin : begin + PIECE_BYTES].copy_(staged, non_blocking=True)
        done.record()
    for done in copied:
        done.synchronize()
    return there
