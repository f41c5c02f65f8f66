"""A report of loads in Markdown, by our client or by ghz: docs/operations.md has its columns."""

from collections.abc import Sequence

from grace.bench.load.ghz import SHOWN_PERCENTAGES, RunSummary
from grace.bench.markdown import markdown_table
from grace.bench.result_file import commit, machine

_HEADINGS = (
    "offered/s", "answered OK/s", "calls", "OK", "failed", "withdrawn",
    *(f"P{percentage} ms" for percentage in SHOWN_PERCENTAGES), "slowest ms", "late ms", "client",
)  # fmt: skip


def load_report(runs: Sequence[RunSummary]) -> str:
    """Return tables of latencies, of failures, and of where the time went."""
    parts = [
        f"Commit {commit()}. Client on {machine()}. Only calls that ended OK have a latency.\n",
        markdown_table(_HEADINGS, map(_cells, runs)),
        *(
            f"{run.offered:g} calls/s: not valid: {run.invalid_because}.\n"
            for run in runs
            if run.invalid_because
        ),
    ]
    if reasons := sorted({name for run in runs for name in run.reasons}):
        counts = [[f"{x.offered:g}", *(f"{x.reasons.get(n, 0):,}" for n in reasons)] for x in runs]
        parts += ["Failed calls by reason:\n", markdown_table(("offered/s", *reasons), counts)]
    if measured := [run for run in runs if run.stages_ms]:
        names = list(measured[0].stages_ms)
        medians = [[f"{x.offered:g}", *(f"{x.stages_ms[n]:.2f}" for n in names)] for x in measured]
        parts += [
            "Where the time went, by the replies' timings: medians in ms.\n",
            markdown_table(("offered/s", *names), medians),
        ]
    return "\n".join(parts)


def _cells(run: RunSummary) -> list[str]:
    latencies = [f"{run.latency_ms[p]:.1f}" if run.latency_ms else "-" for p in SHOWN_PERCENTAGES]
    counts = [f"{count:,}" for count in (run.count, run.ok, run.failed, run.withdrawn)]
    rates = [f"{run.offered:g}", f"{run.answered_per_second:,.1f}"]
    late = "-" if run.late_ms is None else f"{run.late_ms:.1f}"
    return [*rates, *counts, *latencies, f"{run.slowest_ms:.1f}", late, run.client]
