"""The devices that GRACE computes on, the error for one that is not there, a GPU's limits for
kernels, and copies of large arrays to a device without delaying other work on it.

torch's own answer is a traceback, which differs with its build, the driver and the first call.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor

from grace.configs.errors import DeviceError

HOPPER, RTX_BLACKWELL = (9, 0), (12, 0)  # compute capabilities
PIECE_BYTES = 4 << 20


def device_named(name: str | None, option: str = "device", instead: str = "cpu") -> torch.device:
    """Return the device that an option names; without a name, the GPU if there is one.

    `instead` is what the user may name on a machine without a GPU.
    """
    if name is None:
        return torch.device("cuda" if _gpus() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or str(device) != name:  # to torch, cuda:256 is cuda:0
        raise _unknown(name, option, instead)
    require_device(device, option, instead)
    return device


def require_device(device: torch.device, option: str = "device", instead: str = "cpu") -> None:
    """Refuse a device that this machine does not have, or that GRACE does not compute on."""
    if device.type == "cpu":
        return
    if device.type != "cuda":
        raise _unknown(str(device), option, instead)
    gpus = _gpus()
    if (device.index or 0) >= gpus:
        raise DeviceError(
            f"{option} {device}: torch {torch.__version__} finds {gpus} GPUs (a build without "
            f"CUDA, or CUDA_VISIBLE_DEVICES, may hide others); use one that it finds, or {instead}"
        )


def _gpus() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _unknown(name: str, option: str, instead: str) -> DeviceError:
    return DeviceError(
        f"{option} {name!r}: no device that GRACE computes on; use cuda:0, or {instead}"
    )


class Limits(NamedTuple):
    capability: tuple[int, int]
    block_memory: int  # bytes of shared memory that a block may have


@cache
def limits_of(device: torch.device) -> Limits:
    """Return a GPU's limits; for a CPU, which interprets kernels, those of a small GPU."""
    if device.type != "cuda":
        return Limits((8, 6), 101_376)
    require_device(device)
    found = torch.cuda.get_device_properties(device)
    # Each block of an SM takes 1 KB more than it asks for.
    return Limits((found.major, found.minor), found.shared_memory_per_multiprocessor - 1024)


def reads_operands(device: torch.device) -> bool:
    """Return whether tensor cores read operands from shared memory, as on Hopper and B200.

    On Ampere, Ada and RTX Blackwell, operands take registers, and leave fewer for sums.
    """
    return HOPPER <= limits_of(device).capability < RTX_BLACKWELL


def side_of_tile(device: torch.device, most: int, *, wide: bool) -> int:
    """Return how many queries or keys a tile may have: `most`, or half of it if `wide` heads have
    their operands in registers."""
    return most // 2 if wide and not reads_operands(device) else most


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
