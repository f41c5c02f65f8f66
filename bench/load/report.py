"""A page about loads, for people: one HTML file with its pictures in it, and a PNG beside it.

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
from grace.bench.load.plots import draw_all, draw_comparison, draw_over_time
from grace.bench.load.result import LATENESS_LIMIT, LATENESS_SHARE
from grace.bench.load.summary import RunSummary, read_summary
from grace.bench.result_file import machine
from grace.configs.errors import GraceError

__all__ = ["main", "write_report"]

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
    "Latencies are of calls that ended OK and, of our client, count from when a call was meant to "
    "be made. Before its clock starts, our client makes one call on each connection; no number "
    "here counts those."
)
_HEADINGS = (
    "offered/s", "answered OK/s", "calls", "OK", "failed", "withdrawn",
    "P50 ms", "P90 ms", "P95 ms", "P99 ms", "slowest ms", "late ms", "client",
)  # fmt: skip
_LEGEND = (
    ("offered/s", "the calls that the load meant to make; of a closed loop, those it made."),
    ("answered OK/s", "OK calls by the whole time, to the end of the last call."),
    ("failed", "refused, too late or in error; by the server's reason below."),
    (
        "withdrawn",
        (
            f"given up by the client itself, {FINISH_SECONDS:g} s after the last call was made, or "
            "at ghz's end. Neither OK nor failed, and in no latency."
        ),
    ),
    ("P99 ms", "99 % of the OK calls took at most this long; likewise P50, P90, P95."),
    (
        "late ms",
        (
            "how far our client itself was behind, P99: it is part of the latencies. More than "
            f"{LATENESS_LIMIT * 1e3:g} ms and more than {LATENESS_SHARE * 100:g} % of the P99 of "
            "all calls, and the load is no valid measurement of the server."
        ),
    ),
)
_STAGES_LEGEND = (
    ("queue", "all waiting on the server: for a batch, and between stages."),
    ("input, features, generate, post", "work on the batch that the call was in."),
    (
        "overhead",
        (
            "all else that the client saw: both front ends, the network between them, the "
            "client's own lateness."
        ),
    ),
)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m grace.bench.load.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("results", type=Path, nargs="+", help="result files, ours or ghz's")
    parser.add_argument(
        "--out", type=out_file, required=True, help="HTML file; a PNG goes beside it"
    )
    options = parser.parse_args(arguments)
    write_report([read_summary(path) for path in options.results], options.out)
    count = len(options.results)
    print(f"{options.out}: {count} load{'' if count == 1 else 's'}")


def write_report(runs: Sequence[RunSummary], out: Path) -> None:
    """`out` and the same pictures under its name with .png."""
    ordered = sorted(runs, key=lambda run: run.offered)
    out.write_text(_page(ordered), encoding="utf-8")
    out.with_suffix(".png").write_bytes(draw_all(ordered))


def _page(runs: Sequence[RunSummary]) -> str:
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
        "<h2>Against offered load</h2>",
        _image(draw_comparison(runs), "percentiles and outcomes against offered load"),
        "<h2>Over time</h2>",
        *(_image(draw_over_time(run), f"latency over time, {run.title}") for run in runs),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _cells(run: RunSummary) -> list[str]:
    latencies = [f"{run.latency_ms[p]:.1f}" if run.latency_ms else "-" for p in (50, 90, 95, 99)]
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
    names = next((list(run.stages_ms) for run in runs if run.stages_ms), [])
    if not names:
        return []
    rows = [
        [f"{run.offered:g}", *(f"{run.stages_ms[name]:.2f}" for name in names)]
        for run in runs
        if run.stages_ms
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


def _legend(lines: Sequence[tuple[str, str]]) -> str:
    items = (f"<li><b>{escape(name)}</b>: {escape(text)}</li>" for name, text in lines)
    return "<ul class='legend'>\n" + "\n".join(items) + "\n</ul>"


def _image(png: bytes, alternative: str) -> str:
    data = base64.b64encode(png).decode()
    return f"<p><img alt='{escape(alternative)}' src='data:image/png;base64,{data}'></p>"


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except GraceError as error:
        sys.exit(f"error: {error}")
