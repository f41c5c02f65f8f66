"""Turn Arrow columns of one batch into the plain arrays that native code reads."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from grace.index.targeting.schema import RESERVED_VALUE

BAD_VALUE = -1
"""The code of a value that no rule may name."""

_NO_CODES = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class ListColumn:
    """Row r's values are codes[offsets[r] : offsets[r + 1]] where valid[r], else it has no rule.

    offsets int64 [rows + 1], valid uint8 [rows], codes int32 [...]
    """

    offsets: npt.NDArray[np.int64]
    valid: npt.NDArray[np.uint8]
    codes: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ListParts:
    offsets: npt.NDArray[np.int64]
    valid: npt.NDArray[np.uint8]
    flat: pa.Array


def list_parts(column: pa.Array) -> ListParts:
    """Takes a list array apart; a slice's offsets are moved to begin at 0."""
    rows = len(column)
    if pa.types.is_fixed_size_list(column.type):
        size = column.type.list_size
        offsets = np.arange(rows + 1, dtype=np.int64) * size
        flat = column.values.slice(column.offset * size, rows * size)
    else:
        offsets = column.offsets.to_numpy().astype(np.int64)
        flat = column.values.slice(offsets[0], offsets[-1] - offsets[0])
        offsets -= offsets[0]
    valid = column.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    return ListParts(offsets, valid, flat)


def list_column(column: pa.Array, code_of: Callable[[str], int]) -> ListColumn:
    """`code_of` is called once per distinct value of the batch."""
    rows = len(column)
    if pa.types.is_null(column.type):
        return ListColumn(np.zeros(rows + 1, np.int64), np.zeros(rows, np.uint8), _NO_CODES)
    parts = list_parts(column)
    flat = parts.flat
    if pa.types.is_null(flat.type):
        return ListColumn(parts.offsets, parts.valid, np.full(len(flat), BAD_VALUE, np.int32))
    if not pa.types.is_dictionary(flat.type):
        flat = flat.dictionary_encode()
    values = _texts(flat.dictionary)
    codes = np.fromiter(
        (BAD_VALUE if value is None else code_of(value) for value in values),
        np.int32,
        len(values),
    )
    # The last code is for null elements, whose index is -1.
    codes = np.append(codes, np.int32(BAD_VALUE))
    indices = flat.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    return ListColumn(parts.offsets, parts.valid, codes[indices])


def _texts(dictionary: pa.Array) -> list[str | None]:
    """The distinct values; None for bytes that are not UTF-8."""
    try:
        return list(dictionary.to_pylist())
    except UnicodeDecodeError:
        return [_text(value) for value in dictionary.cast(pa.large_binary()).to_pylist()]


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def attribute_codes(values: tuple[str, ...]) -> Callable[[str], int]:
    codes = {value: code for code, value in enumerate(values)}
    return lambda value: codes.get(value, BAD_VALUE)


class ValueCodes:
    """Ids of one set's values, in order of arrival."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def __call__(self, value: str) -> int:
        if value == RESERVED_VALUE:
            return BAD_VALUE
        return self._ids.setdefault(value, len(self._ids))

    def strings(self) -> list[str]:
        return list(self._ids)
