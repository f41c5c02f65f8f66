"""Arrays that are written to files portion by portion, so that memory never has all of one."""

from collections.abc import Iterable
from contextlib import nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.index.storage.array_file import map_array


class ArrayWriter:
    """A file of plain numbers that grows; `finish` returns it as an array."""

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

    def append_first(
        self, blocks: Iterable[npt.NDArray[Any]], is_first: npt.NDArray[np.bool_]
    ) -> None:
        """Append the rows that are the first of their kind, of blocks that follow each other."""
        at = 0
        for block in blocks:
            self.append(block[is_first[at : at + len(block)]])
            at += len(block)

    def finish(self) -> npt.NDArray[Any]:
        self.close()
        return map_array(self._path, self._dtype.str, (self.rows, *self._row))

    def close(self) -> None:
        self._file.close()


class OutputFolder:
    """A new folder of such files; a context manager that closes those left open."""

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
            # A full disk refuses the rest of each buffer too; the first error is enough.
            with nullcontext() if error is None else suppress(OSError):
                writer.close()

    def array(self, name: str, dtype: str, row: tuple[int, ...] = ()) -> ArrayWriter:
        writer = ArrayWriter(self._path / name, dtype, row)
        self._writers.append(writer)
        return writer
