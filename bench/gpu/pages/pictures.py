"""Draw the pictures of docs/performance.md from the result files. Needs matplotlib (`plots`).

    python -m grace.bench.gpu.pages.pictures bench/results/h200      after a table was measured

`make fix` does not draw: another version of matplotlib writes other bytes.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from grace.bench.figures import Figure
from grace.bench.gpu.pages.published import LADDER
from grace.bench.load.client import STAGES
from grace.bench.load.timeline import Slice, read_timeline
from grace.bench.result_file import Row, read_result

_LANE_COLOURS = ("#7fa6d6", "#8cbf9f", "#1f4e8c", "#c9a35b")
_COLOURS = ("#98a3b3", "#1f4e8c")
_KERNELS_SHOWN = 14

Bar = tuple[str, float | None, float | None]
"""A label and the values of both series; None where a series has no number."""


class _Chart(NamedTuple):
    title: str
    series: tuple[str, str]
    bars: Callable[[Sequence[Row]], list[Bar]]


def draw_pictures(results: Path) -> list[Path]:
    """Draw every picture whose rows were measured, next to the result files."""
    drawn = []
    for table, chart in _CHARTS.items():
        file = results / f"{table}.json"
        bars = chart.bars(read_result(file)["rows"]) if file.exists() else []
        if bars:
            drawn.append(file.with_suffix(".png"))
            _draw(chart, bars).savefig(drawn[-1], dpi=110)
    timeline = results / "serve_timeline.json"
    if timeline.exists():
        drawn.append(timeline.with_suffix(".png"))
        _draw_timeline(read_timeline(timeline)).savefig(drawn[-1], dpi=110)
    return drawn


def _draw(chart: _Chart, bars: Sequence[Bar]) -> Figure:
    """Horizontal bars from zero, the first on top."""
    figure = Figure(figsize=(8, 1 + 0.45 * len(bars)), layout="constrained")
    axes = figure.subplots()
    for place, (name, colour) in enumerate(zip(chart.series, _COLOURS, strict=True)):
        values = [bar[1 + place] for bar in bars]
        rows = [row + 0.4 * place - 0.2 for row in range(len(bars))]
        drawn = axes.barh(rows, [value or 0.0 for value in values], 0.38, color=colour, label=name)
        labels = ["" if value is None else f"{value:.4g}" for value in values]
        axes.bar_label(drawn, labels, padding=3, fontsize=8)
    axes.set_yticks(range(len(bars)), [bar[0] for bar in bars])
    axes.invert_yaxis()
    axes.set(title=chart.title, xlabel="ms")
    axes.margins(x=0.1)
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="best")
    return figure


def _draw_timeline(slices: Sequence[Slice]) -> Figure:
    """Draw a lane for each stage, and in it a bar for each batch with its number of requests."""
    figure = Figure(figsize=(13, 3.4), layout="constrained")
    axes = figure.subplots()
    begin = min(part.begin for part in slices)
    for lane, (stage, colour) in enumerate(zip(STAGES, _LANE_COLOURS, strict=True)):
        own = [part for part in slices if part.stage == stage]
        spans = [((part.begin - begin) * 1e3, (part.end - part.begin) * 1e3) for part in own]
        axes.broken_barh(spans, (lane - 0.4, 0.8), facecolors=colour, edgecolor="white", lw=0.4)
        for part, (left, width) in zip(own, spans, strict=True):
            if stage == "generate":
                axes.text(
                    left + width / 2, lane, str(part.requests), ha="center", va="center",
                    fontsize=6, color="white",
                )  # fmt: skip
    axes.set_yticks(range(len(STAGES)), STAGES)
    axes.invert_yaxis()
    axes.set(xlabel="ms", title="The stages at saturation")
    axes.grid(axis="x", alpha=0.3)
    return figure


def _ladder(rows: Sequence[Row]) -> list[Bar]:
    bars = []
    for row in rows:
        paper = LADDER[row["rung"]].decoder
        first = None if paper is None else paper[0]
        bars.append((f"{row['rung']} {row['precision']}", first, row["decoder_p50_ms"]))
    return bars


def _sizes(rows: Sequence[Row]) -> list[Bar]:
    sizes = [row for row in rows if row["measure"] == "decoder"]
    return [(f"{x['sids']:,} SIDs", x["decoder_p50_ms"], x["admission_p50_ms"]) for x in sizes]


def _serve(rows: Sequence[Row]) -> list[Bar]:
    return [(_load_name(row), row["p50_ms"], row["p99_ms"]) for row in rows]


def _load_name(row: Row) -> str:
    """Rows of older results have no mode."""
    names = (row["measure"], f"{row['rps']:g}/s", row.get("mode"), row["precision"])
    return " ".join(name for name in names if name is not None)


def _budget(rows: Sequence[Row]) -> list[Bar]:
    own = [row for row in rows if row["measure"] not in ("rates", "whole")]
    largest = sorted(own, key=lambda row: -row["measured_ms"])[:_KERNELS_SHOWN]
    return [(x["kernel"], x["floor_ms"] or None, x["measured_ms"] or None) for x in largest]


_CHARTS: Mapping[str, _Chart] = {
    "ladder": _Chart("Decoder P50, batch 16", ("paper (GH200)", "here"), _ladder),
    "gtm": _Chart("P50 by SIDs, D3, batch 16", ("decoder", "admission"), _sizes),
    "serve": _Chart("Latency through gRPC", ("P50", "P99"), _serve),
    "budget": _Chart("The largest kernels", ("floor", "measured"), _budget),
}


if __name__ == "__main__":
    for path in draw_pictures(Path(sys.argv[1])):
        print(path)
