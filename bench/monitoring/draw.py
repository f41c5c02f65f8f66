"""Draw a dashboard's panels from what Prometheus answers to their queries.

It lays panels out in rows of 24 columns as Grafana does, with one picture's worth of detail.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grace.bench.figures import Axes, Figure
from grace.bench.monitoring.panels import DashboardPanel
from grace.bench.monitoring.prometheus import Series

INK, FAINT, GRID, PAPER, CARD = "#23272e", "#767d8a", "#e3e6ea", "#f4f5f7", "#ffffff"
COLOURS = (
    *("#1f4e8c", "#d98324", "#4a9c6d", "#b04a5a", "#7a5ea8", "#2f9fb4", "#8a8d3f", "#d97fa6"),
    *("#5b6573", "#a9713f"),
)
LEGEND_CHARACTERS = 11  # for each inch of a panel; the legend leaves out further series

_COLUMNS = 24
_INCHES_PER_COLUMN = 0.62
_STAT_INCHES, _GRAPH_INCHES, _ROW_INCHES = 1.05, 2.35, 0.45
_LABEL = re.compile(r"{{(\w+)}}")
_BYTES = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_SECONDS = ((86_400, "d"), (3600, "h"), (60, "min"))


@dataclass(frozen=True, slots=True)
class Curve:
    """One series of a panel under the name that its legend has; times are since the beginning."""

    name: str
    minutes: Sequence[float]
    values: Sequence[float]


def curves_of(answers: Sequence[tuple[str, Sequence[Series]]], begin: float) -> list[Curve]:
    """Return the curves of a panel; each answer has the pattern of its series' names."""
    return [
        Curve(
            _named(name, series.labels), [(at - begin) / 60 for at in series.times], series.values
        )
        for name, found in answers
        for series in found
    ]


def _named(name: str, labels: Mapping[str, str]) -> str:
    return _LABEL.sub(lambda found: labels.get(found[1], ""), name)


def draw(panels: Sequence[tuple[DashboardPanel, Sequence[Curve]]], title: str) -> Figure:
    lines = _lines(panels)
    heights = [_line_inches(line) for line in lines]
    width, height = _COLUMNS * _INCHES_PER_COLUMN, sum(heights) + 0.55
    figure = Figure(figsize=(width, height), facecolor=PAPER)
    figure.text(0.012, 1 - 0.28 / height, title, fontsize=13, color=INK, weight="bold", va="center")
    top = height - 0.55
    for line, inches in zip(lines, heights, strict=True):
        if isinstance(line, str):
            at = (top - inches * 0.55) / height
            figure.text(0.012, at, line, fontsize=11, color=INK, weight="bold", va="center")
        else:
            _draw_line(figure, line, top, inches, width, height)
        top -= inches
    return figure


def _lines(panels: Sequence[tuple[DashboardPanel, Sequence[Curve]]]) -> list[Any]:
    """Return the headings of rows, and lists of the panels that are side by side."""
    lines: list[Any] = []
    row, used = "", _COLUMNS
    for panel, curves in panels:
        if panel.row != row:
            lines.append(panel.row)
            row, used = panel.row, _COLUMNS
        if used + panel.width > _COLUMNS:
            lines.append([])
            used = 0
        lines[-1].append((panel, curves))
        used += panel.width
    return lines


def _line_inches(line: Any) -> float:
    if isinstance(line, str):
        return _ROW_INCHES
    return _STAT_INCHES if line[0][0].kind == "stat" else _GRAPH_INCHES


