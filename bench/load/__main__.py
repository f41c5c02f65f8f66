"""Open-loop load on a server: calls at a given rate, their latencies and outcomes.

    python -m bench.load --address 127.0.0.1:50051 --data catalogue/requests.jsonl --rate 300

Arrivals are Poisson and latencies count from when a call was meant to be made. The result is in
ghz's JSON schema. A run in which the client was the limit is not valid: it says so, and exits 1.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from bench.load.client import ClosedLoop, Load, OpenLoop, run_load
from bench.load.result import limit_of_client, load_result, write_load_result
from bench.load.shots import read_shots
from configs.errors import GraceError

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    timeout = options.timeout_ms / 1e3 if options.timeout_ms else None
    load: Load
    if options.rate is not None:
        load = OpenLoop(options.rate, options.seconds, options.seed)
        name = f"{options.rate:g} calls a second"
    else:
        load = ClosedLoop(options.in_flight, options.seconds)
        name = f"{options.in_flight} calls under way"
    shots = read_shots(options.data, timeout)
    with Progress(console=Console(stderr=True), refresh_per_second=2) as bars:
        bar = bars.add_task(name, total=options.seconds)
        run = run_load(
            options.address,
            shots,
            load,
            options.connections,
            lambda seconds: bars.update(bar, completed=min(seconds, options.seconds)),
        )
        bars.update(bar, completed=options.seconds)
    result = load_result(run, load, options.connections, timeout)
    write_load_result(result, options.out)
    own = result["grace"]
    latency = own["ms"]["latency_ok"] or {}
    print(
        f"{options.out}: {len(run.calls):,} calls, {own['ok']:,} OK, {own['failed']:,} failed, "
        f"{own['withdrawn']:,} withdrawn; "
        + ", ".join(f"{name.upper()} {latency[name]:.1f} ms" for name in latency)
    )
    if options.report is not None:
        report = ["-m", "bench.load.report", str(options.out), "--out", str(options.report)]
        subprocess.run([sys.executable, *report], check=True)
    if limit := limit_of_client(run):
        print(f"error: not a valid run: {limit}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.load",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--address", default="127.0.0.1:50051", help="HOST:PORT of the server")
    parser.add_argument(
        "--data", type=Path, required=True, help="requests as JSON lines, made one after another"
    )
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--rate", type=_positive, help="calls a second, on average")
    how.add_argument(
        "--in-flight", type=int, help="instead, a closed loop: so many calls are always under way"
    )
    parser.add_argument("--seconds", type=_positive, default=20.0)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--timeout-ms", type=_positive, help="deadline of every call")
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals")
    parser.add_argument("--out", type=Path, required=True, help="result file, ghz's JSON")
    parser.add_argument("--report", type=Path, help="HTML page of it; needs matplotlib")
    return parser


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except GraceError as error:
        sys.exit(f"error: {error}")
