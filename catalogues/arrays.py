"""Array types, ragged arrays, and the draws and thread pools that the generators share."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
UInt16Array = npt.NDArray[np.uint16]
BoolArray = npt.NDArray[np.bool_]

_Array = TypeVar("_Array", bound=npt.NDArray[Any])


def frozen(array: _Array) -> _Array:
    """Return the same array, made read-only."""
    array.setflags(write=False)
    return array


def offsets_of(counts: npt.NDArray[Any]) -> Int64Array:
    """[n] counts -> [n + 1] offsets, 0 first, the total last."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return frozen(offsets)


def position_in_run(offsets: Int64Array) -> Int64Array:
    """0, 1, 2.. within each run that `offsets` delimits; [offsets[-1]]."""
    return np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))


def pick_by_share(rng: np.random.Generator, shares: FloatArray, size: int) -> Int64Array:
    """Draw `size` indices, each with probability proportional to its share."""
    cumulative = np.cumsum(shares)
    drawn: Int64Array = np.searchsorted(cumulative, rng.random(size) * cumulative[-1], side="right")
    return np.minimum(drawn, np.int64(len(shares) - 1))


def bisected(too_low: Callable[[float], bool], high: float, halvings: int) -> tuple[float, float]:
    """Return two close values in 0 .. high; `too_low` is True of the lower, not of the upper."""
    low = 0.0
    for _ in range(halvings):
        middle = (low + high) / 2
        if too_low(middle):
            low = middle
        else:
            high = middle
    return low, high


def draw_share(rng: np.random.Generator, share: float, odds: FloatArray | BoolArray) -> BoolArray:
    """Draw True for `share` of the rows on average, in proportion to `odds`."""
    if share <= 0 or not odds.any():
        return np.zeros(len(odds), np.bool_)
    odds = odds.astype(np.float64)
    most = 1.0 / float(odds[odds > 0].min())
    _, scale = bisected(lambda scale: np.minimum(odds * scale, 1.0).mean() < share, most, 40)
    return rng.random(len(odds)) < odds * scale


def draw_option(
    rng: np.random.Generator, weights: Sequence[Sequence[float]], kind: Int64Array
) -> Int64Array:
    """Draw an option for each row by the weights of the row's kind.   weights [kinds, options]"""
    table = np.array(weights, np.float64)
    cumulative = np.cumsum(table / table.sum(axis=1, keepdims=True), axis=1)
    drawn = rng.random(len(kind))[:, np.newaxis]
    passed: Int64Array = (drawn >= cumulative[kind]).sum(axis=1)
    return np.minimum(passed, np.int64(table.shape[1] - 1))


_CHUNK = 1 << 19

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_chunks(
    out: npt.NDArray[Any], draw: Callable[[Int64Array], npt.NDArray[Any]], threads: int
) -> None:
    """out[i] = draw(i), chunk by chunk, so that memory stays bounded."""

    def fill(begin: int) -> None:
        end = min(begin + _CHUNK, len(out))
        out[begin:end] = draw(np.arange(begin, end))

    for _ in ahead(fill, range(0, len(out), _CHUNK), threads):
        pass


def ahead(
    function: Callable[[_Item], _Result], items: Iterable[_Item], threads: int
) -> Iterator[_Result]:
    """Return map(function, items), in order and at most `threads` results ahead of the caller.

    NumPy and Arrow release the interpreter lock during long operations.
    """
    pending: deque[Future[_Result]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
