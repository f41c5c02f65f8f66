"""Measures building a snapshot from Parquet, and loading and verifying it.

    python -m grace.bench.build_bench --out bench/results/cpu-2core/build.json

One row for each size of the catalogue and kind of matchers. Each build is a `grace build` process,
as a user runs it, so that its peak memory is its own. Each load is a fresh process, with the page
cache that the build left warm. A snapshot is deleted after its measurement, a catalogue after its
last one.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from grace.bench.result_file import record
from grace.catalogues.folder import ADS_FILE, TARGETING_FILE
from grace.catalogues.paper import paper_spec
from grace.catalogues.synth import preset_spec
from grace.index.matchers.modes import MatcherMode
from grace.index.storage import load_snapshot

GRACE = Path(sys.executable).with_name("grace")
LOADS = 3
OPTIONS: dict[MatcherMode, tuple[str, ...]] = {
    MatcherMode.CD: (),
    MatcherMode.UNION: (),
    MatcherMode.STATIC: ("--k", "64,64,32,8"),
    MatcherMode.DYNAMIC: ("--k-max", "32", "--fill-target", "0.25"),
}
"""The matchers' options to `grace build`: the paper's."""

_SIDS = (1_000_000, 3_000_000, 10_000_000, 30_000_000)
_MATCHERS = (MatcherMode.UNION, MatcherMode.STATIC, MatcherMode.DYNAMIC)


@dataclass(frozen=True, slots=True)
class Row:
    """Gigabytes are 10^9 bytes."""

    sid_space: str  # names the catalogue: preset, seed and number of SIDs
    sids: int
    ads: int
    rules: int
    matchers: str
    options: str
    build_s: float  # the whole process, imports included
    build_s_per_million_ads: float
    step_s: dict[str, float]
    peak_gb: float
    load_verify_s: float  # the best: other work of the machine only adds to it
    load_verify_most_s: float
    snapshot_gb: float


def main(arguments: Sequence[str]) -> None:
    parser = _parser()
    options = parser.parse_args(arguments)
    sizes = {_sid_space(options.preset, sids, options.seed): sids for sids in options.sids}
    written: dict[str, Path] = dict(options.data)
    for name, folder in written.items():
        if name not in sizes:
            parser.error(f"--data {folder} holds {name}; the rows are of {', '.join(sizes)}")

    def rows() -> Iterator[dict[str, Any]]:
        for name, sids in sizes.items():
            with _catalogue(options.preset, sids, options.seed, written.get(name)) as folder:
                for matchers in options.matchers:
                    yield asdict(_measure(folder, MatcherMode(matchers)))

    program = "python -m grace.bench.build_bench"
    record(program, _without_data(arguments), rows(), options.out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m grace.bench.build_bench", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--out", type=Path, help="result file; without it, only print")
    parser.add_argument("--preset", choices=["paper", "small"], default="paper")
    parser.add_argument("--sids", type=int, nargs="+", default=_SIDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--matchers", nargs="+", choices=list(OPTIONS), default=_MATCHERS)
    parser.add_argument(
        "--data",
        type=_written,
        action="append",
        default=[],
        metavar="DIR",
        help="folder that already holds one of these catalogues; repeatable. "
        "It changes no row, so the result's command leaves it out.",
    )
    return parser


def _without_data(arguments: Sequence[str]) -> list[str]:
    kept = list(arguments)
    while "--data" in kept:
        at = kept.index("--data")
        del kept[at : at + 2]
    return [each for each in kept if not each.startswith("--data=")]


@contextmanager
def _catalogue(preset: str, sids: int, seed: int, written: Path | None) -> Iterator[Path]:
    """A folder with the catalogue, deleted afterwards unless it existed before."""
    if written is not None:
        yield written
        return
    with tempfile.TemporaryDirectory() as name:
        # A separate process: Linux counts a parent's memory towards the peak of its children.
        catalogue = ("--preset", preset, "--sids", str(sids), "--seed", str(seed))
        subprocess.run([GRACE, "synth", *catalogue, "--out", name], check=True, stdout=sys.stderr)
        yield Path(name)


def _sid_space(preset: str, sids: int, seed: int) -> str:
    if preset == "paper":
        return paper_spec(sids, seed).sid_space
    return preset_spec(preset, sids, seed).sid_space


def _written(folder: str) -> tuple[str, Path]:
    """The SID space of a folder that `grace synth` wrote, and the folder."""
    try:
        metadata = pq.read_schema(Path(folder) / ADS_FILE).metadata or {}
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{folder} holds no catalogue: {error}") from None
    return metadata.get(b"grace.sid_space", b"a nameless SID space").decode(), Path(folder)


def _measure(folder: Path, matchers: MatcherMode) -> Row:
    options = OPTIONS[matchers]
    with tempfile.TemporaryDirectory() as root:
        files = ("--ads", folder / ADS_FILE, "--targeting", folder / TARGETING_FILE)
        chosen = ("--root", root, "--matchers", matchers.value, *options, "--json")
        begin = time.perf_counter()
        finished = subprocess.run(
            [GRACE, "build", *files, *chosen], check=True, stdout=subprocess.PIPE, text=True
        )
        build_s = time.perf_counter() - begin
        report = json.loads(finished.stdout)
        path = Path(report["path"])
        loads = [_load_seconds(path) for _ in range(LOADS)]
        return Row(
            sid_space=report["sid_space"],
            sids=report["sids"],
            ads=report["ads"],
            rules=report["rules"],
            matchers=matchers.value,
            options=" ".join(options),
            build_s=round(build_s, 2),
            build_s_per_million_ads=round(build_s / report["ads"] * 1e6, 2),
            step_s={name: round(seconds, 2) for name, seconds in report["step_seconds"].items()},
            peak_gb=round(report["peak_memory_bytes"] / 1e9, 3),
            load_verify_s=round(min(loads), 3),
            load_verify_most_s=round(max(loads), 3),
            snapshot_gb=round(sum(f.stat().st_size for f in path.iterdir()) / 1e9, 6),
        )


def _load_seconds(path: Path) -> float:
    code = (
        f"from grace.bench.build_bench import print_load_seconds; print_load_seconds({str(path)!r})"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True
    )
    return float(finished.stdout)


def print_load_seconds(path: str) -> None:
    begin = time.perf_counter()
    load_snapshot(Path(path))
    print(time.perf_counter() - begin)


if __name__ == "__main__":
    main(sys.argv[1:])
