"""OpenTelemetry traces: which calls are traced, and the bounded queue of those that have ended.

The event loop decides and queues, which takes microseconds. A thread exports the calls about once a
second (`otlp.py`). A call that finds the queue full, or whose export fails, is dropped and counted.
"""

import random
import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, get_args

from grpc import StatusCode

from grace.configs.serving import TracesConfig
from grace.server.messages import Span
from grace.server.observe.thread_names import name_this_thread

TraceResult: TypeAlias = Literal["exported", "dropped", "failed"]
TRACE_RESULTS: tuple[TraceResult, ...] = get_args(TraceResult)

GATHER_SECONDS = 1.0
MOST_AT_ONCE = 128
"""The calls of one export: turning them into bytes takes the interpreter some milliseconds."""

_SAMPLED = 1
# W3C Trace Context: version, trace, span, flags; and in later versions perhaps more.
_TRACEPARENT = re.compile(r"(?!ff)([\da-f]{2})-([\da-f]{32})-([\da-f]{16})-([\da-f]{2})(-.*)?")


@dataclass(frozen=True, slots=True)
class TraceIds:
    """The ids of a traced call: its trace, its own span, and the caller's span, 0 if none."""

    trace: int
    span: int
    caller: int


@dataclass(frozen=True, slots=True)
class TracedCall:
    """A call that has ended; times are by `perf_counter`.

    queued      when its request began to wait; None if it was refused before
    spans       when the stages worked on its batch; empty if it did not pass all of them
    attributes  facts about the call, by OpenTelemetry's names or with the prefix `grace.`
    """

    ids: TraceIds
    arrived: float
    ended: float
    code: StatusCode
    queued: float | None
    spans: Sequence[Span]
    attributes: dict[str, str | int | bool]


class Exporter(Protocol):
    def export(self, calls: Sequence[TracedCall]) -> bool:
        """Return whether the collector has taken them. It may block for seconds."""

    def close(self) -> None: ...


class Traces:
    """The traced calls that wait. The event loop owns them; a separate thread exports them."""

    def __init__(
        self,
        config: TracesConfig,
        exporter: Exporter,
        count: Callable[[TraceResult, int], None],
        gather_seconds: float = GATHER_SECONDS,
    ) -> None:
        self._config = config
        self._exporter = exporter
        self._count = count
        self._gather_seconds = gather_seconds
        self._ended: deque[TracedCall] = deque()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="grace-traces", daemon=True)
        self._thread.start()

    def ids_of(self, traceparent: str) -> TraceIds | None:
        """Return the ids of a call, or None not to trace it. The header may be empty."""
        caller = _caller_of(traceparent)
        if caller is not None and self._config.follow_callers:
            trace, span, sampled = caller
            return TraceIds(trace, _random_id(64), span) if sampled else None
        if random.random() >= self._config.sample:
            return None
        return TraceIds(_random_id(128), _random_id(64), 0)

    def ended(self, call: TracedCall) -> None:
        if len(self._ended) >= self._config.most_waiting:
            self._count("dropped", 1)
        else:
            self._ended.append(call)

    def close(self, seconds: float) -> None:
        """Export what waits, for at most this time."""
        self._closing.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        name_this_thread("grace-traces")
        closing = False
        while not closing:
            closing = self._closing.wait(self._gather_seconds)
            # Takes only the traces that wait now, which bounds their number and work in a second.
            waiting = len(self._ended)
            for begin in range(0, waiting, MOST_AT_ONCE):
                count = min(waiting - begin, MOST_AT_ONCE)
                self._export([self._ended.popleft() for _ in range(count)])
        self._exporter.close()

    def _export(self, calls: Sequence[TracedCall]) -> None:
        try:
            taken = self._exporter.export(calls)
        except Exception:  # noqa: BLE001, the service goes on without its traces; they are counted
            taken = False
        self._count("exported" if taken else "failed", len(calls))


def _caller_of(traceparent: str) -> tuple[int, int, bool] | None:
    """Return the caller's trace, its span and whether it samples; None if the header is faulty."""
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None or (found[1] == "00" and found[5]):
        return None
    trace, span, flags = (int(found[part], 16) for part in (2, 3, 4))
    return (trace, span, bool(flags & _SAMPLED)) if trace and span else None


def _random_id(bits: int) -> int:
    return random.getrandbits(bits) or 1
