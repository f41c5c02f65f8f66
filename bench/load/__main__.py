"""Load a server at each of some rates, and report latencies and outcomes.

    python -m grace.bench.load --address 127.0.0.1:50051 --data demo/requests.jsonl --rate 50
    python -m grace.bench.load --data demo/requests.jsonl --rate 50 100 --out load

Arrivals are Poisson, and latencies count from the time at which a call was due. Each connection
first carries one call that no number counts. A run in which the client was the limit, or lost the
server, is not valid: the command exits with 1.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from grace.bench.load.client import ClosedLoop, Load, OpenLoop, Target
from grace.bench.load.client_process import run_together
from grace.bench.load.ghz import Result, load_report, load_result, offered
from grace.bench.load.options import (
    add_tls_options,
    data_file,
    parser_of,
    positive,
    positive_integer,
    run_command,
    tls_from,
)
from grace.bench.load.shots import read_shots


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    loads: list[Load] = (
        [ClosedLoop(options.in_flight, options.seconds)]
        if options.rate is None
        else [OpenLoop(rate, options.seconds, options.seed) for rate in options.rate]
    )
    results = [_made(load, options) for load in loads]
    report = load_report(results)
    if options.out is not None:
        (options.out / "report.md").write_text(report, encoding="utf-8")
    print(report)
    invalid = [each for each in results if not each["grace"]["valid"]]
    for each in invalid:
        fault = each["grace"]["invalid_because"]
        print(f"error: {offered(each)} calls/s: {fault}", file=sys.stderr)
    return 1 if invalid else 0


def _made(load: Load, options: argparse.Namespace) -> Result:
    name = f"rate-{load.rate:g}" if isinstance(load, OpenLoop) else f"in-flight-{load.in_flight}"
    timeout = options.timeout_ms / 1e3 if options.timeout_ms else None
    shots = read_shots(options.data, timeout)
    target = Target(options.address, shots, options.connections, tls_from(options))
    run = run_together(target, load, options.processes)
    result = load_result(run, load, options.connections, timeout)
    if options.out is not None:
        (options.out / f"{name}.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
    return result


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
        type=positive_integer,
        default=1,
        help="client processes that share the calls, about 60 MB each; default: 1",
    )
    parser.add_argument(
        "--connections", type=positive_integer, default=4, help="of each process; default: 4"
    )
    parser.add_argument("--timeout-ms", type=positive, help="deadline of every call; default: none")
    add_tls_options(parser)
    parser.add_argument("--seed", type=int, default=1, help="seed of the arrivals; default: 1")
    parser.add_argument("--out", type=Path, help="folder of the report and of the results")
    return parser


if __name__ == "__main__":
    run_command(main)
