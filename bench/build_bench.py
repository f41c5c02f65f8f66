"""Measures building a snapshot from Parquet, and loading and verifying it.

    python -m bench.build_bench --sids 300000 3000000 --out bench/results/cpu-2core/build.json

Every build is a process of its own, `grace build` as a user runs it, so its peak memory is its own.
Loading is measured in another fresh process, from the page cache that the build left warm; the best
of three, since anything else the machine does only adds to it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.result_file import write_result
from bench.synth import Preset, preset_spec, write_folder
from index.storage import load_snapshot

GRACE = Path(sys.executable).with_name("grace")
LOADS = 3


@dataclass(frozen=True, slots=True)
class Row:
    sids: int
    ads: int
    rules: int
    matchers: str
    build_s: float
    step_s: dict[str, float]
    peak_gb: float
    load_verify_s: float
    snapshot_gb: float


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.build_bench", description=__doc__)
    parser.add_argument("--out", type=Path, help="result file; without it, only print")
    parser.add_argument("--sids", type=int, nargs="+", default=[300_000, 1_000_000, 3_000_000])
    parser.add_argument("--matchers", nargs="+", default=["union"])
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    rows = []
    for sids in options.sids:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_folder(preset_spec(Preset.SMALL, sids=sids, seed=options.seed), folder)
            for matchers in options.matchers:
                row = _measure(folder, matchers)
                print(json.dumps(asdict(row)), flush=True)
                rows.append(asdict(row))
    if options.out is not None:
        write_result(options.out, "python -m bench.build_bench", arguments, rows)


def _measure(folder: Path, matchers: str) -> Row:
    """`build_s` is the whole process, imports included."""
    root = folder / f"snapshots-{matchers}"
    inputs = ("--ads", folder / "ads.parquet", "--targeting", folder / "targeting.yaml")
    begin = time.perf_counter()
    finished = subprocess.run(
        [GRACE, "build", *inputs, "--root", root, "--matchers", matchers, "--json"],
        check=True,
        capture_output=True,
        text=True,
    )
    build_s = time.perf_counter() - begin
    report = json.loads(finished.stdout)
    path = Path(report["path"])
    return Row(
        sids=report["sids"],
        ads=report["ads"],
        rules=report["rules"],
        matchers=matchers,
        build_s=round(build_s, 2),
        step_s={name: round(seconds, 2) for name, seconds in report["step_seconds"].items()},
        peak_gb=round(report["peak_memory_bytes"] / 1e9, 3),
        load_verify_s=round(min(_load_seconds(path) for _ in range(LOADS)), 3),
        snapshot_gb=round(sum(f.stat().st_size for f in path.iterdir()) / 1e9, 3),
    )


def _load_seconds(path: Path) -> float:
    code = f"from bench.build_bench import print_load_seconds; print_load_seconds({str(path)!r})"
    finished = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    return float(finished.stdout)


def print_load_seconds(path: str) -> None:
    begin = time.perf_counter()
    load_snapshot(Path(path))
    print(time.perf_counter() - begin)


if __name__ == "__main__":
    main(sys.argv[1:])
