"""Work over several threads: NumPy and Arrow leave the interpreter lock where they take long."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from grace.catalogues.synth.arrays import Int64Array

__all__ = ["ahead", "in_chunks"]

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
    """map(function, items) in order, a bounded number of results ahead of whoever takes them."""
    pending: deque[Future[_Result]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
