"""One table from its options to its rows: printed as they come, and into the result file."""

import json
from collections.abc import Callable, Iterator

from bench.gpu.options import BenchOptions
from bench.gpu.results import Row, write_rows

__all__ = ["run_table"]


def run_table(options: BenchOptions, measure: Callable[[BenchOptions], Iterator[Row]]) -> list[Row]:
    """What was measured before a failure is in the file, too."""
    rows: list[Row] = []
    try:
        for row in measure(options):
            print(json.dumps(row), flush=True)
            rows.append(row)
    finally:
        if options.out is not None and rows:
            write_rows(options, rows)
    return rows
