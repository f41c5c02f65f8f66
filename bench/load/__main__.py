"""Open-loop load on a server: calls at a given rate, their latencies and outcomes.

    python -m grace.bench.load --address 127.0.0.1:50051 --data demo/requests.jsonl --rate 50
    python -m grace.bench.load --data demo/requests.jsonl --rate 50 --out load.json

Arrivals are Poisson, and latencies count from the time at which a call was due. Each connection
first carries one call that no number counts. The result file is in ghz's JSON schema. A run in
which the client was the limit, or lost the server, is not valid: the command says so and exits 1.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress

from grace.bench.load.client import ClosedLoop, Load, LoadRun, OpenLoop
from grace.bench.load.client_process import run_together
from grace.bench.load.ghz import load_result
from grace.bench.load.options import (
    access_from,
    add_access_options,
    data_file,
    out_file,
    parser_of,
    positive,
    positive_integer,
    run_command,
)
from grace.bench.load.shots import Shot, read_shots

MOST_PROCESSES = 64
"""Each process takes some 60 MB and makes about a thousand calls a second."""


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    timeout = options.timeout_ms / 1e3 if options.timeout_ms else None
    load: Load
    if options.rate is not None:
        load = OpenLoop(options.rate, options.seconds, options.seed)
        name = f"{load.rate:g} call{'s' if load.rate != 1 else ''} a second"
    else:
        load = ClosedLoop(options.in_flight, options.seconds)
        name = f"{load.in_flight} call{'s' if load.in_flight != 1 else ''} under way"
    run = _run(name, options, load, read_shots(options.data, timeout))
    result = load_result(run, load, options.connections, timeout)
    if options.out is not None:
        options.out.write_text(json.dumps(result) + "\n", encoding="utf-8")
    own = result["grace"]
    latency = own["ms"]["latency_ok"] or {}
    print(
        f"{'' if options.out is None else f'{options.out}: '}{len(run.calls):,} calls, "
        f"{own['ok']:,} OK, {own['failed']:,} failed{_reasons(run)}, {own['withdrawn']:,} "
        "withdrawn; "
        + "".join(f"{name.upper()} {latency[name]:.1f} ms, " for name in latency)
        + f"{run.warm_up_calls} to warm up not counted"
    )
    if not own["valid"]:
        print(f"error: not a valid run: {own['invalid_because']}", file=sys.stderr)
        return 1
    return 0


def _reasons(run: LoadRun) -> str:
    """The server's reasons, or statuses where it gave none, such as " (131 UNAVAILABLE)"."""
    counted = Counter(call.reason or call.status for call in run.calls if call.error)
    listed = ", ".join(f"{count:,} {reason}" for reason, count in counted.most_common())
    return f" ({listed})" if listed else ""


def _run(name: str, options: argparse.Namespace, load: Load, shots: Sequence[Shot]) -> LoadRun:
    """Make the load, with a progress bar on standard error."""
    with Progress(console=Console(stderr=True), refresh_per_second=2) as bars:
        bar = bars.add_task(name, total=load.seconds)

        def progress(seconds: float) -> None:
            bars.update(bar, completed=min(seconds, load.seconds))

        run = run_together(
            options.address,
            shots,
            load,
            options.processes,
            options.connections,
            progress,
            access=access_from(options),
        )
        progress(load.seconds)
    return run


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("grace.bench.load", __doc__)
    parser.add_argument("--address", default="127.0.0.1:50051", help="HOST:PORT of the server")
    parser.add_argument(
        "--data",
        type=data_file,
        required=True,
        help="requests as JSON lines, or a .wire file; the client takes them in turn",
    )
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--rate", type=positive, help="calls a second, on average")
    how.add_argument(
        "--in-flight",
        type=positive_integer,
        help="make a closed loop instead, with this number of calls always under way",
    )
    parser.add_argument("--seconds", type=positive, default=20.0, help="default: 20")
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
    add_access_options(parser)
    parser.add_argument("--seed", type=int, default=1, help="seed of the arrivals; default: 1")
    parser.add_argument("--out", type=out_file, help="result file, in ghz's JSON schema")
    return parser


def _number_of_processes(text: str) -> int:
    value = positive_integer(text)
    if value > MOST_PROCESSES:
        raise argparse.ArgumentTypeError(f"must be at most {MOST_PROCESSES}, got {text!r}")
    return value


if __name__ == "__main__":
    run_command(main)
