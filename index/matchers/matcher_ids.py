"""The row ids of matchers, in the form that native/include/grace/match.h reads."""

import ctypes
from ctypes import c_int64, c_void_p

import numpy as np
import numpy.typing as npt


class MatcherIds(ctypes.Structure):
    """Addresses; the caller keeps the arrays alive."""

    _fields_ = (
        ("ids", c_void_p),
        ("offsets", c_void_p),
        ("levels", c_void_p),
        ("num_levels", c_int64),
    )

    @classmethod
    def of(
        cls,
        ids: npt.NDArray[np.int32],
        offsets: npt.NDArray[np.int32] | None = None,
        levels: npt.NDArray[np.int64] | None = None,
    ) -> "MatcherIds":
        """offsets: of dynamic k-way; levels int64 [sid_length, 3]: of static k-way."""
        for array, dtype in ((ids, np.int32), (offsets, np.int32), (levels, np.int64)):
            if array is not None and (array.dtype != dtype or not array.flags.c_contiguous):
                raise ValueError(f"native admission reads contiguous {dtype.__name__} ids")
        return cls(
            ids.ctypes.data,
            None if offsets is None else offsets.ctypes.data,
            None if levels is None else levels.ctypes.data,
            0 if levels is None else len(levels),
        )
