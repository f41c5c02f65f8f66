"""Arrays that a caller lends to readers."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

AnyArray: TypeAlias = npt.NDArray[Any]
Shape: TypeAlias = tuple[type[np.generic], tuple[int, ...]]
Room: TypeAlias = Callable[[Sequence[Shape]], Sequence[AnyArray]]


def new_arrays(shapes: Sequence[Shape]) -> list[AnyArray]:
    return [np.zeros(shape, kind) for kind, shape in shapes]  # no row fills an empty batch's ends


def rounded_room(values: int) -> int:
    """Return a power of two: so the arrays of most batches have the same sizes."""
    return 1 << max(0, values - 1).bit_length()
