"""Codes as one `.npy` array of integers, [items, L]; and item ids, as another or as lines of text.

Only plain numbers are read: a pickle, which could run anything, is refused.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as csv

from grace.configs.errors import InputError
from grace.index.snapshot import MAX_SID_LENGTH
from grace.index.storage.strict_json import shown
from grace.index.tables.addresses import UNREADABLE, first_line
from grace.index.tables.rows import Rows, other_rows

BATCH_ITEMS = 1 << 16
_INTEGERS = re.compile(r"[<>=|]?[iu][1248]")
_IDS = re.compile(r"[<>=|]?([iu][1248]|U[0-9]{1,4})")
_DAMAGE = (ValueError, SyntaxError, TypeError, LookupError, RecursionError, MemoryError, TokenError)


def read_codes(path: Path, ids: Path | None, most: int | None) -> Iterator[Rows]:
    """Yield `item_id` and `sid`, cut to `most` tokens. Without ids, a row's number names its item.

    A memory map holds the array, [items, L].
    """
    codes = open_array(path, _INTEGERS, "integers")
    if codes.ndim != 2 or not 1 <= codes.shape[1] <= MAX_SID_LENGTH:
        raise InputError(
            f"{path}: expected [items, tokens of a SID, 1 to {MAX_SID_LENGTH}], "
            f"got {list(codes.shape)}"
        )
    names = read_ids(ids, len(codes))
    for first in range(0, len(codes), BATCH_ITEMS):
        part = codes[first : first + BATCH_ITEMS, :most]
        columns = {"item_id": names.slice(first, len(part)), "sid": as_lists(part)}
        yield other_rows(str(path), range(first, first + len(part)), columns, "item_id", {})


def as_lists(part: npt.NDArray[Any]) -> pa.Array:
    """Return the rows of an array [rows, values] as lists."""
    plain = np.ascontiguousarray(part, part.dtype.newbyteorder("="))
    return pa.FixedSizeListArray.from_arrays(pa.array(plain.reshape(-1)), part.shape[1])


def read_ids(path: Path | None, count: int) -> pa.Array:
    """Return the ids of all items, int64 or large_string: those of a file, or row numbers."""
    if path is None:
        return pa.array(np.arange(count))
    is_array = path.suffix.lower() == ".npy"
    ids = _array_ids(path) if is_array else _lines(path)
    if len(ids) != count:
        raise InputError(f"{path}: {len(ids)} ids for {count} items; give each item one")
    return ids


def _array_ids(path: Path) -> pa.Array:
    array = open_array(path, _IDS, "integers or text")
    if array.ndim != 1:
        raise InputError(f"{path}: expected [items], got {list(array.shape)}")
    if array.dtype.kind == "u" and int(array.max()) > np.iinfo(np.int64).max:
        raise InputError(f"{path}: id {array.max()} is above 2^63 - 1")
    if array.dtype.kind != "U":
        return pa.array(array.astype(np.int64))
    try:
        return pa.array(array.tolist(), pa.large_string())
    except (ValueError, OverflowError):  # half of a surrogate pair, or no code point of Unicode
        raise InputError(f"{path}: holds what is no text; write its ids again") from None


def _lines(path: Path) -> pa.Array:
    reading = csv.ReadOptions(column_names=["id"])
    parsing = csv.ParseOptions(delimiter="\x01", quote_char=False, ignore_empty_lines=False)
    converting = csv.ConvertOptions(column_types={"id": pa.large_string()})
    try:
        return csv.read_csv(path, reading, parsing, converting)["id"].combine_chunks()
    except UNREADABLE as error:
        raise InputError(
            f"{path}: not lines of text in UTF-8, an id each: {first_line(error)}"
        ) from None


def open_array(path: Path, wanted: re.Pattern[str], name: str) -> npt.NDArray[Any]:
    """Map an array of one of the wanted dtypes."""
    try:
        with np.errstate(over="ignore"):  # a shape that is too large is an error anyway
            array = np.lib.format.open_memmap(path, mode="r")
    except _DAMAGE as error:
        raise InputError(
            f"{path}: not a .npy file of plain numbers: {first_line(error)}; write it again: "
            "numpy.save(path, numpy.array(codes, numpy.int64))"
        ) from None
    if array.dtype.fields or not wanted.fullmatch(array.dtype.str):
        raise InputError(f"{path}: expected {name}, got {shown(array.dtype.str)}")
    size, expected = path.stat().st_size, array.offset + array.nbytes
    if size != expected:
        raise InputError(f"{path}: has {size} bytes, its header says {expected}; write it again")
    if array.size == 0:
        raise InputError(f"{path}: shape {list(array.shape)} holds nothing to import")
    return array
