"""The codes of the values in columns of texts."""

import weakref
from ctypes import byref, c_int64, c_void_p

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from grace.index.forms.component import BAD_VALUE, Codes
from grace.index.tables.cells import texts
from grace.native.loader import array_out, declare

_new = declare("grace_values_new", c_void_p)
_free = declare("grace_values_free", c_void_p)
_add = declare("grace_values_add", c_void_p, c_int64, c_void_p, c_void_p, array_out(np.int32))

Int32 = npt.NDArray[np.int32]


class ValueCoder:
    """Gives texts their codes. It asks `codes` once for each distinct text.

    A native table numbers the texts, because a Python dictionary takes longer to look up each one.
    """

    def __init__(self, codes: Codes) -> None:
        self.codes = codes
        self._code_of = np.zeros(0, np.int32)  # by the table's number
        self._table = c_void_p()
        _new(byref(self._table))
        weakref.finalize(self, _free, self._table)

    def __call__(self, values: pa.Array) -> Int32:
        """Return the code of each text; BAD_VALUE for a null."""
        if pa.types.is_dictionary(values.type):
            indices = values.indices.cast(pa.int64()).fill_null(-1).to_numpy()
            of_rows: Int32 = np.append(self(values.dictionary), np.int32(BAD_VALUE))[indices]
            return of_rows
        if values.null_count:
            found = np.full(len(values), BAD_VALUE, np.int32)
            found[values.is_valid().to_numpy(zero_copy_only=False)] = self(values.drop_null())
            return found
        numbers = np.empty(len(values), np.int32)
        large = values.cast(pa.large_string())
        _, offsets, utf8 = large.buffers()
        if len(values):
            begin = offsets.address + 8 * large.offset
            _add(self._table, len(values), begin, utf8.address if utf8 else None, numbers)
        new = np.flatnonzero(numbers >= len(self._code_of))
        if len(new):
            _, firsts = np.unique(numbers[new], return_index=True)
            given = texts(values.take(pa.array(new[firsts])))
            codes = np.array([*map(self.codes.__getitem__, given)], np.int32)
            self._code_of = np.append(self._code_of, codes)
        return self._code_of[numbers]
