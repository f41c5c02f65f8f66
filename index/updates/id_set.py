"""A set of 64-bit ids, which may be large and usually changes by a few ids."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.int64]

MOST_CHANGES = 1024
"""The most changes that wait to be merged into the array. A merge takes time in its size."""


class IdSet:
    """A set as a sorted array and the latest changes to it. It is not thread-safe."""

    def __init__(self, ids: Array | None = None) -> None:
        self._ids = np.empty(0, np.int64) if ids is None else distinct(ids)
        self._changes: dict[int, bool] = {}  # id -> whether it is in the set
        self._size = len(self._ids)

    def __len__(self) -> int:
        return self._size

    def contains(self, ids: Array) -> npt.NDArray[np.bool_]:
        """Return for each id whether the set has it.   [n] -> [n]"""
        found = _among(self._ids, ids)
        if self._changes:
            changed = np.array(sorted(self._changes), np.int64)
            at = np.minimum(np.searchsorted(changed, ids), len(changed) - 1)
            present = np.array([self._changes[each] for each in changed.tolist()], np.bool_)
            found = np.where(changed[at] == ids, present[at], found)
        return found

    def change(self, ids: Array, *, present: bool) -> None:
        """Add ids if `present`, or else remove them. They must be distinct."""
        news = ids[self.contains(ids) != present]
        self._size += len(news) if present else -len(news)
        if len(self._changes) + len(news) > MOST_CHANGES:
            self._ids = _changed(self.sorted_ids(), news, present=present)
            self._changes.clear()
        else:
            self._changes.update(dict.fromkeys(news.tolist(), present))

    def sorted_ids(self, after: int | None = None, most: int | None = None) -> Array:
        """Return the ids above `after`, ascending, at most `most` of them; None: all."""
        begin = 0 if after is None else int(np.searchsorted(self._ids, after, side="right"))
        # Changes may remove some of these.
        end = None if most is None else begin + most + len(self._changes)
        merged = self._ids[begin:end]
        news = [each for each in self._changes if after is None or each > after]
        for present in (False, True):
            ids = sorted(each for each in news if self._changes[each] is present)
            merged = _changed(merged, np.array(ids, np.int64), present=present)
        return merged[:most]


def distinct(ids: Array) -> Array:
    """Return the ids ascending, each once."""
    ascending = np.sort(ids)
    if len(ascending) < 2:
        return ascending
    return ascending[np.concatenate(([True], ascending[1:] != ascending[:-1]))]


def _among(ascending: Array, ids: Array) -> npt.NDArray[np.bool_]:
    if not len(ascending):
        return np.zeros(len(ids), np.bool_)
    at = np.minimum(np.searchsorted(ascending, ids), len(ascending) - 1)
    found: npt.NDArray[np.bool_] = ascending[at] == ids
    return found


def _changed(ascending: Array, ids: Array, *, present: bool) -> Array:
    """Return the array with these ids added if `present`, or else removed."""
    if not len(ids):
        return ascending
    others = ascending[~_among(np.sort(ids), ascending)]
    return np.sort(np.concatenate((others, ids)), kind="stable") if present else others
