"""A window of the pipeline's timeline as a small SVG: a lane for each stage, a bar per batch."""

from collections.abc import Sequence
from html import escape

from grace.bench.load.timeline import LANES, Slice

__all__ = ["draw_lanes"]

_WIDTH, _LEFT, _LANE, _TOP = 900, 80, 34, 30
_COLOURS = ("#7fa6d6", "#8cbf9f", "#1f4e8c", "#c9a35b")
_STYLE = "font-family:sans-serif;font-size:10px"


def draw_lanes(slices: Sequence[Slice], begin: float, end: float, title: str) -> str:
    """Times are in seconds; what reaches beyond the window is cut. A bar tells its requests."""
    room = _WIDTH - _LEFT - 10
    height = _TOP + len(LANES) * _LANE + 24
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="{_STYLE}">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="8" y="16" style="font-size:13px;font-weight:bold">{escape(title)}</text>',
    ]
    for lane, (stage, colour) in enumerate(zip(LANES, _COLOURS, strict=True)):
        y = _TOP + lane * _LANE
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 18}" text-anchor="end">{stage}</text>')
        for part in slices:
            left, right = max(part.begin, begin), min(part.end, end)
            if part.stage != stage or left >= right:
                continue
            x = _LEFT + room * (left - begin) / (end - begin)
            width = max(0.4, room * (right - left) / (end - begin))
            box = f'x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_LANE - 8}"'
            parts.append(f'<rect {box} fill="{colour}" stroke="white" stroke-width="0.4"/>')
            if width > 16:
                at = f'x="{x + width / 2:.2f}" y="{y + 17}"'
                parts.append(f'<text {at} fill="white" text-anchor="middle">{part.requests}</text>')
    last = f"{(end - begin) * 1e3:g} ms"
    parts.append(f'<text x="{_LEFT}" y="{height - 8}">0</text>')
    parts.append(f'<text x="{_WIDTH - 10}" y="{height - 8}" text-anchor="end">{last}</text>')
    return "\n".join([*parts, "</svg>", ""])
