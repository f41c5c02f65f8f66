"""Interned values of one set: every string that some ad's rule names, numbered in UTF-8 order."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from xxhash import xxh3_64_intdigest

from grace.configs.arrays import Int64, UInt8, UInt64


@dataclass(frozen=True)
class InternedValues:
    offsets: Int64  # [values + 1], bytes of value i: offsets[i] .. [i + 1]
    utf8: UInt8  # [...]: strictly ascending, value by value

    @staticmethod
    def of(values: Iterable[str]) -> "InternedValues":
        encoded = sorted(value.encode() for value in values)
        offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        return InternedValues(offsets, np.frombuffer(b"".join(encoded), np.uint8))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, value_id: int) -> str:
        begin, end = self.offsets[value_id], self.offsets[value_id + 1]
        return self.utf8[begin:end].tobytes().decode()

    def __contains__(self, value: str) -> bool:
        place = bisect_left(self, value)  # UTF-8 and Python order texts in the same way
        return place < len(self) and self[place] == value

    def hashes(self, seed: int) -> UInt64:
        """Return the hash of each value, from which its Bloom bits are taken."""
        blob, ends = self.utf8.tobytes(), self.offsets.tolist()
        found = (xxh3_64_intdigest(blob[begin:end], seed) for begin, end in pairwise(ends))
        return np.fromiter(found, np.uint64, len(self))

    @cached_property
    def strings(self) -> tuple[str, ...]:
        blob, ends = self.utf8.tobytes(), self.offsets.tolist()
        return tuple(blob[begin:end].decode() for begin, end in pairwise(ends))

    @cached_property
    def ids(self) -> dict[str, int]:
        return {value: value_id for value_id, value in enumerate(self.strings)}
