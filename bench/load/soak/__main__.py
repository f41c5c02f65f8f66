"""Load a server of the tiny catalogue lightly for hours, and report whether anything grows.

    python -m grace.bench.load.soak --out soak.json
    python -m grace.bench.load.soak --seconds 300 --only good scrape

The table shows the memory, threads and descriptors of the server and of each of its relays. The
command exits with 1 if one of them grows, or if clients and server count different calls. `--only`
loads the server with some kinds of work, to find the one that makes something grow.
"""

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from grace.bench.load.options import out_file, parser_of, positive, run_command
from grace.bench.load.soak.mixed_load import RATES
from grace.bench.load.soak.soak import run_soak, soak_report
from grace.bench.load.tiny_server import write_tiny_server_files
from grace.bench.result_file import write_result

PROGRAM = "python -m grace.bench.load.soak"


def main(arguments: Sequence[str]) -> int:
    parser = parser_of("grace.bench.load.soak", __doc__)
    parser.add_argument("--seconds", type=positive, default=3600.0, help="default: 3600")
    parser.add_argument("--front-ends", type=int, default=2, help="listen.front_ends; default: 2")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(RATES),
        metavar="KIND",
        default=[],
        help=f"kinds of work, from {', '.join(RATES)}",
    )
    parser.add_argument(
        "--rate", type=positive, help="calls and other events a second, instead of the default"
    )
    parser.add_argument("--out", type=out_file, help="result file")
    options = parser.parse_args(arguments)
    names = options.only or list(RATES)
    usual = sum(RATES[name] for name in names)
    rates = {name: RATES[name] * (options.rate or usual) / usual for name in names}
    with tempfile.TemporaryDirectory() as folder:
        files = write_tiny_server_files(Path(folder))
        progress = _progress_of(options.seconds)
        soak = run_soak(files, options.seconds, options.front_ends, rates, progress)
    print(soak_report(soak))
    if options.out is not None:
        facts = {"ends": soak.ends, "counted": soak.counted, "faults": soak.faults}
        samples = list(map(asdict, soak.samples))
        write_result(options.out, PROGRAM, arguments, [*soak.rows, facts, {"samples": samples}])
    return 0 if soak.passed else 1


def _progress_of(total: float) -> Callable[[float], None]:
    """Return a function that prints a line to standard error once a minute."""
    minutes = 0

    def progress(seconds: float) -> None:
        nonlocal minutes
        if minutes < seconds // 60 and seconds < total:
            minutes = int(seconds // 60)
            left = (total - seconds) / 60
            print(f"{minutes} min done, {left:.0f} min left", file=sys.stderr, flush=True)

    return progress


if __name__ == "__main__":
    run_command(main)
