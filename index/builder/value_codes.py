"""The codes of the values in columns of texts."""

import weakref
from collections.abc import Callable
from ctypes import byref, c_int64, c_void_p
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from grace.index.forms.component import BAD_VALUE, Codes
from grace.index.tables.cells import coded
from grace.native.loader import array_out, declare

_new = declare("grace_values_new", c_void_p)
_free = declare("grace_values_free", c_void_p)
_add = declare("grace_values_add", c_void_p, c_int64, c_void_p, c_void_p)
_find = declare(
    "grace_values_find", c_void_p, c_int64, c_void_p, c_void_p, array_out(np.int32)
)

Int32 = npt.NDArray[np.int32]


class ValueCoder:
    """Gives texts the codes that `codes` gives their values.

    It asks a native table that has the values of `codes` in their order. A dictionary of Python
    takes longer, so it gets only the values that the table does not have yet.
    """

    def __init__(self, codes: Codes) -> None:
        self.codes = codes
        self._known = 0  # values that the table has
        self._table = c_void_p()
        _new(byref(self._table))
        weakref.finalize(self, _free, self._table)

    def __call__(self, values: pa.Array) -> Int32:
        """Return the code of each text; BAD_VALUE for a null."""
        if pa.types.is_dictionary(values.type):
            indices = values.indices.cast(pa.int64()).fill_null(-1).to_numpy()
            of_rows: Int32 = np.append(self(values.dictionary), np.int32(BAD_VALUE))[indices]
            return of_rows
        found = np.full(len(values), BAD_VALUE, np.int32)
        self._call(_find, values, found)
        found[values.is_null().to_numpy(zero_copy_only=False)] = BAD_VALUE
        others = np.flatnonzero(found == BAD_VALUE)
        if len(others):
            indices, texts = coded(values.take(pa.array(others)))
            # The last code is for nulls, whose index is -1.
            found[others] = np.array([*map(self.codes.__getitem__, texts), BAD_VALUE])[indices]
            added = [*islice(reversed(self.codes), len(self.codes) - self._known)][::-1]
            self._call(_add, pa.array(added, pa.large_string()))
            self._known += len(added)
        return found

    def _call(self, function: Callable[..., None], texts: pa.Array, *out: Int32) -> None:
        large = texts.cast(pa.large_string())
        _, offsets, utf8 = large.buffers()
        if len(large):
            begin = offsets.address + 8 * large.offset
            function(self._table, len(large), begin, utf8.address if utf8 else None, *out)
