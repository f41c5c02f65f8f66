"""One table from its options to its rows: printed as they come, and into the result file."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from time import perf_counter

from grace.bench.gpu.options import BenchOptions
from grace.bench.gpu.results import ResultFile, Row

__all__ = ["run_table"]


def run_table(options: BenchOptions, measure: Callable[[BenchOptions], Iterator[Row]]) -> list[Row]:
    """Each row is in the file before the next is measured; standard error tells the time."""
    begin, rows = perf_counter(), []
    with nullcontext() if options.out is None else ResultFile(options, options.out) as file:
        for row in measure(options):
            rows.append(row)
            if file is not None:
                file.add(row)
            print(json.dumps(row), flush=True)
            told = f"{len(rows)} row{'s' if len(rows) > 1 else ''}"
            print(f"{perf_counter() - begin:.1f} s: {told}", file=sys.stderr, flush=True)
    return rows
