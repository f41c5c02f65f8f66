"""Arrays that lie in files: larger than memory, and let go of as soon as they were used."""

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["MappedArray", "map_array"]


class MappedArray(np.memmap[Any, Any]):
    """A read-only map of a file of plain numbers."""

    _mmap: mmap.mmap | None

    def release(self, begin: int, size: int) -> None:
        """Gives the pages of these bytes back; they are read again if they are used again."""
        start = begin // mmap.PAGESIZE * mmap.PAGESIZE
        end = min(begin + size, self.nbytes)
        if end > start and self._mmap is not None:
            self._mmap.madvise(mmap.MADV_DONTNEED, start, end - start)


def map_array(path: Path, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """An empty file cannot be mapped: it is an empty array in memory."""
    if 0 in shape:
        return np.empty(shape, dtype)
    return MappedArray(path, dtype, "r", shape=shape)
