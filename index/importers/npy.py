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

from grace.configs.errors import InputError
from grace.index.importers.items import BATCH_ITEMS
from grace.index.importers.json_items import lines
from grace.index.progress import Advance
from grace.index.snapshot import MAX_SID_LENGTH
from grace.index.storage.strict_json import shown
from grace.index.tables.addresses import first_line
from grace.index.tables.item_numbers import no_name
from grace.index.tables.rows import Rows, other_rows

_INTEGERS = re.compile(r"[<>=|]?[iu][1248]")
_TEXTS = re.compile(r"[<>=|]?U[0-9]{1,4}")
_DAMAGE = (ValueError, SyntaxError, TypeError, LookupError, RecursionError, MemoryError, TokenError)


def open_codes(path: Path, sid_length: int | None, cut: bool) -> npt.NDArray[Any]:
    """Map the array, cut to the SID length if `cut`.   [items, L]"""
    codes = open_array(path, _INTEGERS, "integers")
    if codes.ndim != 2 or not 1 <= codes.shape[1] <= MAX_SID_LENGTH:
        raise InputError(
            f"{path}: expected [items, tokens of a SID, 1 to {MAX_SID_LENGTH}], "
            f"got {list(codes.shape)}"
        )
    if sid_length is None:
        return codes
    if codes.shape[1] < sid_length or (codes.shape[1] > sid_length and not cut):
        raise InputError(
            f"{path}: {codes.shape[1]} tokens an item, the SID length is {sid_length}; "
            "longer SIDs are cut with --sid-length"
        )
    return codes[:, :sid_length]


def read_npy(
    path: Path, codes: npt.NDArray[Any], ids: Path | None, advance: Advance
) -> Iterator[Rows]:
    """Yield `item_id` and `sid`. Without ids, a row's number names its item.

    `advance` is called with how many were read.
    """
    parts = id_batches(ids, len(codes))
    for first in range(0, len(codes), BATCH_ITEMS):
        part = codes[first : first + BATCH_ITEMS]
        columns = {"item_id": next(parts), "sid": as_lists(part)}
        yield other_rows(str(path), range(first, first + len(part)), columns, "item_id", {})
        advance(first + len(part))
    if next(parts, None) is not None:
        raise InputError(f"{ids}: more ids than the {len(codes)} items of {path}")


def as_lists(part: npt.NDArray[Any]) -> pa.Array:
    """Return the rows of an array [rows, values] as lists."""
    plain = np.ascontiguousarray(part, part.dtype.newbyteorder("="))
    return pa.FixedSizeListArray.from_arrays(pa.array(plain.reshape(-1)), part.shape[1])


def id_batches(path: Path | None, count: int) -> Iterator[pa.Array]:
    """Yield the ids of each batch, int64 or large_string, then those that are left over."""
    if path is None:
        for first in range(0, count, BATCH_ITEMS):
            yield pa.array(np.arange(first, min(first + BATCH_ITEMS, count)))
    elif path.suffix.lower() == ".npy":
        array = open_array(
            path, re.compile(f"{_INTEGERS.pattern}|{_TEXTS.pattern}"), "integers or text"
        )
        if array.shape != (count,):
            raise InputError(f"{path}: expected [items] = [{count}], got {list(array.shape)}")
        for first in range(0, count, BATCH_ITEMS):
            yield _plain_ids(path, np.asarray(array[first : first + BATCH_ITEMS]))
    else:
        yield from _text_ids(path, count)


def _plain_ids(path: Path, part: npt.NDArray[Any]) -> pa.Array:
    if part.dtype.kind == "U":
        try:
            return _texts(path, [str(text) for text in part.tolist()])
        except (ValueError, OverflowError):  # a code point that Unicode does not have
            raise InputError(f"{path}: holds what is no text") from None
    if part.dtype.kind == "u" and len(part) and int(part.max()) > np.iinfo(np.int64).max:
        raise InputError(f"{path}: id {part.max()} is above 2^63 - 1")
    return pa.array(part.astype(np.int64))


def _texts(path: Path, part: list[str]) -> pa.Array:
    try:
        return pa.array(part, pa.large_string())
    except UnicodeEncodeError:
        fault = next(filter(None, map(no_name, part)))
        raise InputError(f"{path}: an id {fault}; write it again") from None


def _text_ids(path: Path, count: int) -> Iterator[pa.Array]:
    part: list[str] = []
    found = 0
    for line in lines(path, lambda _: None):
        try:
            part.append("" if line is None else line.decode())
        except UnicodeDecodeError:
            raise InputError(f"{path}: line {found + 1}: expected UTF-8") from None
        found += 1
        if len(part) == BATCH_ITEMS or found == count:
            yield _texts(path, part)
            part = []
    if found < count:
        raise InputError(f"{path}: {found} ids for {count} items; one line each")
    if part:
        yield _texts(path, part)


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
