"""Arrays mapped from files: larger than memory, read block by block and released after use."""

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK_BYTES = 1 << 24


class MappedArray(np.memmap[Any, Any]):
    """A read-only map of plain numbers in a file."""

    _mmap: mmap.mmap | None

    def release(self, begin: int, size: int) -> None:
        """Give the pages of these bytes back to the system, which reads them again if needed."""
        if self._mmap is None:  # a copy, not a map
            return
        before = self.offset % mmap.ALLOCATIONGRANULARITY  # where the array begins in its map
        end = before + min(begin + size, self.nbytes)
        start = (before + begin) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start:
            self._mmap.madvise(mmap.MADV_DONTNEED, start, end - start)


def map_array(path: Path, dtype: str, shape: tuple[int, ...], offset: int = 0) -> npt.NDArray[Any]:
    """Map an array that begins at byte `offset`. An empty one is in memory: it has no map."""
    if 0 in shape:
        return np.empty(shape, dtype)
    return MappedArray(path, dtype, "r", offset=offset, shape=shape)


def read_rows(array: npt.NDArray[Any], begin: int, end: int) -> npt.NDArray[Any]:
    """Return rows begin .. end - 1. Those of a map are copied, and their pages released."""
    rows = array[begin:end]
    if isinstance(array, MappedArray):
        rows = np.array(rows)
        array.release(begin * _row_bytes(array), rows.nbytes)
    return rows


def blocks(
    array: npt.NDArray[Any], begin: int = 0, end: int | None = None
) -> Iterator[npt.NDArray[Any]]:
    """Yield rows begin .. end - 1 in blocks of some megabytes; of a map, only one is in memory."""
    end = len(array) if end is None else end
    step = max(1, BLOCK_BYTES // max(1, _row_bytes(array)))
    for at in range(begin, end, step):
        yield read_rows(array, at, min(at + step, end))


def _row_bytes(array: npt.NDArray[Any]) -> int:
    return int(np.prod(array.shape[1:], dtype=np.int64)) * array.dtype.itemsize