def _draw_line(
    figure: Figure, line: Any, top: float, inches: float, width: float, height: float
) -> None:
    left = 0.0
    for panel, curves in line:
        span = panel.width * _INCHES_PER_COLUMN
        card = figure.add_axes(
            ((left + 0.06) / width, (top - inches + 0.06) / height,
             (span - 0.12) / width, (inches - 0.12) / height),
            facecolor=CARD,
        )  # fmt: skip
        card.set(xticks=[], yticks=[])
        card.spines[:].set_color(GRID)
        name: dict[str, Any] = {"fontsize": 8.5, "color": INK, "weight": "bold", "va": "top"}
        card.text(0.1 / span, 1 - 0.07 / inches, panel.title, transform=card.transAxes, **name)
        if panel.kind == "stat":
            last = [curve.values[-1] for curve in curves if curve.values]
            shown = " ".join(_with_unit(value, panel.unit) for value in last) or "none"
            number: dict[str, Any] = {
                "fontsize": 19,
                "color": COLOURS[0],
                "ha": "center",
                "va": "center",
            }
            card.text(0.5, 0.4, shown, transform=card.transAxes, **number)
        else:
            inner = figure.add_axes(
                ((left + 0.62) / width, (top - inches + 0.62) / height,
                 (span - 0.8) / width, (inches - 1.02) / height),
                facecolor=CARD,
            )  # fmt: skip
            _draw_graph(inner, panel, curves, round(span * LEGEND_CHARACTERS))
        left += span


def _draw_graph(
    axes: Axes, panel: DashboardPanel, curves: Sequence[Curve], characters: int
) -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.grid(axis="y", color=GRID, lw=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=7, colors=FAINT, length=0)
    known = [curve for curve in curves if any(map(math.isfinite, curve.values))]
    if not known:
        axes.set(xticks=[], yticks=[])
        text = panel.no_value or "no data"
        axes.text(0.5, 0.5, text, ha="center", color=FAINT, fontsize=9, transform=axes.transAxes)
        return
    if panel.stacked:
        _draw_stack(axes, known)
    else:
        for curve, colour in zip(known, _colours(len(known)), strict=True):
            axes.plot(curve.minutes, curve.values, color=colour, lw=1.2, label=curve.name)
    axes.set_ylim(bottom=0)
    if panel.unit == "percentunit" and axes.get_ylim()[1] > 0.9:
        axes.set_ylim(top=1.02)
    axes.margins(x=0)
    axes.locator_params(axis="y", nbins=4)
    axes.locator_params(axis="x", nbins=6)
    axes.yaxis.set_major_formatter(lambda value, _: _with_unit(value, panel.unit))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} min")
    handles, names = axes.get_legend_handles_labels()
    shown, used = 0, 0
    while shown < len(names) and used + len(names[shown]) + 5 <= characters:
        used += len(names[shown]) + 5
        shown += 1
    axes.legend(
        handles[:shown], names[:shown], loc="upper center", ncols=max(1, shown),
        bbox_to_anchor=(0.45, -0.17), fontsize=7, frameon=False, labelcolor=INK,
        handlelength=1.0, columnspacing=1.1,
    )  # fmt: skip


def _draw_stack(axes: Axes, curves: Sequence[Curve]) -> None:
    """Stack the curves, those of the largest sums first. A series may begin late."""
    minutes = sorted({minute for curve in curves for minute in curve.minutes})
    columns: list[tuple[str, list[float]]] = []
    for curve in sorted(curves, key=lambda each: -sum(filter(math.isfinite, each.values))):
        known: Mapping[float, float] = dict(zip(curve.minutes, curve.values, strict=True))
        values = [known.get(minute, 0.0) for minute in minutes]
        columns.append((curve.name, [value if math.isfinite(value) else 0.0 for value in values]))
    colours = _colours(len(columns))
    axes.stackplot(
        minutes, [values for _, values in columns], labels=[name for name, _ in columns],
        colors=colours, alpha=0.75, lw=0,
    )  # fmt: skip


def _colours(count: int) -> list[str]:
    return [COLOURS[number % len(COLOURS)] for number in range(count)]


def _with_unit(value: float, unit: str) -> str:
    if not math.isfinite(value):
        return "none"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "bytes":
        return _scaled(value, _BYTES, "B")
    if unit == "s":
        return f"{value * 1e3:.3g} ms" if abs(value) < 1 else _scaled(value, _SECONDS, "s")
    number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{number}/s" if unit in ("reqps", "cps") else number


def _scaled(value: float, scales: Sequence[tuple[int, str]], plain: str) -> str:
    for size, name in scales:
        if abs(value) >= size:
            return f"{value / size:.3g} {name}"
    return f"{value:.3g} {plain}"
