"""Codes as one `.npy` array of integers, [items, L]; and item ids, as another or as lines of text.

Only the header and plain numbers are read: a pickle, which could run anything, is refused.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.configs.errors import InputError
from grace.index.importers.item_batches import BATCH_ITEMS, MAX_TOKEN, ItemBatch
from grace.index.importers.json_lines import lines
from grace.index.rejects import Fault
from grace.index.snapshot import MAX_SID_LENGTH
from grace.index.storage.strict_json import shown

_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 1 << 16
_MOST_AXES = 32  # of any array that NumPy wrote before its version 2
_INTEGERS = re.compile(r"[<>=|]?[iu][1248]")
_TEXTS = re.compile(r"[<>=|]?U[0-9]{1,4}")

Ids = npt.NDArray[np.int64] | list[str]


@dataclass(frozen=True, slots=True)
class _Header:
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Any  # "C" or "F"
    offset: int


def open_codes(path: Path, sid_length: int | None, cut: bool) -> npt.NDArray[Any]:
    """Map the array, cut to the SID length if `cut`.   [items, L]"""
    codes = _open(path, _INTEGERS, "integers")
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
    path: Path, codes: npt.NDArray[Any], ids: Path | None, advance: Callable[[int], None]
) -> Iterator[ItemBatch]:
    """Without ids, a row's number names its item. `advance` is called with how many were read."""
    parts = _ids(ids, len(codes))
    for first in range(0, len(codes), BATCH_ITEMS):
        part = np.asarray(codes[first : first + BATCH_ITEMS])
        part_ids = next(parts)
        outside = (part < 0) | (part > MAX_TOKEN)
        bad = outside.any(axis=1)
        rejects = []
        for at in np.flatnonzero(bad).tolist():
            position = int(np.argmax(outside[at]))
            reason = f"token at position {position} is not 0 to {MAX_TOKEN}"
            fault = Fault("sid", str(part[at, position]), reason)
            rejects.append(fault.of_item(str(path), first + at, str(part_ids[at])))
        good = np.flatnonzero(~bad)
        yield ItemBatch(
            first + good,
            [part_ids[at] for at in good] if isinstance(part_ids, list) else part_ids[good],
            part[good].astype(np.int64),
            tuple(rejects),
            tuple(str(part_ids[at]) for at in np.flatnonzero(bad)),
        )
        advance(first + len(part))
    if next(parts, None) is not None:
        raise InputError(f"{ids}: more ids than the {len(codes)} items of {path}")


def _ids(path: Path | None, count: int) -> Iterator[Ids]:
    """Yield the ids of each batch, then those that are left over."""
    if path is None:
        for first in range(0, count, BATCH_ITEMS):
            yield np.arange(first, min(first + BATCH_ITEMS, count))
    elif path.suffix.lower() == ".npy":
        array = _open(path, re.compile(f"{_INTEGERS.pattern}|{_TEXTS.pattern}"), "integers or text")
        if array.shape != (count,):
            raise InputError(f"{path}: expected [items] = [{count}], got {list(array.shape)}")
        for first in range(0, count, BATCH_ITEMS):
            yield _plain_ids(path, np.asarray(array[first : first + BATCH_ITEMS]))
    else:
        yield from _text_ids(path, count)


def _plain_ids(path: Path, part: npt.NDArray[Any]) -> Ids:
    if part.dtype.kind == "U":
        try:
            return [str(text) for text in part.tolist()]
        except (ValueError, OverflowError):  # a code point that Unicode does not have
            raise InputError(f"{path}: holds what is no text") from None
    if part.dtype.kind == "u" and len(part) and int(part.max()) > np.iinfo(np.int64).max:
        raise InputError(f"{path}: id {part.max()} is above 2^63 - 1")
    return part.astype(np.int64)


def _text_ids(path: Path, count: int) -> Iterator[Ids]:
    part: list[str] = []
    found = 0
    for line in lines(path, lambda _: None):
        try:
            part.append("" if line is None else line.decode())
        except UnicodeDecodeError:
            raise InputError(f"{path}: line {found + 1}: expected UTF-8") from None
        found += 1
        if len(part) == BATCH_ITEMS or found == count:
            yield part
            part = []
    if found < count:
        raise InputError(f"{path}: {found} ids for {count} items; one line each")
    if part:
        yield part


def _open(path: Path, wanted: re.Pattern[str], name: str) -> npt.NDArray[Any]:
    header = _read_header(path, wanted, name)
    expected_bytes = header.offset + prod(header.shape) * header.dtype.itemsize
    size = path.stat().st_size
    if size != expected_bytes:
        raise InputError(
            f"{path}: has {size} bytes, its header says {expected_bytes}; write it again"
        )
    if prod(header.shape) == 0:
        raise InputError(f"{path}: shape {list(header.shape)} holds nothing to import")
    return np.memmap(
        path, header.dtype, "r", offset=header.offset, shape=header.shape, order=header.order
    )


def _read_header(path: Path, wanted: re.Pattern[str], name: str) -> _Header:
    with path.open("rb") as file:
        start = file.read(8)
        if start[:6] != _MAGIC or start[6:7] not in (b"\1", b"\2", b"\3"):
            raise InputError(f"{path}: not a .npy file; write it with numpy.save")
        length_bytes = 2 if start[6] == 1 else 4
        length = int.from_bytes(file.read(length_bytes), "little")
        text = file.read(min(length, _LONGEST_HEADER))
        offset = file.tell()
    try:
        header = ast.literal_eval(text.decode().strip())
        descr, fortran = header["descr"], header["fortran_order"]
        shape = tuple(int(size) for size in header["shape"])
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError):
        raise InputError(f"{path}: its .npy header is damaged; write it with numpy.save") from None
    if isinstance(descr, str) and "O" in descr:
        raise InputError(
            f"{path}: holds pickled Python objects, which are never read; "
            "write plain numbers: numpy.save(path, numpy.array(codes, numpy.int64))"
        )
    if not isinstance(descr, str) or not wanted.fullmatch(descr):
        raise InputError(f"{path}: expected {name}, got {shown(descr)}")
    good_shape = len(shape) <= _MOST_AXES and all(0 <= n <= sys.maxsize for n in shape)
    if len(text) < length or not good_shape:
        raise InputError(f"{path}: its .npy header is damaged; write it with numpy.save")
    return _Header(np.dtype(descr), shape, "F" if fortran else "C", offset)
