"""A request's lists as arrays. Strict: a float is no integer, a string no number."""

from array import array
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from grace.configs.errors import RequestError

__all__ = ["Integers", "finite_floats", "integers", "integers_below"]

Integers: TypeAlias = Sequence[int] | npt.NDArray[np.int64]

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
FLOAT32_MAX = float(np.finfo(np.float32).max)


def integers(values: Integers, field: str) -> npt.NDArray[np.int64]:
    """64-bit integers. An int64 array is taken as it is."""
    if isinstance(values, np.ndarray):
        if values.ndim == 1 and values.dtype == np.int64:
            return values
        values = values.tolist()
    if isinstance(values, str | bytes):
        raise RequestError(field, f"expected a list of integers, got {values!r}")
    try:
        # array() takes no float for an integer and no string for a number, as NumPy would.
        return np.frombuffer(array("q", values), np.int64) if len(values) else _NONE
    except (TypeError, OverflowError):
        wrong = next(value for value in values if not _is_int64(value))
        raise RequestError(field, f"{wrong!r} is not a 64-bit integer") from None


def finite_floats(values: Sequence[float], field: str) -> npt.NDArray[np.float32]:
    if isinstance(values, str | bytes):
        raise RequestError(field, f"expected a list of numbers, got {values!r}")
    try:
        wide = np.frombuffer(array("d", values))
    except (TypeError, OverflowError):
        raise RequestError(field, f"expected a list of numbers, got {list(values)!r}") from None
    finite = np.abs(wide) <= FLOAT32_MAX
    if not finite.all():
        raise RequestError(field, f"{wide[~finite][0]} is not finite")
    return wide.astype(np.float32)


def integers_below(bounds: Sequence[int], values: npt.NDArray[np.int64], field: str) -> None:
    """Column c of `values` holds 0 to bounds[c] - 1.   [n, len(bounds)]"""
    # Seen as unsigned, a negative number is larger than any bound.
    unsigned = values.view(np.uint64)
    if unsigned.max(initial=0) < min(bounds):
        return
    for column, bound in enumerate(bounds):
        wrong = values[unsigned[:, column] >= bound, column]
        if len(wrong):
            what = (
                f"token {wrong[0]} at position {column} of a SID" if len(bounds) > 1 else wrong[0]
            )
            raise RequestError(field, f"{what} is not one of 0 to {bound - 1}")


def _is_int64(value: object) -> bool:
    return isinstance(value, int | np.integer) and INT64_MIN <= int(value) <= INT64_MAX


_NONE = np.zeros(0, np.int64)
