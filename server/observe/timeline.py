"""When each stage worked on which batch, as a file in Chrome's trace format.

chrome://tracing and ui.perfetto.dev draw it: a track for each stage, a slice for each batch, times
in microseconds from the oldest slice.
"""

import json
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grace.server.messages import STAGE_NAMES, RequestBatch, Span


class Timeline:
    """Keeps the latest batches, and counts all. Any thread may call it."""

    def __init__(self, max_batches: int = 20_000) -> None:
        self._lock = threading.Lock()
        # The spans of each batch, and the facts that the trace shows with them.
        self._entries: deque[tuple[Sequence[Span], dict[str, Any]]] = deque(maxlen=max_batches)
        self.batches = 0

    def add(self, batch: RequestBatch, spans: Sequence[Span]) -> None:
        facts: dict[str, Any] = {"requests": len(batch.requests), "bucket": batch.bucket}
        with self._lock:
            facts |= {"batch": self.batches, "profile": batch.profile_name}
            self._entries.append((spans, facts))
            self.batches += 1

    def write(self, path: Path) -> None:
        with self._lock:
            entries, batches = tuple(self._entries), self.batches
        origin = min((span.begin for spans, _ in entries for span in spans), default=0.0)
        common = {"pid": 1, "ph": "X"}
        tracks = {stage: number for number, stage in enumerate(STAGE_NAMES, start=1)}
        names = [
            {**common, "ph": "M", "name": "thread_name", "tid": track, "args": {"name": stage}}
            for stage, track in tracks.items()
        ]
        slices = [
            {
                **common,
                "name": span.stage,
                "tid": tracks[span.stage],
                "ts": round((span.begin - origin) * 1e6, 3),
                "dur": round((span.end - span.begin) * 1e6, 3),
                "args": facts,
            }
            for spans, facts in entries
            for span in spans
        ]
        trace = {
            "displayTimeUnit": "ms",
            "otherData": {"batches": batches, "left_out": batches - len(entries)},
            "traceEvents": [*names, *slices],
        }
        path.write_text(json.dumps(trace), encoding="utf-8")
