"""Load a server at each of some rates, and report latencies and outcomes.

    python -m grace.bench.load --address 127.0.0.1:50051 --data demo/requests.jsonl --rate 50
    python -m grace.bench.load --data demo/requests.jsonl --rate 50 100 --out load

Arrivals are Poisson, and latencies count from the time at which a call was due. Each connection
first carries one call that no number counts. With --ghz, ghz makes the calls in its own way. A run
in which the client was the limit, or lost the server, is not valid: the command exits with 1.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from grace.bench.load.client import ClosedLoop, Load, OpenLoop
from grace.bench.load.client_process import run_together
from grace.bench.load.ghz import RunSummary, load_result, read_summary, summary_of
from grace.bench.load.options import (
    add_tls_options,
    data_file,
    parser_of,
    positive,
    positive_integer,
    run_command,
    tls_from,
)
from grace.bench.load.report import load_report
from grace.bench.load.shots import read_shots, write_ghz_data
from grace.configs.errors import InputError

MOST_PROCESSES = 64
"""Each process takes some 60 MB and makes about a thousand calls a second."""

_GHZ_CONFIG = Path(__file__).with_name("ghz.json")


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    if options.ghz and (options.out is None or options.rate is None):
        raise InputError("--ghz: needs --rate, and --out for its result files")
    if options.ghz and shutil.which("ghz") is None:
        raise InputError("--ghz: ghz is not on PATH; install it from https://ghz.sh, or omit --ghz")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    loads: list[Load] = (
        [ClosedLoop(options.in_flight, options.seconds)]
        if options.rate is None
        else [OpenLoop(rate, options.seconds, options.seed) for rate in options.rate]
    )
    make = _by_ghz if options.ghz else _by_ours
    runs = [make(load, options) for load in loads]
    report = load_report(runs)
    if options.out is not None:
        (options.out / "report.md").write_text(report, encoding="utf-8")
    print(report)
    invalid = [run for run in runs if run.invalid_because]
    for run in invalid:
        print(f"error: {run.offered:g} calls/s: {run.invalid_because}", file=sys.stderr)
    return 1 if invalid else 0


def _by_ours(load: Load, options: argparse.Namespace) -> RunSummary:
    """Make the load; standard error shows the time that has passed."""
    timeout = options.timeout_ms / 1e3 if options.timeout_ms else None
    columns = TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=2) as passed:
        passed.add_task(f"{_named(load)} for {load.seconds:g} s")
        run = run_together(
            options.address,
            read_shots(options.data, timeout),
            load,
            options.processes,
            options.connections,
            tls=tls_from(options),
        )
    result = load_result(run, load, options.connections, timeout)
    if options.out is not None:
        _result_file(load, options).write_text(json.dumps(result) + "\n", encoding="utf-8")
    return summary_of(result)


def _by_ghz(load: Load, options: argparse.Namespace) -> RunSummary:
    assert isinstance(load, OpenLoop)
    result, array = _result_file(load, options), options.out / "ghz-data.json"
    write_ghz_data(options.data, array)
    command = [
        shutil.which("ghz") or "ghz",
        *("--config", str(_GHZ_CONFIG), "--data-file", str(array), "--rps", f"{load.rate:g}"),
        *("--connections", str(options.connections), "--duration", f"{load.seconds:g}s"),
        *("--output", str(result)),
        *(("--timeout", f"{options.timeout_ms:g}ms") if options.timeout_ms else ()),
        options.address,
    ]
    print(f"ghz: {_named(load)} for {load.seconds:g} s")
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        shown = done.stderr.strip().splitlines()[-1:] or ["it printed no error"]
        raise InputError(
            f"{options.address}: ghz ended with exit code {done.returncode}: {shown[0]}; the "
            "server must listen there, with listen.reflection"
        )
    return read_summary(result)


def _named(load: Load) -> str:
    if isinstance(load, OpenLoop):
        return f"{load.rate:g} calls a second"
    return f"{load.in_flight} calls under way"


def _result_file(load: Load, options: argparse.Namespace) -> Path:
    kind = f"rate-{load.rate:g}" if isinstance(load, OpenLoop) else f"in-flight-{load.in_flight}"
    file: Path = options.out / f"{kind}.json"
    return file


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("grace.bench.load", __doc__)
    parser.add_argument("--address", default="127.0.0.1:50051", help="HOST:PORT of the server")
    parser.add_argument(
        "--data",
        type=data_file,
        required=True,
        help="requests as JSON lines; the client takes them in turn",
    )
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--rate", type=positive, nargs="+", help="calls a second, on average")
    how.add_argument(
        "--in-flight",
        type=positive_integer,
        help="make a closed loop instead, with this number of calls always under way",
    )
    parser.add_argument("--seconds", type=positive, default=20.0, help="of each rate; default: 20")
    parser.add_argument(
        "--processes",
        type=_number_of_processes,
        default=1,
        help=f"client processes that share the calls, at most {MOST_PROCESSES}; default: 1",
    )
    parser.add_argument(
        "--connections", type=positive_integer, default=4, help="of each process; default: 4"
    )
    parser.add_argument("--timeout-ms", type=positive, help="deadline of every call; default: none")
    add_tls_options(parser)
    parser.add_argument("--seed", type=int, default=1, help="seed of the arrivals; default: 1")
    parser.add_argument("--out", type=Path, help="folder of the report and of ghz's JSON results")
    parser.add_argument("--ghz", action="store_true", help="let ghz make the calls")
    return parser


def _number_of_processes(text: str) -> int:
    value = positive_integer(text)
    if value > MOST_PROCESSES:
        raise argparse.ArgumentTypeError(f"must be at most {MOST_PROCESSES}, got {text!r}")
    return value


if __name__ == "__main__":
    run_command(main)
