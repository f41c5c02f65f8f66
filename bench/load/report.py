"""A report of our client's loads in Markdown: docs/operations.md has its columns."""

from collections.abc import Mapping, Sequence
from typing import Any

from grace.bench.load.client import STAGES
from grace.bench.markdown import markdown_table
from grace.bench.result_file import commit, machine

Result = Mapping[str, Any]
"""What `ghz.load_result` returns."""

_PERCENTAGES = (50, 90, 95, 99)
_HEADINGS = (
    "offered/s", "answered OK/s", "calls", "OK", "failed", "withdrawn",
    *(f"P{percentage} ms" for percentage in _PERCENTAGES), "slowest ms", "late ms",
)  # fmt: skip


def offered(result: Result) -> str:
    """Return the calls a second. A closed loop offers as many as it can make."""
    rate = result["grace"]["offered_rps"] or result["rps"]
    return f"{round(float(rate), 1):g}"


def load_report(results: Sequence[Result]) -> str:
    """Return tables of latencies, of failures, and of where the time went."""
    parts = [
        f"Commit {commit()}. Client on {machine()}. Only calls that ended OK have a latency.\n",
        markdown_table(_HEADINGS, map(_cells, results)),
        *(
            f"{offered(each)} calls/s: not valid: {fault}.\n"
            for each in results
            if (fault := each["grace"]["invalid_because"])
        ),
    ]
    counts = [(offered(each), each["grace"]["reasons"]) for each in results]
    if reasons := sorted({name for _, own in counts for name in own}):
        rows = [[rate, *(f"{own.get(n, 0):,}" for n in reasons)] for rate, own in counts]
        parts += ["Failed calls by reason:\n", markdown_table(("offered/s", *reasons), rows)]
    names = ("queue", *STAGES, "overhead")
    answered = [(each, each["grace"]["ms"]) for each in results if each["grace"]["ok"]]
    if answered:
        medians = [[offered(x), *(f"{ms[n]['p50']:.2f}" for n in names)] for x, ms in answered]
        parts += [
            "Where the time went, by the replies' timings: medians in ms.\n",
            markdown_table(("offered/s", *names), medians),
        ]
    return "\n".join(parts)


def _cells(result: Result) -> list[str]:
    own, seconds = result["grace"], result["total"] / 1e9
    latency = {each["percentage"]: each["latency"] for each in result["latencyDistribution"]}
    shown = [f"{latency[p] / 1e6:.1f}" if latency else "-" for p in _PERCENTAGES]
    counts = [
        f"{count:,}" for count in (result["count"], own["ok"], own["failed"], own["withdrawn"])
    ]
    rates = [offered(result), f"{own['ok'] / seconds if seconds else 0:,.1f}"]
    late = own["ms"]["lateness"]
    slowest = f"{result['slowest'] / 1e6:.1f}"
    return [*rates, *counts, *shown, slowest, "-" if late is None else f"{late['p99']:.1f}"]
