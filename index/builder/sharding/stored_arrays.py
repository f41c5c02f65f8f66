"""Arrays in files, read and written block by block, so that memory holds a block and not an array.

Reading copies: what a map has touched would stay in memory until the map ends.
"""

from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from grace.index.storage.manifest import FileEntry
from grace.index.storage.mapped import MappedArray, map_array

__all__ = ["ArrayWriter", "OutputFolder", "Sliced", "StoredArray", "blocks"]

BLOCK_BYTES = 1 << 24


class Sliced(Protocol):
    """What gives its rows begin .. end - 1 as an array: an array, or a StoredArray."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def __getitem__(self, rows: slice, /) -> npt.NDArray[Any]: ...


@dataclass(frozen=True, slots=True)
class StoredArray:
    path: Path
    entry: FileEntry

    @property
    def shape(self) -> tuple[int, ...]:
        return self.entry.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.entry.dtype)

    def __getitem__(self, rows: slice, /) -> npt.NDArray[Any]:
        begin, end, _ = rows.indices(self.shape[0])
        row = self.shape[1:]
        width = int(np.prod(row, dtype=np.int64))
        offset = self.entry.bytes - self.entry.data_bytes + begin * width * self.dtype.itemsize
        count = max(0, end - begin) * width
        found = np.fromfile(self.path, self.dtype, count, offset=offset)
        return found.reshape(max(0, end - begin), *row)


def blocks(array: Sliced, begin: int = 0, end: int | None = None) -> Iterator[npt.NDArray[Any]]:
    """Its rows begin .. end - 1, in order, some megabytes at a time; of a map, no more stays."""
    end = array.shape[0] if end is None else end
    row_bytes = int(np.prod(array.shape[1:], dtype=np.int64)) * array.dtype.itemsize
    step = max(1, BLOCK_BYTES // max(1, row_bytes))
    for at in range(begin, end, step):
        yield array[at : min(at + step, end)]
        if isinstance(array, MappedArray):
            array.release(at * row_bytes, step * row_bytes)


class ArrayWriter:
    """A file of plain numbers that grows; `finish` gives it back as an array."""

    def __init__(self, path: Path, dtype: str, row: tuple[int, ...] = ()) -> None:
        self._path = path
        self._dtype = np.dtype(dtype)
        self._row = row
        self._file = path.open("xb")
        self.rows = 0

    def append(self, rows: npt.ArrayLike) -> None:
        block = np.ascontiguousarray(rows, self._dtype)
        if block.shape[1:] != self._row:
            raise ValueError(f"rows must be [n, {self._row}], got {list(block.shape)}")
        self._file.write(block.data if block.size else b"")
        self.rows += len(block)

    def finish(self) -> npt.NDArray[Any]:
        self._file.close()
        return map_array(self._path, self._dtype.str, (self.rows, *self._row))

    def close(self) -> None:
        self._file.close()


class OutputFolder:
    """Where arrays are written, a file each; a context manager that closes those left open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writers: list[ArrayWriter] = []
        path.mkdir()

    def __enter__(self) -> "OutputFolder":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for writer in self._writers:
            # A full disk refuses the rest of what is buffered, too; its first word is enough.
            with nullcontext() if error is None else suppress(OSError):
                writer.close()

    def array(self, name: str, dtype: str, row: tuple[int, ...] = ()) -> ArrayWriter:
        writer = ArrayWriter(self._path / name, dtype, row)
        self._writers.append(writer)
        return writer
