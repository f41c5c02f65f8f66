"""Measures changes of ads without a server: rows of JSON are read, and a new snapshot is made.

    python -m grace.bench.fresh_bench --out bench/results/cpu-2core/fresh.json

One row for each size of the paper's catalogue and of a change. A change has new ads, some with new
SIDs and rules, replaced ads and removed ones. Each repetition is another change of one snapshot, in
mode `exact`. Gigabytes are 10^9 bytes.
"""

import argparse
import ctypes
import gc
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from grace.bench.gpu.subjects.catalogue import Catalogue
from grace.bench.load.ghz import percentile
from grace.bench.load.soak.holdings import memory_gb
from grace.bench.result_file import Row, facts_of, record
from grace.catalogues.paper.changes import PaperChange, PaperChanges
from grace.configs.eligibility import MatcherMode
from grace.configs.errors import DeviceError
from grace.configs.machine import available_cores
from grace.index.changes.applied import applied
from grace.index.changes.change import Changes
from grace.index.snapshot import Snapshot, bytes_of
from grace.index.updates.puts import take_puts

_FORGET_PEAK = "5"  # of memory: what Linux wants in `clear_refs`


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m grace.bench.fresh_bench", description=__doc__)
    parser.add_argument("--out", type=Path, help="result file; without it, only print")
    parser.add_argument("--sids", type=int, nargs="+", default=(300_000, 3_000_000))
    parser.add_argument("--ads", type=int, nargs="+", default=(1, 1_000, 10_000, 100_000))
    parser.add_argument("--repetitions", type=int, default=100)
    options = parser.parse_args(arguments)
    record(_rows(options), options.out, facts_of(parser.prog, arguments))


def _rows(options: argparse.Namespace) -> Iterator[Row]:
    for sids in options.sids:
        catalogue = Catalogue(sids)
        snapshot = catalogue.snapshot(MatcherMode.EXACT)
        changes = PaperChanges(catalogue.paper)
        for ads in options.ads:
            once = partial(_once, snapshot, changes, ads)
            parts = zip(*map(once, range(options.repetitions)), strict=True)
            reading, applying, more = map(sorted, parts)
            yield {
                "measure": "applied",
                "sids": snapshot.trie.num_leaves,
                "ads": snapshot.ads.num_ads,
                "rules": snapshot.rules.num_rules,
                "ads_changed": ads,
                "threads": available_cores(),
                "repetitions": options.repetitions,
                **{f"read_p{q}_s": round(percentile(reading, q), 5) for q in (50, 99)},
                **{f"apply_p{q}_s": round(percentile(applying, q), 5) for q in (50, 99)},
                "snapshot_gb": round(bytes_of(snapshot) / 1e9, 3),
                "more_gb": round(more[-1], 3),
            }


def _once(
    snapshot: Snapshot, changes: PaperChanges, ads: int, number: int
) -> tuple[float, float, float]:
    """Return the seconds of reading and of applying, and the gigabytes that both needed."""
    change, threads = changes.change(number, ads), available_cores()
    rows = [json.dumps(row).encode() for row in change.puts]
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # or the arrays of the last change leave memory for these
    Path("/proc/self/clear_refs").write_text(_FORGET_PEAK, encoding="utf-8")
    held = memory_gb(os.getpid(), "VmRSS")
    begin = time.perf_counter()
    pieces = take_puts(snapshot, rows, threads).pieces
    read = time.perf_counter()
    puts = pieces[0] if pieces else Changes()
    after = applied(snapshot, replace(puts, removed=change.removed), threads)
    end = time.perf_counter()
    more = memory_gb(os.getpid(), "VmHWM") - held
    require_changed(after, change)
    return read - begin, end - read, more


def require_changed(after: Snapshot, change: PaperChange) -> None:
    """Raise if a put ad is not where its row says, or a removed one is still there."""
    put = after.ads.ordinals(np.array([row["ad_id"] for row in change.puts], np.int64))
    sids = after.trie.sids(np.searchsorted(after.ads.ad_offsets, put, side="right") - 1)
    there = np.concatenate([put, after.ads.ordinals(np.array(change.removed, np.int64))]) >= 0
    wanted = [True] * len(put) + [False] * len(change.removed)
    if there.tolist() != wanted or sids.tolist() != [row["sid"] for row in change.puts]:
        raise DeviceError(
            f"{sum(wanted)} puts: the new snapshot has {there.sum()}, or other SIDs: it is wrong, "
            "and was not measured; run the tests of index/changes"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
