"""Pictures of loads. The only module of this package that needs matplotlib, the extra `plots`."""

import io
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from grace.bench.load.summary import RunSummary
from grace.bench.load.timeline import LANES, Slice

_GOOD, _BAD, _GREY = "#1f4e8c", "#c0392b", "#98a3b3"
_PERCENTAGES = {50: "#7fa6d6", 90: "#3f76b5", 99: "#1f4e8c"}
_LANE_COLOURS = ("#7fa6d6", "#8cbf9f", "#1f4e8c", "#c9a35b")
_DPI = 110


def draw_loads(runs: Sequence[RunSummary]) -> bytes:
    """A PNG: percentiles and outcomes against the offered load, then each run's calls over time."""
    figure = _figure(11, 4 + 3 * len(runs))
    heights = [4, *[3] * len(runs)]
    parts = figure.subfigures(1 + len(runs), 1, height_ratios=heights, squeeze=False)[:, 0]
    percentiles, outcomes = parts[0].subplots(1, 2)
    _percentiles(percentiles, runs)
    _outcomes(outcomes, runs)
    for part, run in zip(parts[1:], runs, strict=True):
        _over_time(part.subplots(), run)
    return _png(figure)


def draw_timeline(slices: Sequence[Slice], title: str) -> bytes:
    """A PNG: one lane for each stage, one bar for each batch, with the number of its requests."""
    figure = _figure(13, 3.4)
    axes = figure.subplots()
    begin = min(part.begin for part in slices)
    for lane, (stage, colour) in enumerate(zip(LANES, _LANE_COLOURS, strict=True)):
        own = [part for part in slices if part.stage == stage]
        spans = [((part.begin - begin) * 1e3, (part.end - part.begin) * 1e3) for part in own]
        axes.broken_barh(spans, (lane - 0.4, 0.8), facecolors=colour, edgecolor="white", lw=0.4)
        for part, (left, width) in zip(own, spans, strict=True):
            if stage == "generate":
                axes.text(
                    left + width / 2, lane, str(part.requests), ha="center", va="center",
                    fontsize=6, color="white",
                )  # fmt: skip
    axes.set_yticks(range(len(LANES)), LANES)
    axes.invert_yaxis()
    axes.set(xlabel="ms", title=title)
    axes.grid(axis="x", alpha=0.3)
    return _png(figure)


def _percentiles(axes: Axes, runs: Sequence[RunSummary]) -> None:
    known = sorted((run for run in runs if run.latency_ms), key=lambda run: run.offered)
    offered = [run.offered for run in known]
    for percentage, colour in _PERCENTAGES.items():
        latencies = [run.latency_ms[percentage] for run in known]
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


def _over_time(axes: Axes, run: RunSummary) -> None:
    for label, colour, good in (("OK", _GOOD, True), ("not OK", _BAD, False)):
        points = [point for point in run.points if point.ok is good]
        seconds = [point.second for point in points]
        latencies = [point.latency_ms for point in points]
        named = label if points else None
        axes.scatter(seconds, latencies, s=3, color=colour, label=named, rasterized=True)
    axes.set(xlabel="second of the load", ylabel="latency, ms", title=run.title)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if run.points:
        axes.legend(markerscale=4, loc="upper right")


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _png(figure: Figure) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=_DPI)
    return out.getvalue()
