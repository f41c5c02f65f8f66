"""`make load`: a server under several offered loads, and a report of them.

    python -m grace.bench.load.sweep --out build/load
    python -m grace.bench.load.sweep --out build/load --address HOST:PORT --data requests.jsonl

Without an address it starts a server of the tiny catalogue. ghz makes the calls if it is installed,
our own client if not. It exits with 1 if a rate's result is not valid.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from grace.bench.load.__main__ import main as make_load
from grace.bench.load.ghz import read_summary
from grace.bench.load.options import parser_of, positive_integer, run_command
from grace.bench.load.report import load_report
from grace.bench.load.shots import write_ghz_data
from grace.bench.load.tiny_server import write_tiny_server_files
from grace.bench.running_server import RunningServer
from grace.configs.errors import InputError

_GHZ_CONFIG = Path(__file__).with_name("ghz.json")


def main(arguments: Sequence[str]) -> int:
    parser = parser_of("grace.bench.load.sweep", __doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the report and results")
    parser.add_argument("--address", help="HOST:PORT of a running server")
    parser.add_argument("--data", type=Path, help="requests as JSON lines")
    parser.add_argument(
        "--rates", type=positive_integer, nargs="+", default=[100, 200, 300, 400, 600]
    )
    parser.add_argument("--seconds", type=positive_integer, default=10, help="of each rate")
    parser.add_argument("--connections", type=positive_integer, default=4)
    parser.add_argument(
        "--processes", type=positive_integer, default=1, help="of our own client; default: 1"
    )
    parser.add_argument(
        "--timeout-ms", type=positive_integer, default=1000, help="deadline of every call"
    )
    options = parser.parse_args(arguments)
    if options.address is not None and options.data is None:
        raise InputError(
            f"--address {options.address} needs --data, requests for that server's catalogue; "
            f"with make: make load ADDRESS={options.address} DATA=demo/requests.jsonl"
        )
    options.out.mkdir(parents=True, exist_ok=True)
    found = shutil.which("ghz")
    client = "ghz" if found else "no ghz on PATH, so our own client"
    print(f"{client} makes the calls, each with a deadline of {options.timeout_ms} ms")
    with ExitStack() as stack:
        address, data = options.address, options.data
        if address is None:
            files = write_tiny_server_files(
                Path(stack.enter_context(tempfile.TemporaryDirectory()))
            )
            config = files.write_config("serve.yaml")
            server = stack.enter_context(RunningServer(config, options.out / "server.log"))
            address, data = server.address, data or files.requests
            print(f"a server of the tiny catalogue listens at {address}")
        runs = [read_summary(_load(address, data, rate, options)) for rate in options.rates]
    report = load_report(runs)
    (options.out / "report.md").write_text(report, encoding="utf-8")
    print(f"\n{report}")
    invalid = [run for run in runs if run.invalid_because]
    for run in invalid:
        print(f"error: {run.offered:g} calls/s: {run.invalid_because}", file=sys.stderr)
    return 1 if invalid else 0


def _load(address: str, data: Path, rate: int, options: argparse.Namespace) -> Path:
    result: Path = options.out / f"rate-{rate}.json"
    if ghz := shutil.which("ghz"):
        array = options.out / "ghz-data.json"
        write_ghz_data(data, array)
        command = [ghz, "--config", str(_GHZ_CONFIG), "--data-file", str(array), "--rps", str(rate)]
        command += ["--connections", str(options.connections), "--duration", f"{options.seconds}s"]
        command += ["--timeout", f"{options.timeout_ms}ms", "--output", str(result), address]
        print(f"ghz: {rate} calls a second for {options.seconds} s")
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            shown = done.stderr.strip().splitlines()[-1:] or ["it printed no error"]
            raise InputError(
                f"{address}: ghz ended with exit code {done.returncode}: {shown[0]}; the server "
                "must listen there, with listen.reflection"
            )
    else:
        given = {
            "address": address, "data": data, "rate": rate, "seconds": options.seconds,
            "connections": options.connections, "processes": options.processes,
            "timeout-ms": options.timeout_ms, "out": result,
        }  # fmt: skip
        make_load([f"--{name}={value}" for name, value in given.items()])
    return result


if __name__ == "__main__":
    run_command(main)
