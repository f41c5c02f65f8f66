"""Turn Arrow columns of one batch into the plain arrays that native code reads."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from grace.index.forms.component import BAD_VALUE, ListColumn
from grace.index.tables.cells import list_parts
from grace.index.tables.rows import coded

_NO_CODES = np.zeros(0, np.int32)


def list_column(column: pa.Array, code_of: Callable[[str], int]) -> ListColumn:
    """`code_of` is called once per distinct value of the batch."""
    rows = len(column)
    if pa.types.is_null(column.type):
        return ListColumn(np.zeros(rows + 1, np.int64), np.zeros(rows, np.uint8), _NO_CODES)
    parts = list_parts(column)
    flat = parts.flat
    if pa.types.is_null(flat.type):
        return ListColumn(parts.offsets, parts.valid, np.full(len(flat), BAD_VALUE, np.int32))
    indices, values = coded(flat)
    codes = [BAD_VALUE if value is None else code_of(value) for value in values]
    # The last code is for null elements, whose index is -1.
    return ListColumn(parts.offsets, parts.valid, np.array([*codes, BAD_VALUE], np.int32)[indices])
