"""Memory for large arrays."""

import atexit
import mmap
import threading
import weakref
from collections.abc import Callable
from ctypes import c_ubyte
from time import sleep
from typing import Any

import numpy as np

from grace.configs.arrays import UInt8

Allocate = Callable[[int], UInt8]
"""Allocates this many bytes: C-contiguous, aligned for any dtype, pinned if the caller wants."""

_LEAST_MAPPED = 1 << 20
_FREED_AT_ONCE = 4 << 20
_FREE_PAUSE_SECONDS = 0.0005


def plain_memory(size: int) -> UInt8:
    """Pages are faulted in by the preadv that fills them; MAP_POPULATE beforehand is slower."""
    return np.empty(size, np.uint8)


def mapped_memory(size: int) -> UInt8:
    """Return memory that is freed in pieces, next to work that must not wait."""
    if size < _LEAST_MAPPED:
        return plain_memory(size)
    return np.frombuffer(_mapped(size), np.uint8)


def reused_memory(size: int) -> UInt8:
    """Return memory that the process keeps once no array uses it. The next caller that needs about
    this size gets it.

    The system needs longer to give the process a page than the process needs to fill it, and delays
    other threads meanwhile.
    """
    if size < _LEAST_MAPPED:
        return plain_memory(size)
    memory = _taken(size)
    lent: Any = (c_ubyte * len(memory)).from_buffer(memory)
    weakref.finalize(lent, _KEPT.append, memory).atexit = False
    whole: UInt8 = np.frombuffer(lent, np.uint8)
    return whole[:size]


def kept_bytes() -> int:
    """Return how many bytes are kept: the process has them, and no array uses them."""
    return sum(map(len, [*_KEPT]))


def free_kept() -> None:
    """Free the memory that is kept. It takes a second or more for gigabytes."""
    with _TAKING:
        freed = [*_KEPT]
        del _KEPT[: len(freed)]
        del freed


def _taken(size: int) -> "_GentlyFreed":
    with _TAKING:
        for memory in sorted(_KEPT, key=len):
            if size <= len(memory) <= size + size // 4:
                _KEPT.remove(memory)
                return memory
    return _mapped(size + size // _GROWS)


def _mapped(size: int) -> "_GentlyFreed":
    return _GentlyFreed(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class _GentlyFreed(mmap.mmap):
    """Returns its pages in pieces, with pauses.

    Unmapping gigabytes at once takes a tenth of a second, during which the system lets no other
    thread of the process fault a page in, or map one.
    """

    def __del__(self) -> None:
        for begin in range(0, len(self), _FREED_AT_ONCE):
            self.madvise(mmap.MADV_DONTNEED, begin, min(_FREED_AT_ONCE, len(self) - begin))
            sleep(_FREE_PAUSE_SECONDS)


_GROWS = 16  # a block is a sixteenth larger, so that it still fits an array that has grown a little
_TAKING = threading.Lock()
_KEPT: list[_GentlyFreed] = []  # any thread may append, at any time
atexit.register(_KEPT.clear)  # as long as `_GentlyFreed` finds its names
