"""A page about loads: one self-contained HTML file, with its picture also as a PNG next to it.

    python -m grace.bench.load.report build/load/rate-*.json --out build/load/report.html

It reads results of `python -m grace.bench.load` and of ghz (--format json), and needs matplotlib,
the extra `plots`.
"""

import base64
import io
from collections.abc import Sequence
from html import escape
from pathlib import Path

from grace.bench.figures import Axes, Figure
from grace.bench.load.client import FINISH_SECONDS
from grace.bench.load.ghz import (
    LATENESS_LIMIT,
    LATENESS_SHARE,
    SHOWN_PERCENTAGES,
    RunSummary,
    read_summary,
)
from grace.bench.load.options import out_file, parser_of, run_command
from grace.bench.result_file import commit, machine
from grace.proto.retrieval_pb2 import GetStatusResponse

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
_GOOD, _BAD, _GREY = "#1f4e8c", "#c0392b", "#98a3b3"
_PERCENTAGES = {50: "#7fa6d6", 90: "#3f76b5", 99: "#1f4e8c"}


def main(arguments: Sequence[str]) -> None:
    parser = parser_of("grace.bench.load.report", __doc__)
    parser.add_argument("results", type=Path, nargs="+", help="result files, ours or ghz's")
    parser.add_argument(
        "--out", type=out_file, required=True, help="HTML file; a PNG goes next to it"
    )
    options = parser.parse_args(arguments)
    write_report(options.results, options.out)
    count = len(options.results)
    print(f"{options.out}: {count} load{'' if count == 1 else 's'}")


def write_report(results: Sequence[Path], out: Path, server: str = "") -> Sequence[RunSummary]:
    """Write the page to `out` and its picture under the same name with .png; return the runs.

    server  what is known of it: `server_facts`
    """
    runs = sorted(map(read_summary, results), key=lambda run: run.offered)
    picture = draw_loads(runs)
    out.write_text(_page(runs, picture, server), encoding="utf-8")
    out.with_suffix(".png").write_bytes(picture)
    return runs


def server_facts(status: GetStatusResponse) -> str:
    """Describe what a server serves, and how."""
    snapshot, model = status.snapshot, status.model
    profile = next(each for each in status.profiles if each.name == status.default_profile)
    precision = f" in {status.engine.precision}" if status.engine.precision else ""
    return (
        f"grace {status.server_version} on {status.device}{precision}; snapshot "
        f"{snapshot.version} of {snapshot.sid_space}, mode {snapshot.mode}, {snapshot.sids:,} SIDs,"
        f" {snapshot.ads:,} ads; checkpoint {model.checkpoint} ({model.encoder}); profile "
        f"{profile.name}: beams {', '.join(map(str, profile.beams))} and {profile.num_sids} SIDs; "
        f"batches of at most {status.max_batch}"
    )


def _page(runs: Sequence[RunSummary], picture: bytes, server: str) -> str:
    data = base64.b64encode(picture).decode()
    dates = sorted(run.date for run in runs)
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    known = server or "not known: name its admin address with --admin"
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Load</title>",
        f"<style>{_STYLE}</style></head><body><h1>Load</h1>",
        f"<p>{escape(when)}, commit {escape(commit())}. Client on {escape(machine())}.</p>",
        f"<p>Server: {escape(known)}.</p>",
        f"<p>{_LATENCIES}</p>",
        _table(_HEADINGS, [_cells(run) for run in runs]),
        _legend(_LEGEND),
        *(
            f"<p class='bad'>{run.offered:g} calls/s: not valid: {escape(run.invalid_because)}</p>"
            for run in runs
            if run.invalid_because
        ),
    ]
    if names := sorted({name for run in runs for name in run.reasons}):
        reasons = [[f"{x.offered:g}", *(f"{x.reasons.get(n, 0):,}" for n in names)] for x in runs]
        parts += ["<h2>Failures by reason</h2>", _table(("offered/s", *names), reasons)]
    else:
        parts.append("<p>No call failed.</p>")
    if measured := [run for run in runs if run.stages_ms]:
        names = list(measured[0].stages_ms)
        stages = [[f"{x.offered:g}", *(f"{x.stages_ms[n]:.2f}" for n in names)] for x in measured]
        parts += [
            "<h2>Where the time went: medians in ms</h2>",
            "<p>From the replies' timings.</p>",
            _table(("offered/s", *names), stages),
            _legend(_STAGES_LEGEND),
        ]
    parts += [
        "<h2>Against offered load</h2>",
        f"<p><img alt='latencies and outcomes' src='data:image/png;base64,{data}'></p>",
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _cells(run: RunSummary) -> list[str]:
    latencies = [f"{run.latency_ms[p]:.1f}" if run.latency_ms else "-" for p in SHOWN_PERCENTAGES]
    counts = [f"{count:,}" for count in (run.count, run.ok, run.failed, run.withdrawn)]
    rates = [f"{run.offered:g}", f"{run.answered_per_second:,.1f}"]
    late = "-" if run.late_ms is None else f"{run.late_ms:.1f}"
    return [*rates, *counts, *latencies, f"{run.slowest_ms:.1f}", late, run.client]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def row(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    lines = [row("th", headings), *(row("td", cells) for cells in rows)]
    return "<table>\n" + "\n".join(lines) + "\n</table>"


def _legend(lines: dict[str, str]) -> str:
    items = (f"<li><b>{escape(name)}</b>: {escape(text)}</li>" for name, text in lines.items())
    return "<ul class='legend'>\n" + "\n".join(items) + "\n</ul>"


def draw_loads(runs: Sequence[RunSummary]) -> bytes:
    """Draw percentiles and outcomes against the offered load."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    percentiles, outcomes = figure.subplots(1, 2)
    _percentiles(percentiles, [run for run in runs if run.latency_ms])
    _outcomes(outcomes, runs)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110)
    return out.getvalue()


def _percentiles(axes: Axes, runs: Sequence[RunSummary]) -> None:
    offered = [run.offered for run in runs]
    for percentage, colour in _PERCENTAGES.items():
        latencies = [run.latency_ms[percentage] for run in runs]
        axes.plot(offered, latencies, marker="o", color=colour, label=f"P{percentage}")
    axes.set(xlabel="offered, calls/s", ylabel="latency of OK calls, ms", title="Percentiles")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()


def _outcomes(axes: Axes, runs: Sequence[RunSummary]) -> None:
    names = [f"{run.offered:g}" for run in runs]
    below = [0.0] * len(runs)
    for label, colour, counts in (
        ("OK", _GOOD, [run.ok for run in runs]),
        ("failed", _BAD, [run.failed for run in runs]),
        ("withdrawn by the client", _GREY, [run.withdrawn for run in runs]),
    ):
        axes.bar(names, counts, bottom=below, color=colour, label=label, width=0.6)
        below = [low + count for low, count in zip(below, counts, strict=True)]
    axes.set(xlabel="offered, calls/s", ylabel="calls", title="Outcomes")
    axes.grid(axis="y", alpha=0.3)
    axes.legend()


if __name__ == "__main__":
    run_command(main)
