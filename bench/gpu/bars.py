"""A bar chart as a small SVG: the same numbers make the same bytes, on any machine."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

__all__ = ["Bar", "draw_bars"]

_WIDTH, _LABEL, _LINE, _HEAD = 760, 190, 17, 34
_COLOURS = ("#98a3b3", "#1f4e8c", "#7fa6d6", "#8cbf9f")
_MARKS = 5
_STYLE = "font-family:sans-serif;font-size:11px"


@dataclass(frozen=True, slots=True)
class Bar:
    """A group of bars; None where a series has no number."""

    label: str
    values: tuple[float | None, ...]


def draw_bars(title: str, series: Sequence[str], bars: Sequence[Bar], unit: str) -> str:
    """Horizontal bars from zero, a colour for each series."""
    largest = max(value for bar in bars for value in bar.values if value)
    group = len(series) * _LINE + 8
    height = _HEAD + 16 + len(bars) * group + 22
    room = _WIDTH - _LABEL - 70
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="{_STYLE}">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="8" y="16" style="font-size:13px;font-weight:bold">{escape(title)}</text>',
    ]
    for place, name in enumerate(series):
        x = 8 + place * 170
        parts.append(f'<rect x="{x}" y="24" width="10" height="10" fill="{_COLOURS[place]}"/>')
        parts.append(f'<text x="{x + 15}" y="33">{escape(name)}</text>')
    step = _step(largest)
    scale = room / largest
    for number in range(floor(largest / step) + 1):
        at = _LABEL + scale * number * step
        parts.append(f'<path d="M{at:.1f} {_HEAD + 8}V{height - 20}" stroke="#e3e6ea"/>')
        mark = f"{number * step:g} {unit}"
        parts.append(f'<text x="{at:.1f}" y="{height - 6}" text-anchor="middle">{mark}</text>')
    for row, bar in enumerate(bars):
        parts += _group(bar, _HEAD + 14 + row * group, len(series), scale)
    return "\n".join([*parts, "</svg>", ""])


def _step(largest: float) -> float:
    """Between marks: 1, 2 or 5 of a power of ten, so that there are few."""
    power = 10.0 ** floor(log10(largest / _MARKS))
    return next(power * each for each in (1, 2, 5, 10) if power * each * _MARKS >= largest)


def _group(bar: Bar, top: int, series: int, scale: float) -> list[str]:
    middle = top + series * _LINE / 2 + 3
    label = escape(bar.label)
    parts = [f'<text x="{_LABEL - 8}" y="{middle:.1f}" text-anchor="end">{label}</text>']
    for place, value in enumerate(bar.values):
        if value:
            y, length = top + place * _LINE, max(1.0, scale * value)
            size = f'width="{length:.1f}" height="{_LINE - 3}"'
            parts.append(f'<rect x="{_LABEL}" y="{y}" {size} fill="{_COLOURS[place]}"/>')
            parts.append(f'<text x="{_LABEL + length + 4:.1f}" y="{y + 11}">{value:.4g}</text>')
    return parts
