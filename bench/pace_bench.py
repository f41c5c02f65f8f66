"""Whether the machine's processors keep their pace.

    python -m grace.bench.pace_bench --seconds 15

Two processes only compute, in equal pieces, on a machine without other work. A moment is slow if
both need far longer for their pieces. Then the machine is slow, not one of them: where virtual
machines share a host, others probably have the processors.
"""

import argparse
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from grace.bench.result_file import Row, facts_of, record

PIECE = 20_000  # additions: about 0.4 ms
MOMENT_SECONDS = 0.01
SLOW = 1.7  # times the median

Pieces: TypeAlias = npt.NDArray[np.float64]
"""When each piece began and how long it took.   [pieces, 2]"""


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m grace.bench.pace_bench", description=__doc__)
    parser.add_argument("--out", type=Path, help="result file; without it, only print")
    parser.add_argument("--seconds", type=float, default=15.0)
    options = parser.parse_args(arguments)
    rows, facts = _rows(options.seconds), facts_of(parser.prog, arguments)
    record(rows, options.out, facts, print_rows=True)


def _rows(seconds: float) -> Iterator[Row]:
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(2)
    with context.Pool(2, initializer=together.wait) as pool:
        found = pool.map(_compute, [seconds] * 2)
    took = np.concatenate(found)[:, 1] * 1e3
    slow = slow_moments(found)
    yield {
        "measure": "pace",
        "seconds": seconds,
        "pieces": len(took),
        **{f"p{q}_ms": round(float(np.quantile(took, q / 100)), 3) for q in (50, 99)},
        "most_ms": round(float(took.max()), 3),
        "slow_moments": len(slow),
        "slow_share_pct": round(100 * sum(end - start for start, end in slow) / seconds, 1),
        "slow_ms": [[round(start * 1e3), round(end * 1e3)] for start, end in slow],
    }


def _compute(seconds: float) -> Pieces:
    pieces, now = [], perf_counter()
    end = now + seconds
    while now < end:
        sum(range(PIECE))
        now, before = perf_counter(), now
        pieces.append((before, now - before))
    return np.array(pieces)


def slow_moments(found: Sequence[Pieces]) -> list[tuple[float, float]]:
    """Return begins and ends of the moments that were slow for all, in seconds since all began."""
    begin = max(float(pieces[0, 0]) for pieces in found)
    slow: set[int] | None = None
    for pieces in found:
        pieces = pieces[pieces[:, 0] >= begin]
        moments = ((pieces[:, 0] - begin) / MOMENT_SECONDS).astype(int)
        mean = np.bincount(moments, pieces[:, 1]) / np.maximum(np.bincount(moments), 1)
        own = set(np.flatnonzero(mean > SLOW * np.median(pieces[:, 1])).tolist())
        slow = own if slow is None else slow & own
    joined: list[list[int]] = []
    for moment in sorted(slow or ()):
        if not joined or moment > joined[-1][1]:
            joined.append([moment, moment])
        joined[-1][1] = moment + 1
    return [(first * MOMENT_SECONDS, last * MOMENT_SECONDS) for first, last in joined]


if __name__ == "__main__":
    main(sys.argv[1:])
