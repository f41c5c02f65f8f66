"""Array types and the few ragged-array operations that the generators share."""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
UInt16Array = npt.NDArray[np.uint16]
BoolArray = npt.NDArray[np.bool_]

_Array = TypeVar("_Array", bound=npt.NDArray[Any])


def frozen(array: _Array) -> _Array:
    """The same array, read-only from here on."""
    array.setflags(write=False)
    return array


def offsets_of(counts: npt.NDArray[Any]) -> Int64Array:
    """[n] counts -> [n + 1] offsets, 0 first, the total last."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return frozen(offsets)


def position_in_run(offsets: Int64Array) -> Int64Array:
    """0, 1, 2.. within each run that `offsets` delimits; [offsets[-1]]."""
    return np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))


def pick_by_share(rng: np.random.Generator, shares: FloatArray, size: int) -> Int64Array:
    """`size` draws of an index, each with probability proportional to `shares`."""
    cumulative = np.cumsum(shares)
    drawn: Int64Array = np.searchsorted(cumulative, rng.random(size) * cumulative[-1], side="right")
    return np.minimum(drawn, np.int64(len(shares) - 1))
