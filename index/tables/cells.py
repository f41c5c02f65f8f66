"""Convert cells as people write them to the values that they mean.

Arrow's kernels do the work, so a column of a million texts takes a fraction of a second.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from grace.configs.arrays import Bools, Int64, UInt8

_BLANKS = " \t"
_INTEGER = r"^(-?[1-9][0-9]{0,17}|0)$"
_LONG_INTEGER = r"^[1-9][0-9]{18}$"
_MOST = str((1 << 63) - 1)
_NUMBER = r"^[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?$"

TIME_UNITS = ("s", "ms", "us", "ns")
PER_SECOND = {unit: 1000**power for power, unit in enumerate(TIME_UNITS)}


@dataclass(frozen=True, slots=True)
class ListParts:
    """Row r's values are flat[offsets[r] : offsets[r + 1]] where valid[r]."""

    offsets: Int64  # [rows + 1]
    valid: UInt8  # [rows]
    flat: pa.Array

    def array(self) -> pa.Array:
        mask = None if self.valid.all() else pa.array(self.valid == 0)
        return pa.LargeListArray.from_arrays(pa.array(self.offsets), self.flat, mask=mask)


def list_parts(column: pa.Array) -> ListParts:
    """Take a list array apart. The offsets of a slice then begin at 0."""
    rows = len(column)
    if pa.types.is_null(column.type):
        column = column.cast(pa.list_(pa.null()))
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


def with_types(schema: pa.Schema, change: Callable[[pa.DataType], pa.DataType]) -> pa.Schema:
    """Change the types of columns, and those inside their lists and structs."""

    def changed(field: pa.Field) -> pa.Field:
        kind = field.type
        if pa.types.is_list(kind):
            kind = pa.list_(changed(kind.value_field))
        elif pa.types.is_large_list(kind):
            kind = pa.large_list(changed(kind.value_field))
        elif pa.types.is_struct(kind):
            kind = pa.struct([changed(inner) for inner in kind])
        return field.with_type(change(kind))

    return pa.schema([changed(field) for field in schema], schema.metadata)


def is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_rule(kind: pa.DataType) -> bool:
    """Return whether a column of this type states rules: texts, integers, booleans or lists."""
    value = kind.value_type if is_list(kind) else kind
    return is_text(value) or bool(
        pa.types.is_integer(value) or pa.types.is_boolean(value) or pa.types.is_null(value)
    )


def without_dictionary(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def texts(column: pa.Array) -> list[str | None]:
    """Return the values as text; None for a null and for bytes that are not UTF-8."""
    if not is_text(column.type):
        column = column.cast(pa.string())
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        binary = column.cast(pa.large_string()).cast(pa.large_binary())
        return [_text(value) for value in binary.to_pylist()]


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def coded(column: pa.Array) -> tuple[Int64, list[str | None]]:
    """Return the distinct values of a column as texts, and each row's; -1 for a null."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    codes: Int64 = column.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    return codes, texts(column.dictionary)


def rule_lists(column: pa.Array, separator: str | None, *, is_csv: bool) -> ListParts:
    """Return a rule as lists of texts: a scalar has one value, a null or an empty text none.

    A separator splits texts in every format. Without one, a text is one value; the texts of a CSV
    lose the blanks around them.
    """
    if is_list(column.type):
        parts = list_parts(column)
        is_texts = is_text(parts.flat.type)
        return parts if is_texts else replace(parts, flat=parts.flat.cast(pa.string()))
    splits = is_csv or (separator is not None and is_text(column.type))
    column = column if is_text(column.type) else column.cast(pa.string())
    plain = without_dictionary(column)
    given = pc.not_equal(plain, "").fill_null(False)
    if splits:
        return split_cells(pc.if_else(given, plain, None), separator)
    valid = given.to_numpy(zero_copy_only=False)
    flat = column if valid.all() else column.filter(given)
    return ListParts(_offsets(valid), valid.view(np.uint8), flat)


def split_cells(column: pa.Array, separator: str | None) -> ListParts:
    """Return texts as lists of texts, without the blanks around each.

    Every Unicode space is a blank, since spreadsheets write no-break spaces. A null cell is a null
    list. An empty text between two separators is a null in the list.
    """
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    cells = column.filter(pa.array(valid))
    if separator is None:
        offsets, flat = _offsets(valid), cells
    else:
        parts = pc.split_pattern(cells, separator)
        sizes = np.zeros(len(column), np.int64)
        sizes[valid] = pc.list_value_length(parts).to_numpy(zero_copy_only=False)
        offsets, flat = _offsets(sizes), parts.flatten()
    flat = pc.utf8_trim_whitespace(flat)
    return ListParts(offsets, valid.view(np.uint8), pc.if_else(pc.equal(flat, ""), None, flat))


def integers(column: pa.Array) -> tuple[pa.Array, Bools]:
    """Return texts as int64, and which of them are not integers; those are null.

    Each number has one spelling: 007 is not an integer, since it may be another id than 7.
    """
    column = pc.utf8_trim(column, _BLANKS)
    good = pc.or_(
        pc.match_substring_regex(column, _INTEGER),
        pc.and_(pc.match_substring_regex(column, _LONG_INTEGER), pc.less_equal(column, _MOST)),
    )
    return _parsed(column, good, pa.int64())


def numbers(column: pa.Array) -> tuple[pa.Array, Bools]:
    """Return texts as float64, and which of them are not numbers; those are null."""
    column = pc.utf8_trim(column, _BLANKS)
    return _parsed(column, pc.match_substring_regex(column, _NUMBER), pa.float64())


def integer_lists(parts: ListParts) -> tuple[ListParts, Bools]:
    """Return lists of texts as lists of int64, and which lists hold anything else."""
    values, bad = integers(parts.flat)
    bad |= parts.flat.is_null().to_numpy(zero_copy_only=False)
    until = np.append(0, np.cumsum(bad))
    faulty = until[parts.offsets[1:]] > until[parts.offsets[:-1]]
    return replace(parts, flat=values), faulty


def _parsed(column: pa.Array, good: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Bools]:
    bad: Bools = ~good.fill_null(True).to_numpy(zero_copy_only=False)
    return pc.if_else(good, column, None).cast(kind), bad


def _offsets(sizes: npt.NDArray[np.generic]) -> Int64:
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def milliseconds(times: Int64, unit: str, sign: int) -> Int64:
    """Return times of a unit in whole milliseconds. A `sign` of -1 rounds up."""
    factor = PER_SECOND[unit]
    return times * 1000 if factor < 1000 else sign * (sign * times // (factor // 1000))


def moments(column: pa.Array) -> pa.Array | None:
    """Return texts as times, with or without a time zone; None if they are not times."""
    for unit, zone in product(("ns", "us"), (None, "UTC")):  # ns end in 2262
        try:
            return column.cast(pa.timestamp(unit, zone))
        except pa.ArrowInvalid:
            continue
    return None


def each_moment(column: pa.Array, sign: int) -> tuple[Int64, Bools]:
    """Return texts of any forms as times in milliseconds, and which of them are times."""
    indices, distinct = coded(column)
    found = [moments(pa.array([text], pa.string())) for text in distinct]
    times = [
        0
        if each is None
        else milliseconds(each.cast(pa.int64()).to_numpy(), each.type.unit, sign)[0]
        for each in found
    ]
    return np.array(times, np.int64)[indices], np.array([x is not None for x in found])[indices]
