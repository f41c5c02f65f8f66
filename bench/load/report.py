"""A page about loads: one self-contained HTML file, with its picture also as a PNG next to it.

    python -m grace.bench.load.report build/load/rate-*.json --out build/load/report.html

Reads results of `python -m grace.bench.load` and of ghz (--format json).
"""

import argparse
import base64
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

from grace.bench.load.arguments import out_file
from grace.bench.load.client import FINISH_SECONDS
from grace.bench.load.plots import draw_loads
from grace.bench.load.result import LATENESS_LIMIT, LATENESS_SHARE
from grace.bench.load.summary import PERCENTAGES, RunSummary, read_summary
from grace.bench.result_file import machine
from grace.configs.errors import GraceError

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em }
table { border-collapse: collapse; margin: 1em 0 }
th, td { border-bottom: 1px solid #ccd; padding: .25em .8em; text-align: right }
th:first-child, td:first-child, td.text { text-align: left }
img { max-width: 100% }
.bad { color: #c0392b }
.legend { color: #556; font-size: 13px; padding-left: 1.2em }
"""
_LATENCIES = (
    "Latencies are of calls that ended OK. Our client counts them from the time at which a call "
    "was due, and leaves out the one call that warms up each connection."
)
_HEADINGS = (
    "offered/s", "answered OK/s", "calls", "OK", "failed", "withdrawn",
    "P50 ms", "P90 ms", "P95 ms", "P99 ms", "slowest ms", "late ms", "client",
)  # fmt: skip
_LEGEND = {
    "offered/s": "calls that the load meant to make; for a closed loop, calls that it made.",
    "answered OK/s": "OK calls, divided by the time to the end of the last call.",
    "failed": "refused, too late or in error; the table of reasons says which.",
    "withdrawn": f"given up by the client itself, {FINISH_SECONDS:g} s after the last call was "
    "made, or when ghz ended. Neither OK nor failed, and in no latency.",
    "P99 ms": "99 % of the OK calls took at most this long; likewise P50, P90, P95.",
    "late ms": "P99 of our client's own delay, which is part of the latencies. If it is above "
    f"{LATENESS_LIMIT * 1e3:g} ms and above {LATENESS_SHARE * 100:g} % of the P99 of all calls, "
    "the run does not measure the server.",
}
_STAGES_LEGEND = {
    "queue": "all waiting on the server: for a batch, and between stages.",
    "input, features, generate, post": "work on the batch that the call was in.",
    "overhead": "the rest of the latency: gRPC in client and server, the network between them, "
    "and the client's lateness.",
}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m grace.bench.load.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("results", type=Path, nargs="+", help="result files, ours or ghz's")
    parser.add_argument(
        "--out", type=out_file, required=True, help="HTML file; a PNG goes next to it"
    )
    options = parser.parse_args(arguments)
    write_report([read_summary(path) for path in options.results], options.out)
    count = len(options.results)
    print(f"{options.out}: {count} load{'' if count == 1 else 's'}")


def write_report(runs: Sequence[RunSummary], out: Path) -> None:
    """Write the page to `out` and its picture under the same name with .png."""
    ordered = sorted(runs, key=lambda run: run.offered)
    picture = draw_loads(ordered)
    out.write_text(_page(ordered, picture), encoding="utf-8")
    out.with_suffix(".png").write_bytes(picture)


def _page(runs: Sequence[RunSummary], picture: bytes) -> str:
    data = base64.b64encode(picture).decode()
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Load</title>",
        f"<style>{_STYLE}</style></head><body><h1>Load</h1>",
        f"<p>Client on {escape(machine())}. {_LATENCIES}</p>",
        _table(_HEADINGS, [_cells(run) for run in runs]),
        _legend(_LEGEND),
        *(
            f"<p class='bad'>{run.offered:g} calls/s: not valid: {escape(run.invalid_because)}</p>"
            for run in runs
            if run.invalid_because
        ),
        *_reasons(runs),
        *_stages(runs),
        "<h2>Against offered load, and over time</h2>",
        f"<p><img alt='latencies and outcomes' src='data:image/png;base64,{data}'></p>",
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _cells(run: RunSummary) -> list[str]:
    latencies = [f"{run.latency_ms[p]:.1f}" if run.latency_ms else "-" for p in PERCENTAGES]
    counts = [f"{count:,}" for count in (run.count, run.ok, run.failed, run.withdrawn)]
    rates = [f"{run.offered:g}", f"{run.answered_per_second:,.1f}"]
    late = "-" if run.late_ms is None else f"{run.late_ms:.1f}"
    return [*rates, *counts, *latencies, f"{run.slowest_ms:.1f}", late, run.client]


def _reasons(runs: Sequence[RunSummary]) -> list[str]:
    names = sorted({name for run in runs for name in run.reasons})
    if not names:
        return ["<p>No call failed.</p>"]
    rows = [[f"{run.offered:g}", *(f"{run.reasons.get(n, 0):,}" for n in names)] for run in runs]
    return ["<h2>Failures by reason</h2>", _table(("offered/s", *names), rows)]


def _stages(runs: Sequence[RunSummary]) -> list[str]:
    measured = [run for run in runs if run.stages_ms]
    if not measured:
        return []
    names = list(measured[0].stages_ms)
    rows = [
        [f"{run.offered:g}", *(f"{run.stages_ms[name]:.2f}" for name in names)] for run in measured
    ]
    return [
        "<h2>Where the time went: medians in ms</h2>",
        "<p>From the replies' timings.</p>",
        _table(("offered/s", *names), rows),
        _legend(_STAGES_LEGEND),
    ]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def row(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    lines = [row("th", headings), *(row("td", cells) for cells in rows)]
    return "<table>\n" + "\n".join(lines) + "\n</table>"


def _legend(lines: dict[str, str]) -> str:
    items = (f"<li><b>{escape(name)}</b>: {escape(text)}</li>" for name, text in lines.items())
    return "<ul class='legend'>\n" + "\n".join(items) + "\n</ul>"


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except GraceError as error:
        sys.exit(f"error: {error}")
