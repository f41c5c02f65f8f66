"""A map from 64-bit ids to values, which may be large and usually changes by a few ids.

NumPy sorts and merges its arrays without the interpreter's lock; a large dictionary would hold it.
"""

import numpy as np
import numpy.typing as npt

from grace.configs.arrays import AnyArray, Bools, Int64

MOST_CHANGES = 1024
"""The most changes that wait to be merged into the array. A merge takes time in its size."""


class IdMap:
    """Ascending ids with their values, and the latest changes to them. It is not thread-safe.

    absent  the value of an id that the map lacks: False in a set, whose ids have True, and NaN in a
            map to floats
    """

    def __init__(self, absent: np.bool_ | np.float32) -> None:
        self._absent = absent
        self._nothing = np.empty(0, np.int64), np.empty(0, absent.dtype)
        self._ids, self._values = self._nothing
        self._changed, self._changes = self._nothing
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def of(self, ids: Int64) -> AnyArray:
        """Return the value of each id.   [n] -> [n]"""
        found = np.full(len(ids), self._absent)
        for known, values in ((self._ids, self._values), (self._changed, self._changes)):
            if len(known):
                at, there = _places(known, ids)
                found[there] = values[at[there]]
        return found

    def put(self, ids: Int64, values: npt.ArrayLike) -> None:
        """Give ids values, or remove those whose value is `absent`. Ids are distinct, ascending."""
        given, before = np.full(len(ids), values, self._absent.dtype), self.of(ids)
        self._size += int(self._present(given).sum()) - int(self._present(before).sum())
        differ = before != given
        news = ids[differ], given[differ]
        if len(self._changed) + len(news[0]) > MOST_CHANGES:
            self._ids, self._values = self._without_absent(*_merged(self.items(), news))
            self._changed, self._changes = self._nothing
        else:
            self._changed, self._changes = _merged((self._changed, self._changes), news)

    def items(self, after: int | None = None, most: int | None = None) -> tuple[Int64, AnyArray]:
        """Return the ids above `after`, ascending, at most `most` of them, and their values."""
        begin, first = (
            0 if after is None else int(np.searchsorted(ids, after, side="right"))
            for ids in (self._ids, self._changed)
        )
        # Changes may remove some of these.
        end = None if most is None else begin + most + len(self._changed)
        known = self._ids[begin:end], self._values[begin:end]
        changed = self._changed[first:], self._changes[first:]
        ids, values = self._without_absent(*_merged(known, changed))
        return ids[:most], values[:most]

    def sorted_ids(self, after: int | None = None, most: int | None = None) -> Int64:
        return self.items(after, most)[0]

    def _present(self, values: AnyArray) -> Bools:
        return values if values.dtype == np.bool_ else ~np.isnan(values)

    def _without_absent(self, ids: Int64, values: AnyArray) -> tuple[Int64, AnyArray]:
        present = self._present(values)
        return (ids, values) if present.all() else (ids[present], values[present])


def distinct(ids: Int64) -> Int64:
    """Return the ids ascending, each once."""
    ascending = np.sort(ids)
    if len(ascending) < 2:
        return ascending
    return ascending[np.concatenate(([True], ascending[1:] != ascending[:-1]))]


def _merged(old: tuple[Int64, AnyArray], new: tuple[Int64, AnyArray]) -> tuple[Int64, AnyArray]:
    """Return the ids of both, ascending; the new value counts for an id of both."""
    if not len(old[0]) or not len(new[0]):
        return new if len(new[0]) else old
    at, known = _places(old[0], new[0])
    values = old[1].copy()
    values[at[known]] = new[1][known]
    at, news = at[~known], ~known
    return np.insert(old[0], at, new[0][news]), np.insert(values, at, new[1][news])


def _places(ascending: Int64, ids: Int64) -> tuple[Int64, Bools]:
    """Return where each id is or belongs, and whether it is there. `ascending` is not empty."""
    at = np.searchsorted(ascending, ids)
    return at, ascending[np.minimum(at, len(ascending) - 1)] == ids
