"""The pipeline's timeline: how busy a stage was, and a short window of it to look at."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Slice(NamedTuple):
    """A stage's work on one batch, in seconds of the trace's clock; `event` is the trace's own."""

    stage: str
    begin: float
    end: float
    requests: int
    event: dict[str, Any]


def read_timeline(path: Path) -> tuple[Slice, ...]:
    """Return the slices of a Chrome trace that `grace serve --timeline` wrote, by begin."""
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    slices = [
        Slice(e["name"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6, e["args"]["requests"], e)
        for e in events
        if e["ph"] == "X"
    ]
    return tuple(sorted(slices, key=lambda part: part.begin))


def busy_share(slices: Sequence[Slice], stage: str, begin: float, end: float) -> float:
    """Return the share of [begin, end] in which the stage worked, overlaps counted once."""
    busy, until = 0.0, begin
    for part in slices:
        if part.stage == stage:
            busy += max(0.0, min(part.end, end) - max(part.begin, until))
            until = max(until, part.end)
    return busy / (end - begin)


def window(slices: Sequence[Slice], begin: float, end: float) -> tuple[Slice, ...]:
    """Return the slices that touch [begin, end]."""
    return tuple(part for part in slices if part.begin < end and part.end > begin)


def generated_batches(slices: Sequence[Slice], begin: float, end: float) -> tuple[int, float]:
    """Return how many batches were generated in [begin, end], and their mean size."""
    sizes = [part.requests for part in window(slices, begin, end) if part.stage == "generate"]
    return len(sizes), sum(sizes) / max(1, len(sizes))


def write_window(trace: Path, slices: Sequence[Slice], out: Path) -> None:
    """Write the trace with these slices only, for a trace viewer."""
    whole = json.loads(trace.read_text(encoding="utf-8"))
    names = [event for event in whole["traceEvents"] if event["ph"] == "M"]
    events = [*names, *(part.event for part in slices)]
    out.parent.mkdir(parents=True, exist_ok=True)
    text = ",\n ".join(json.dumps(event) for event in events)
    out.write_text(f'{{"traceEvents": [\n {text}\n]}}\n', encoding="utf-8")
