"""Measures changes of ads without a server: rows of JSON are read, and a new snapshot is made.

    python -m grace.bench.fresh_bench --out bench/results/cpu-2core/fresh.json

One row for each size of the paper's catalogue and of a change. A change has new ads, a third of them
with new SIDs and rules, replaced ads and removed ones. Each repetition is another change of the same
snapshot, in mode `exact`. A change has no row if the new snapshot lacks it. Gigabytes are 10^9 bytes.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from grace.bench.gpu.subjects.catalogue import Catalogue
from grace.bench.load.ghz import percentile
from grace.bench.result_file import Row, facts_of, record
from grace.catalogues.arrays import Int64Array
from grace.catalogues.paper.changes import PaperChanges
from grace.configs.eligibility import MatcherMode
from grace.configs.errors import DeviceError
from grace.configs.machine import available_cores
from grace.index.changes.applied import applied
from grace.index.changes.change import Changes
from grace.index.snapshot import Snapshot, bytes_of
from grace.index.updates.puts import take_puts

PROGRAM = "python -m grace.bench.fresh_bench"
_SIDS = (300_000, 3_000_000)
_ADS = (1, 1_000, 10_000, 100_000)
_PROCESS = Path("/proc/self")
_FORGET_PEAK = "5"  # of memory: what Linux wants in `clear_refs`


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--out", type=Path, help="result file; without it, only print")
    parser.add_argument("--sids", type=int, nargs="+", default=_SIDS)
    parser.add_argument("--ads", type=int, nargs="+", default=_ADS, help="that a change has")
    parser.add_argument("--repetitions", type=int, default=100)
    options = parser.parse_args(arguments)
    record(_rows(options), options.out, facts_of(PROGRAM, arguments))


def _rows(options: argparse.Namespace) -> Iterator[Row]:
    for sids in options.sids:
        catalogue = Catalogue(sids)
        snapshot = catalogue.snapshot(MatcherMode.EXACT)
        changes = PaperChanges(catalogue.paper)
        del catalogue
        for ads in options.ads:
            yield _measure(snapshot, changes, ads, options.repetitions)


def _measure(snapshot: Snapshot, changes: PaperChanges, ads: int, repetitions: int) -> Row:
    once = partial(_once, snapshot, changes, ads)
    reading, applying, more = zip(*map(once, range(repetitions)), strict=True)
    return {
        "measure": "applied",
        "sids": snapshot.trie.num_leaves,
        "ads": snapshot.ads.num_ads,
        "rules": snapshot.rules.num_rules,
        "changed": ads,
        "threads": available_cores(),
        "repetitions": repetitions,
        **_quantiles("read", reading),
        **_quantiles("apply", applying),
        "snapshot_gb": round(bytes_of(snapshot) / 1e9, 3),
        "more_gb": round(max(more), 3),
    }


def _once(
    snapshot: Snapshot, changes: PaperChanges, ads: int, number: int
) -> tuple[float, float, float]:
    """Return the seconds of reading and of applying, and the gigabytes that both needed."""
    change = changes.change(number, ads)
    rows = [json.dumps(row).encode() for row in change.rows()]
    gc.collect()
    (_PROCESS / "clear_refs").write_text(_FORGET_PEAK)
    held = _memory("VmRSS")
    begin = time.perf_counter()
    taken = take_puts(snapshot, rows, available_cores())
    read = time.perf_counter()
    puts = taken.pieces[0] if taken.pieces else Changes()
    after = applied(snapshot, replace(puts, removed=change.removed), available_cores())
    end = time.perf_counter()
    more = _memory("VmHWM") - held
    _require_changed(after, puts, len(rows), change.removed)
    return read - begin, end - read, more


def _quantiles(name: str, seconds: Sequence[float]) -> dict[str, float]:
    ascending = sorted(seconds)
    return {f"{name}_p{q}_s": round(percentile(ascending, q), 5) for q in (50, 99)}


def _memory(name: str) -> float:
    """Return a line of this process's status, in gigabytes."""
    lines = (_PROCESS / "status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024 / 1e9


def _require_changed(after: Snapshot, puts: Changes, rows: int, removed: Int64Array) -> None:
    """Raise if a row was refused, a put ad is not where its row says, or a removed one is there."""
    right = int((after.ads.ordinals(removed) < 0).sum())
    if puts.puts is not None:
        columns = puts.puts.columns
        at = after.ads.ordinals(columns.ad_ids)
        sids = after.trie.sids(np.searchsorted(after.ads.ad_offsets, at, side="right") - 1)
        same = (at >= 0) & (after.ads.ad_weight[at] == columns.weights)
        right += int((same & (sids == columns.tokens).all(axis=1)).sum())
    if wrong := rows + len(removed) - right:
        raise DeviceError(
            f"{wrong} changed ads are not in the new snapshot as they must be: it is wrong, and was "
            "not measured; run the tests of index/changes"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
