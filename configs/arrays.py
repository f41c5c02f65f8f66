"""Types of arrays, whose shapes are in comments next to their use, and arrays lent to readers."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Int64: TypeAlias = npt.NDArray[np.int64]
Int32: TypeAlias = npt.NDArray[np.int32]
UInt64: TypeAlias = npt.NDArray[np.uint64]
UInt32: TypeAlias = npt.NDArray[np.uint32]
UInt16: TypeAlias = npt.NDArray[np.uint16]
UInt8: TypeAlias = npt.NDArray[np.uint8]
Float64: TypeAlias = npt.NDArray[np.float64]
Float32: TypeAlias = npt.NDArray[np.float32]
Bools: TypeAlias = npt.NDArray[np.bool_]
Integers: TypeAlias = npt.NDArray[np.integer]
AnyArray: TypeAlias = npt.NDArray[Any]
Shape: TypeAlias = tuple[type[np.generic], tuple[int, ...]]
Room: TypeAlias = Callable[[Sequence[Shape]], Sequence[AnyArray]]


def new_arrays(shapes: Sequence[Shape]) -> list[AnyArray]:
    return [np.zeros(shape, kind) for kind, shape in shapes]  # no row fills an empty batch's ends


def rounded_room(values: int) -> int:
    """Return a power of two: so the arrays of most batches have the same sizes."""
    return 1 << max(0, values - 1).bit_length()
