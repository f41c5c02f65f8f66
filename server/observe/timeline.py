"""When each stage worked on which batch, in Chrome's trace format.

chrome://tracing and ui.perfetto.dev draw it: two tracks for each stage, a slice for each batch,
times in microseconds from the oldest slice. The first track is the stage's work, by the clock of
its stream. The second is the host's part of it, with the time that its thread had a processor: the
rest of a slice is waiting, for the interpreter or for the device.
"""

import json
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from grace.server.messages import STAGE_NAMES, RequestBatch, Span, StageName

LATEST, FILED = 1000, 20_000
"""The batches that a server keeps: those of the last seconds under load, in a few megabytes; and
those that it keeps for a file."""


class HostWork(NamedTuple):
    """A stage's work on the host, by time.perf_counter() and time.thread_time()."""

    stage: StageName
    begin: float
    end: float
    processor: float


class Timeline:
    """Keeps the latest batches, and counts all. Any thread may call it."""

    def __init__(self, max_batches: int = LATEST) -> None:
        self._lock = threading.Lock()
        # The spans of each batch, its work on the host, and the facts shown with them.
        self._entries: deque[tuple[Sequence[Span], Sequence[HostWork], dict[str, Any]]] = deque(
            maxlen=max_batches
        )
        self.batches = 0

    def add(self, batch: RequestBatch, spans: Sequence[Span], host: Sequence[HostWork]) -> None:
        facts: dict[str, Any] = {"requests": len(batch.requests), "bucket": batch.bucket}
        with self._lock:
            facts |= {"batch": self.batches, "profile": batch.profile_name}
            self._entries.append((spans, host, facts))
            self.batches += 1

    def trace(self, latest: int = FILED) -> str:
        with self._lock:
            entries, batches = tuple(self._entries)[-latest:], self.batches
        origin = min((each.begin for _, host, _ in entries for each in host), default=0.0)
        names = [name for stage in STAGE_NAMES for name in (stage, _on_host(stage))]
        tracks = {name: number for number, name in enumerate(names, start=1)}
        # Each event is encoded alone: one call for all would hold the interpreter for long.
        events = [
            _event("M", name="thread_name", tid=track, args={"name": name})
            for name, track in tracks.items()
        ]

        def add(name: str, begin: float, end: float, facts: dict[str, Any]) -> None:
            ts, dur = (round(seconds * 1e6, 3) for seconds in (begin - origin, end - begin))
            events.append(_event("X", name=name, tid=tracks[name], ts=ts, dur=dur, args=facts))

        for spans, host, facts in entries:
            for span in spans:
                add(span.stage, span.begin, span.end, facts)
            for stage, begin, end, processor in host:
                used = {"processor_us": round(processor * 1e6, 3)}
                add(_on_host(stage), begin, end, {**facts, **used})
        counts = json.dumps({"batches": batches, "left_out": batches - len(entries)})
        head = f'{{"displayTimeUnit": "ms", "otherData": {counts}, "traceEvents": ['
        return f"{head}{', '.join(events)}]}}"


def _event(kind: str, **fields: object) -> str:
    return json.dumps({"pid": 1, "ph": kind, **fields})


def _on_host(stage: StageName) -> str:
    return f"{stage}, host"
