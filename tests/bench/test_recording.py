"""The recording of the demonstration: an SVG that hides its lines until their time has come."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

from grace.bench.recording import picture, shown_part

PRINTED = """\
2. One user
3. The best SID
  \u25b8  11  80.9%  A studio & a "clinic"

5. With and without
  with \u2588\u2588\u2591 <99 of 116>

The same by hand:
  grace serve
"""


def texts(svg: str) -> list[str]:
    """Return what each line of the picture shows, without its title."""
    shown: dict[str, str] = {}
    for part in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        if place := part.get("clip-path"):
            shown[place] = shown.get(place, "") + (part.text or "").replace("\xa0", " ")
    return list(shown.values())


def test_the_picture_has_the_part_between_the_user_and_the_commands() -> None:
    lines = shown_part(PRINTED)
    assert lines == PRINTED.splitlines()[1:7]
    svg = picture(lines)
    assert ["".join(line.split()) for line in texts(svg)] == ["".join(x.split()) for x in lines]
    found = re.findall(r'demo-line-(\d+)\)"\] \{ animation: hidden ([\d.]+)s', svg)
    assert [int(line) for line, _ in found] == list(range(6))
    assert [float(seconds) for _, seconds in found] == [0.25, 0.5, 1.5, 1.75, 2.0, 3.0]


def test_the_committed_recording_needs_nothing_else_and_names_no_place(repository: Path) -> None:
    svg = (repository / "docs" / "pictures" / "demo.svg").read_text(encoding="utf-8")
    shown = texts(svg)
    assert shown[0].startswith("3. ")
    assert not re.search(r"(?<![\w.])/(home|root|tmp|usr|var|work)/", svg)
    assert set(re.findall(r"https?://[^\"' ]+", svg)) == {"http://www.w3.org/2000/svg"}
    assert len(svg) < 100_000
