"""Record `grace demo` as an SVG whose lines appear one after the other.

    python -m grace.bench.recording docs/pictures/demo.svg

The command runs the demonstration. The picture has the lines that it printed from its third part to
its last sentence. They appear slowly enough to read. A viewer without animations shows all of them.
"""

import subprocess
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 100
SECONDS_OF_A_LINE, SECONDS_OF_A_PART = 0.25, 1.0
_FIRST, _LAST = "3. ", "The same by hand"
_ID = "demo"
_COLOURS = (
    (r"^\d\. .*", "bold cyan"),
    ("▸", "bold green"),
    ("✗", "red"),
    ("█+", "green"),
    ("░+", "bright_black"),
)
# rich's own template loads a font from another server; an SVG in a page must not.
_TEMPLATE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
<style>
.{unique_id}-matrix {{ font: {char_height}px Menlo, Consolas, "DejaVu Sans Mono", monospace;
  line-height: {line_height}px; font-variant-east-asian: full-width }}
.{unique_id}-title {{ font: bold 18px sans-serif }}
@keyframes hidden {{ from, to {{ opacity: 0 }} }}
@media (prefers-reduced-motion: no-preference) {{
{animation}}}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g></svg>
"""


def shown_part(printed: str) -> list[str]:
    """Return the lines of the demonstration that the picture shows."""
    lines = printed.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(_FIRST))
    last = next(i for i, line in enumerate(lines) if line.startswith(_LAST))
    return lines[first:last]


def picture(lines: Sequence[str]) -> str:
    """Return an SVG of the lines, which hides each one until its time has come."""
    console = Console(record=True, width=COLUMNS, file=StringIO())
    for line in lines:
        text = Text(line)
        text.truncate(COLUMNS, overflow="ellipsis")
        for pattern, style in _COLOURS:
            text.highlight_regex(pattern, style)
        console.print(text, soft_wrap=True)
    hidden, seconds = [], 0.0
    for number, line in enumerate(lines):
        seconds += SECONDS_OF_A_LINE if line else SECONDS_OF_A_PART
        place = f"url(#{_ID}-line-{number})"
        hidden.append(f'[clip-path="{place}"] {{ animation: hidden {seconds:.2f}s }}\n')
    animation = "".join(hidden).replace("{", "{{").replace("}", "}}")
    template = _TEMPLATE.replace("{animation}", animation)
    return console.export_svg(title="grace demo", code_format=template, unique_id=_ID)


def main(out: Path) -> None:
    command = Path(sys.executable).with_name("grace")
    done = subprocess.run([command, "demo"], stdout=subprocess.PIPE, text=True, check=True)
    out.write_text(picture(shown_part(done.stdout)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
