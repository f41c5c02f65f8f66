"""Draw a dashboard's panels, where Grafana has them, from what Prometheus answers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from grace.bench.figures import Axes, Figure
from grace.bench.monitoring.panels import DashboardPanel

INK, FAINT, GRID = "#23272e", "#767d8a", "#e3e6ea"
COLOURS = (
    *("#1f4e8c", "#d98324", "#4a9c6d", "#b04a5a", "#7a5ea8", "#2f9fb4", "#8a8d3f", "#d97fa6"),
    *("#5b6573", "#a9713f"),
)
COLUMNS, COLUMN_INCHES, LINE_INCHES = 24, 0.62, 0.3
LEGEND_CHARACTERS = 7  # for each column of a panel; the legend leaves out further series

_SCALES: Mapping[str, Sequence[tuple[float, str]]] = {
    "bytes": ((1 << 30, " GiB"), (1 << 20, " MiB"), (1 << 10, " KiB"), (0, " B")),
    "s": ((86_400, " d"), (3600, " h"), (60, " min"), (1, " s"), (0, " ms")),
}
"""By unit: the values from which each name is used, the largest first."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One series of a panel under the name that its legend has; times are since the beginning."""

    name: str
    minutes: Sequence[float]
    values: Sequence[float]


def draw(panels: Sequence[tuple[DashboardPanel, Sequence[Curve]]], title: str) -> Figure:
    lines = max(panel.place["y"] + panel.place["h"] for panel, _ in panels)
    size = COLUMNS * COLUMN_INCHES, lines * LINE_INCHES + 0.5
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title, fontsize=13, color=INK)
    grid = figure.add_gridspec(lines, COLUMNS)
    for panel, curves in panels:
        left, top, width, height = (panel.place[name] for name in ("x", "y", "w", "h"))
        axes = figure.add_subplot(grid[top : top + height, left : left + width])
        axes.set_title(panel.title, fontsize=8.5, color=INK, weight="bold", loc="left")
        axes.spines[:].set_color(GRID)
        if panel.kind == "timeseries" and curves:
            _draw_graph(axes, panel, curves)
            continue
        axes.set(xticks=[], yticks=[])
        last = [curve.values[-1] for curve in curves if curve.values]
        shown = " ".join(_with_unit(value, panel.unit) for value in last)
        if panel.kind == "row":
            axes.set_axis_off()
        else:
            middle: Any = {"ha": "center", "va": "center", "transform": axes.transAxes}
            axes.text(0.5, 0.5, shown or panel.no_value, color=COLOURS[0], fontsize=14, **middle)
    return figure


def _draw_graph(axes: Axes, panel: DashboardPanel, curves: Sequence[Curve]) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="y", color=GRID, lw=0.7)
    axes.tick_params(labelsize=7, colors=FAINT, length=0)
    if panel.stacked:
        _draw_stack(axes, curves)
    else:
        for place, curve in enumerate(curves):
            colour = COLOURS[place % len(COLOURS)]
            axes.plot(curve.minutes, curve.values, color=colour, lw=1.2, label=curve.name)
    axes.set_ylim(bottom=0)
    if panel.unit == "percentunit" and axes.get_ylim()[1] > 0.9:
        axes.set_ylim(top=1.02)
    axes.margins(x=0)
    axes.locator_params(nbins=5)
    axes.yaxis.set_major_formatter(lambda value, _: _with_unit(value, panel.unit))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} min")
    handles, names = axes.get_legend_handles_labels()
    ends = accumulate(len(name) + 5 for name in names)
    shown = sum(end <= LEGEND_CHARACTERS * panel.place["w"] for end in ends)
    axes.legend(
        handles[:shown], names[:shown], loc="upper center", ncols=max(1, shown),
        bbox_to_anchor=(0.45, -0.12), fontsize=7, frameon=False, labelcolor=INK,
        handlelength=1.0, columnspacing=1.1,
    )  # fmt: skip


def _draw_stack(axes: Axes, curves: Sequence[Curve]) -> None:
    """Stack the curves, those of the largest sums first. A series may begin late."""
    minutes = sorted({minute for curve in curves for minute in curve.minutes})
    rows = {}
    for curve in sorted(curves, key=lambda each: -sum(filter(math.isfinite, each.values))):
        known = dict(zip(curve.minutes, curve.values, strict=True))
        values = [known.get(minute, 0.0) for minute in minutes]
        rows[curve.name] = [value if math.isfinite(value) else 0.0 for value in values]
    colours = [COLOURS[place % len(COLOURS)] for place in range(len(rows))]
    axes.stackplot(
        minutes, list(rows.values()), labels=list(rows), colors=colours, alpha=0.75, lw=0
    )


def _with_unit(value: float, unit: str) -> str:
    if not math.isfinite(value):
        return "none"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    for size, name in _SCALES.get(unit, ()):
        if abs(value) >= size:
            return f"{value / (size or 1) * (1e3 if name == ' ms' else 1):.3g}{name}"
    number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{number}/s" if unit in ("reqps", "cps") else number
