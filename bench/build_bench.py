"""Measures building a snapshot from Parquet, and loading and verifying it.

    python -m grace.bench.build_bench --out bench/results/cpu-2core/build.json

One row for each size of the paper catalogue and mode of eligibility. A build is a `grace build`
process, as a user runs it, so that its peak memory is its own. Each load is a fresh process, with
the page cache that the build left warm; it also derives what the mode reads.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from grace.bench.result_file import Row, facts_of, record

GRACE = Path(sys.executable).with_name("grace")
LOADS = 3
_SIDS = (1_000_000, 3_000_000, 10_000_000, 30_000_000)
_MODES = ("exact", "union", "static", "dynamic")
_LOAD = """
import sys, time
from pathlib import Path
from grace.configs.eligibility import Eligibility
from grace.index.storage import load_snapshot
begin = time.perf_counter()
load_snapshot(Path(sys.argv[1]), eligibility=Eligibility.of(sys.argv[2]))
print(time.perf_counter() - begin)
"""


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m grace.bench.build_bench", description=__doc__)
    parser.add_argument("--out", type=Path, help="result file; without it, only print")
    parser.add_argument("--sids", type=int, nargs="+", default=_SIDS)
    parser.add_argument("--eligibility", nargs="+", default=_MODES)
    options = parser.parse_args(arguments)
    rows = _rows(options.sids, options.eligibility)
    record(rows, options.out, facts_of(parser.prog, arguments))


def _rows(sizes: Sequence[int], modes: Sequence[str]) -> Iterator[Row]:
    for sids in sizes:
        with tempfile.TemporaryDirectory() as name:
            # In a separate process: Linux counts a parent's memory towards its children's peak.
            catalogue = ("--preset", "paper", "--sids", str(sids))
            subprocess.run(
                [GRACE, "synth", *catalogue, "--out", name], check=True, stdout=sys.stderr
            )
            yield from _measure(Path(name), modes)


def _measure(folder: Path, modes: Sequence[str]) -> Iterator[Row]:
    """Gigabytes are 10^9 bytes."""
    with tempfile.TemporaryDirectory() as root:
        begin = time.perf_counter()
        report = json.loads(_output([GRACE, "build", "--data", folder, "--root", root, "--json"]))
        build_s = time.perf_counter() - begin  # of the whole process, with imports
        path = Path(report["path"])
        for mode in modes:
            loads = [
                float(_output([sys.executable, "-c", _LOAD, path, mode])) for _ in range(LOADS)
            ]
            yield {
                "sid_space": report["sid_space"],  # has the preset, seed and number of SIDs
                "sids": report["sids"],
                "ads": report["ads"],
                "rules": report["rules"],
                "matchers": mode,
                "options": "",
                "build_s": round(build_s, 2),
                "build_s_per_million_ads": round(build_s / report["ads"] * 1e6, 2),
                "step_s": {name: round(spent, 2) for name, spent in report["step_seconds"].items()},
                "peak_gb": round(report["peak_memory_bytes"] / 1e9, 3),
                "load_verify_s": round(min(loads), 3),  # the least: other work only adds to it
                "load_verify_most_s": round(max(loads), 3),
                "snapshot_gb": round(sum(f.stat().st_size for f in path.iterdir()) / 1e9, 6),
            }


def _output(command: Sequence[str | Path]) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main(sys.argv[1:])
