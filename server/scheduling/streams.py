"""Where a stage's work runs, and when it is done: on the host, or on a stream of a GPU.

A mark is a moment in a stream's work. On the host, work is done when its function returns, so that
a mark is the time. On a GPU a function only queues work: a mark is an event after it, the next
stage's stream follows the event, and only the thread of the stage on the host waits for it.

Memory must not be freed while another stream still reads it: the allocator would give it to the
next batch on the stream that made it. So a batch holds what every stage made of it until generate's
mark has passed. The thread of a stage that fails waits until its own stream has done the work.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, ClassVar, TypeAlias

import torch

from grace.kernels import require_device
from grace.server.messages import STAGE_NAMES, StageName

Mark: TypeAlias = Any
"""A time on the host, a torch.cuda.Event on a GPU. Only streams and clocks look into an event."""

REFERENCE_SECONDS = 1.0
"""How long one reference event is used. torch measures from it in float32 milliseconds: exact to
0.1 us after a second, to 8 ms after a day."""

REFERENCE_TRIES = 3


class Stream:
    """The stream of a stage that works on the host, where nothing is queued."""

    queues: ClassVar[bool] = False

    def enter(self) -> None:
        """Let the thread that calls work on the stage, until it enters another stream."""

    def mark(self) -> Mark:
        """Mark the end of the work so far."""
        return perf_counter()

    def follow(self, mark: Mark) -> None:
        """Begin all later work after another stream's mark."""

    def passed(self, mark: Mark) -> bool:  # noqa: ARG002
        return True

    def finish(self) -> None:
        """Wait until the work so far is done."""


class Clock:
    """The clock of the host. One thread reads the times; any thread may wait."""

    def enter(self) -> None:
        """Let the thread that calls read the clock."""

    def wait_for(self, mark: Mark) -> None:
        pass

    def times(self, marks: Sequence[Mark]) -> list[float]:
        """Return when the marks passed, by time.perf_counter(). Such a time is a mark, too."""
        return list(marks)


@dataclass(frozen=True, slots=True)
class Streams:
    """One stream for each stage. Post works on the host, and its thread reads the clock."""

    of: Mapping[StageName, Stream]
    clock: Clock


def streams_for(device: torch.device) -> Streams:
    require_device(device)
    of: dict[StageName, Stream] = dict.fromkeys(STAGE_NAMES, Stream())
    if device.type == "cpu":
        return Streams(of, Clock())
    of |= {name: DeviceStream(device) for name in STAGE_NAMES if name != "post"}
    return Streams(of, DeviceClock(device))


class DeviceStream(Stream):
    queues = True

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # Earlier work, such as the copies of the weights, comes first.
        self._stream.wait_stream(torch.cuda.current_stream(device))

    def enter(self) -> None:
        torch.cuda.set_stream(self._stream)  # and its device

    def mark(self) -> torch.cuda.Event:
        # Blocking: a thread that waits for it sleeps instead of keeping a core busy.
        event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def follow(self, mark: torch.cuda.Event) -> None:
        self._stream.wait_event(mark)

    def passed(self, mark: torch.cuda.Event) -> bool:
        return bool(mark.query())  # type: ignore[no-untyped-call]

    def finish(self) -> None:
        self.mark().synchronize()


class DeviceClock(Clock):
    """Reads the times of a GPU's events, on a thread that works on the host."""

    def __init__(self, device: torch.device, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.device(device):
            self._reference, self._at = self._new_reference()

    def enter(self) -> None:
        torch.cuda.set_stream(self._stream)  # and its device

    def wait_for(self, mark: torch.cuda.Event) -> None:
        mark.synchronize()

    def times(self, marks: Sequence[torch.cuda.Event | float]) -> list[float]:
        if self._clock() - self._at > REFERENCE_SECONDS:
            self._reference, self._at = self._new_reference()
        return [
            mark
            if isinstance(mark, float)
            else self._at + self._reference.elapsed_time(mark) / 1000
            for mark in marks
        ]

    def _new_reference(self) -> tuple[torch.cuda.Event, float]:
        """Record an event and return it with its time: of some tries, the one known best.

        The stream is empty, so that the wait is for the event alone.
        """
        tries: list[tuple[float, torch.cuda.Event, float]] = []
        for _ in range(REFERENCE_TRIES):
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            begin = self._clock()
            event.record(self._stream)
            event.synchronize()
            end = self._clock()
            tries.append((end - begin, event, (begin + end) / 2))
        _, event, at = min(tries, key=lambda each: each[0])
        return event, at
