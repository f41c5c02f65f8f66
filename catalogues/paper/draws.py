"""Random numbers as a pure function of (seed, stream, key).

The draw of a prefix, campaign or ad does not depend on the order of the work, its chunks or
threads, or on skipped parts. So the Parquet file, the arrays made without it and single SIDs agree.
"""

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.catalogues.arrays import FloatArray, Int64Array

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Stream(IntEnum):
    FAN_OUT = 1
    TOKEN = 2
    POPULARITY = 3
    MARKET = 4
    PACKAGE = 5
    PACKAGE_SIZE = 6
    SID_CAMPAIGN = 7
    AD_CAMPAIGN = 8
    CAMPAIGN_CHOICE = 9
    VARIANT = 10
    REGION_KIND = 11
    REGION = 12
    SMALL_RULE = 13
    SMALL_WINDOW = 14
    LOCATED = 15
    LOCATION_COUNT = 16
    LOCATION = 17
    WEIGHT = 18
    USER = 19
    USER_LOCATION = 20
    AFFINITY = 21
    TASTE = 22


class Draws:
    def __init__(self, seed: int) -> None:
        self._seed = _mixed(seed * _GOLDEN + 1)

    def start(self, stream: int) -> int:
        """Return the number below 2^64 that sets a stream apart: `bits` adds it to scaled keys."""
        return _mixed(self._seed ^ _mixed(stream * _GOLDEN))

    def bits(self, stream: int, keys: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
        """SplitMix64's finalizer over key and stream.   [n] -> [n]"""
        start = np.uint64(self.start(stream))
        x = keys.astype(np.uint64)  # a copy: the rest is in place
        x *= np.uint64(_GOLDEN)
        x += start
        x ^= x >> np.uint64(30)
        x *= np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(27)
        x *= np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
        return x

    def uniform(self, stream: int, keys: npt.NDArray[Any]) -> FloatArray:
        """In [0, 1)."""
        return (self.bits(stream, keys) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def below(self, stream: int, keys: npt.NDArray[Any], bound: Any) -> Int64Array:
        """Integers from 0 to bound - 1; the bound is one number or one per key."""
        drawn: Int64Array = (self.uniform(stream, keys) * bound).astype(np.int64)
        return drawn

    def normal(self, stream: int, keys: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Box-Muller over the two halves of the bits."""
        bits = self.bits(stream, keys)
        first = ((bits >> np.uint64(32)).astype(np.float32) + np.float32(0.5)) * np.float32(2**-32)
        angle = (bits & np.uint64(0xFFFFFFFF)).astype(np.float32)
        angle *= np.float32(2 * np.pi * 2**-32)
        radius = np.sqrt(np.float32(-2) * np.log(first))
        normals: npt.NDArray[np.float32] = radius * np.cos(angle)
        return normals


def _mixed(x: int) -> int:
    x &= _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
