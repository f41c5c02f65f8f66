"""When each stage worked on which batch, as a file in Chrome's trace format.

chrome://tracing and ui.perfetto.dev draw it: a track for each stage, a slice for each batch, times
in microseconds from the oldest slice.
"""

import json
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grace.server.messages import STAGE_NAMES, RequestBatch, Span

PROCESS = 1


@dataclass(frozen=True, slots=True)
class _Entry:
    batch: int
    profile: str
    bucket: int
    requests: int
    spans: tuple[Span, ...]


class Timeline:
    """Keeps the latest batches, and counts all. Any thread may call it."""

    def __init__(self, max_batches: int = 20_000) -> None:
        self._lock = threading.Lock()
        self._entries: deque[_Entry] = deque(maxlen=max_batches)
        self.batches = 0

    def add(self, batch: RequestBatch, spans: Sequence[Span]) -> None:
        profile, bucket, requests = batch.profile_name, batch.bucket, len(batch.requests)
        with self._lock:
            self._entries.append(_Entry(self.batches, profile, bucket, requests, tuple(spans)))
            self.batches += 1

    def write(self, path: Path) -> None:
        with self._lock:
            entries, batches = tuple(self._entries), self.batches
        origin = min((span.begin for entry in entries for span in entry.spans), default=0.0)
        events = [_event(entry, span, origin) for entry in entries for span in entry.spans]
        trace = {
            "displayTimeUnit": "ms",
            "otherData": {"batches": batches, "left_out": batches - len(entries)},
            "traceEvents": [*_track_names(), *events],
        }
        path.write_text(json.dumps(trace), encoding="utf-8")


def _track_names() -> list[dict[str, Any]]:
    common = {"name": "thread_name", "ph": "M", "pid": PROCESS}
    return [
        {**common, "tid": track, "args": {"name": stage}}
        for track, stage in enumerate(STAGE_NAMES, start=1)
    ]


def _event(entry: _Entry, span: Span, origin: float) -> dict[str, Any]:
    return {
        "name": span.stage,
        "ph": "X",
        "pid": PROCESS,
        "tid": STAGE_NAMES.index(span.stage) + 1,
        "ts": round((span.begin - origin) * 1e6, 3),
        "dur": round((span.end - span.begin) * 1e6, 3),
        "args": {
            "batch": entry.batch,
            "requests": entry.requests,
            "bucket": entry.bucket,
            "profile": entry.profile,
        },
    }
