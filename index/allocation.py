"""Memory for large arrays."""

import mmap
from collections.abc import Callable
from time import sleep

import numpy as np
import numpy.typing as npt

Allocate = Callable[[int], npt.NDArray[np.uint8]]
"""Allocates this many bytes: C-contiguous, aligned for any dtype, pinned if the caller wants."""

_LEAST_MAPPED = 1 << 20
_FREED_AT_ONCE = 4 << 20
_FREE_PAUSE_SECONDS = 0.0005


def plain_memory(size: int) -> npt.NDArray[np.uint8]:
    """Pages are faulted in by the preadv that fills them; MAP_POPULATE beforehand is slower."""
    return np.empty(size, np.uint8)


def mapped_memory(size: int) -> npt.NDArray[np.uint8]:
    """Return memory that is freed in pieces, next to work that must not wait."""
    if size < _LEAST_MAPPED:
        return plain_memory(size)
    memory = _GentlyFreed(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, np.uint8)


class _GentlyFreed(mmap.mmap):
    """Returns its pages in pieces, with pauses.

    Unmapping gigabytes at once takes a tenth of a second, during which the system lets no other
    thread of the process fault a page in, or map one.
    """

    def __del__(self) -> None:
        for begin in range(0, len(self), _FREED_AT_ONCE):
            self.madvise(mmap.MADV_DONTNEED, begin, min(_FREED_AT_ONCE, len(self) - begin))
            sleep(_FREE_PAUSE_SECONDS)
