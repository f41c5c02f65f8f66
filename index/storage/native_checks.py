"""Call native/src/structure.cpp: each check finds the first fault, its kind and its place."""

from collections.abc import Callable
from ctypes import c_int32, c_int64, c_uint64
from enum import IntEnum
from typing import Any

import numpy as np

from grace.native.loader import array_in, array_out, declare


class Kind(IntEnum):
    """The C++ file has the same numbers."""

    NONE = 0
    FIRST_OFFSET = 1
    OFFSET_DESCENDS = 2
    EMPTY_GROUP = 3
    LAST_OFFSET = 4
    OUT_OF_RANGE = 5
    NOT_ASCENDING = 6
    PADDING_BIT = 7
    STAR_FLAG = 8
    STAR_ROW = 9
    NOT_FINITE = 10
    NOT_UTF8 = 11


def _check(name: str, *argtypes: Any) -> Callable[..., tuple[Kind, int]]:
    """A check whose arguments end with the number of threads."""
    native = declare(name, *argtypes, c_int32, array_out(np.int64))

    def check(*arguments: Any) -> tuple[Kind, int]:
        fault = np.zeros(2, np.int64)
        native(*arguments, fault)
        return Kind(int(fault[0])), int(fault[1])

    return check


def _offsets(suffix: str, dtype: type[np.generic]) -> Callable[..., tuple[Kind, int]]:
    """Takes offsets, groups, members, nonempty, threads."""
    name = f"grace_check_offsets_{suffix}"
    return _check(name, array_in(dtype), c_int64, c_int64, c_int32)


def _groups(
    suffix: str, offsets: type[np.generic], values: type[np.generic]
) -> Callable[..., tuple[Kind, int]]:
    """Takes offsets, groups, values, count, greatest, threads."""
    name = f"grace_check_groups_{suffix}"
    return _check(name, array_in(offsets), c_int64, array_in(values), c_int64, c_int64)


find_in_offsets_i32 = _offsets("i32", np.int32)
find_in_offsets_i64 = _offsets("i64", np.int64)
find_in_node_tokens = _groups("i32_u16", np.int32, np.uint16)
find_in_rule_values = _groups("i64_i32", np.int64, np.int32)
find_in_leaf_ads = _groups("i64_i64", np.int64, np.int64)
# Takes ids, count, stride, begin, end, threads.
find_in_ids = _check("grace_check_ids", array_in(np.int32), c_int64, c_int64, c_int64, c_int64)
# Takes table, rows, words, bits, threads.
find_in_padding = _check("grace_check_padding", array_in(np.uint64, 2), c_int64, c_int64, c_int64)
# Takes table, star, rows, bloom_bits, bloom_hashes, star_hash, threads.
find_in_stars = _check(
    "grace_check_stars",
    array_in(np.uint64, 2),
    array_in(np.uint8),
    c_int64,
    c_int64,
    c_int64,
    c_uint64,
)
# Takes ad_ids, lookup, ads, threads.
find_in_lookup = _check("grace_check_lookup", array_in(np.int64), array_in(np.int32), c_int64)
# Takes weights, count, threads.
find_in_weights = _check("grace_check_finite", array_in(np.float32), c_int64)
# Takes offsets, strings, utf8, bytes, threads.
find_in_strings = _check(
    "grace_check_strings", array_in(np.int64), c_int64, array_in(np.uint8), c_int64
)
