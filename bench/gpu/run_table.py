"""One table from its options to its rows: printed as they come, and into the result file."""

import json
import sys
from collections.abc import Callable, Iterator
from time import perf_counter

from bench.gpu.options import BenchOptions
from bench.gpu.results import ResultFile, Row

__all__ = ["run_table"]


def run_table(options: BenchOptions, measure: Callable[[BenchOptions], Iterator[Row]]) -> list[Row]:
    """Each row is in the file before the next is measured; standard error tells the time."""
    begin, rows = perf_counter(), []
    file = None if options.out is None else ResultFile(options, options.out)
    for row in measure(options):
        rows.append(row)
        if file is not None:
            file.add(row)
        print(json.dumps(row), flush=True)
        print(f"{perf_counter() - begin:.1f} s: {len(rows)} rows", file=sys.stderr, flush=True)
    return rows
