"""The pipeline's timeline: how busy a stage was, and the batches that it worked on."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from grace.bench.result_file import Row


class Slice(NamedTuple):
    """A stage's work on one batch, in seconds of the trace's clock."""

    stage: str
    begin: float
    end: float
    requests: int


def read_timeline(path: Path) -> tuple[Slice, ...]:
    """Return the slices of a Chrome trace that `grace serve --timeline` wrote, by begin."""
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    slices = [
        Slice(e["name"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6, e["args"]["requests"])
        for e in events
        if e["ph"] == "X"
    ]
    return tuple(sorted(slices, key=lambda part: part.begin))


def saturation(slices: Sequence[Slice], begin: float, end: float) -> Row:
    """Return the batches that were generated in [begin, end], their mean size, and the share of
    that time in which `generate` worked, overlaps counted once."""
    busy, until, sizes = 0.0, begin, []
    for part in slices:
        if part.stage == "generate" and part.begin < end and part.end > begin:
            busy += max(0.0, min(part.end, end) - max(part.begin, until))
            until = max(until, part.end)
            sizes.append(part.requests)
    return {
        "batches": len(sizes),
        "mean_batch": round(sum(sizes) / max(1, len(sizes)), 2),
        "generate_busy": round(busy / (end - begin), 4),
    }
