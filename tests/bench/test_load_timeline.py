"""How busy a stage is, from the trace that the server writes."""

from pathlib import Path
from typing import Any

import pytest

from grace.bench.load.plots import draw_timeline
from grace.bench.load.timeline import Slice, busy_share, read_timeline, window, write_window
from grace.configs.generation import BeamProfile
from grace.server.messages import RequestBatch, Span
from grace.server.observe.timeline import Timeline

STARTS = (10.0, 10.1, 10.25)


def write_trace(path: Path) -> None:
    """Three batches of 3 requests whose generate takes 90 ms, of the time from 10.0 to 10.34."""
    timeline = Timeline()
    nothing: Any = None
    for start in STARTS:
        batch = RequestBatch(nothing, "full", BeamProfile((1,), 1), 4, (nothing,) * 3, start)
        spans = (
            Span("input", start - 0.02, start - 0.01),
            Span("features", start - 0.01, start - 0.005),
            Span("generate", start, start + 0.09),
            Span("post", start + 0.09, start + 0.1),
        )
        timeline.add(batch, spans)
    timeline.write(path)


@pytest.fixture
def slices(tmp_path: Path) -> tuple[Slice, ...]:
    write_trace(tmp_path / "trace.json")
    return read_timeline(tmp_path / "trace.json")


def test_the_server_s_trace_is_read(slices: tuple[Slice, ...]) -> None:
    assert len(slices) == 12
    assert [part.requests for part in slices] == [3] * 12
    begins = [part.begin for part in slices]
    assert begins == sorted(begins)


def test_the_busy_share_is_the_time_worked(slices: tuple[Slice, ...]) -> None:
    first = next(part for part in slices if part.stage == "generate").begin
    assert busy_share(slices, "generate", first, first + 0.1) == pytest.approx(0.9)
    assert busy_share(slices, "generate", first, first + 0.34) == pytest.approx(0.27 / 0.34)
    assert busy_share(slices, "generate", first + 0.045, first + 0.09) == pytest.approx(1)
    assert busy_share(slices, "generate", first + 0.2, first + 0.24) == 0


def test_overlapping_slices_count_once() -> None:
    def part(begin: float, end: float) -> Slice:
        return Slice("post", begin, end, 1, {})

    assert busy_share([part(0, 3), part(1, 2), part(2, 4)], "post", 0, 8) == pytest.approx(0.5)


def test_a_window_is_a_trace_of_its_own_and_a_picture(
    slices: tuple[Slice, ...], tmp_path: Path
) -> None:
    shown = window(slices, slices[0].begin + 0.08, slices[0].begin + 0.2)
    assert 0 < len(shown) < len(slices)
    write_window(tmp_path / "trace.json", shown, tmp_path / "out" / "window.json")
    assert read_timeline(tmp_path / "out" / "window.json") == shown
    assert draw_timeline(shown, "120 ms").startswith(b"\x89PNG")
