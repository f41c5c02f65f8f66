"""Bloom bits of a set's values. The hash is also the query, from which match.h takes the bits."""

from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from grace.index.targeting.schema import RESERVED_VALUE, TargetSet


def value_hash(value: str, seed: int) -> int:
    return xxhash.xxh3_64_intdigest(value.encode(), seed)


def star_hash(seed: int) -> int:
    return value_hash(RESERVED_VALUE, seed)


def bloom_positions(hashes: Any, target_set: TargetSet) -> tuple[Any, ...]:
    """The bits that a value sets, and that a row must have to contain it; of a hash or of many."""
    mask = target_set.bloom_bits - 1
    return tuple((hashes >> (16 * i)) & mask for i in range(target_set.bloom_hashes))


def star_rows(
    table: npt.NDArray[np.uint64], target_set: TargetSet, hash_seed: int
) -> npt.NDArray[np.uint8]:
    """1 for each Bloom row that contains the reserved element.   [rows, words] -> [rows]"""
    star = np.ones(len(table), np.uint8)
    for bit in bloom_positions(star_hash(hash_seed), target_set):
        star &= ((table[:, bit >> 6] >> np.uint64(bit & 63)) & np.uint64(1)).astype(np.uint8)
    return star
