"""What a stage computes on, and how one knows when it is done: the host, or a stream of a GPU.

A mark is a moment in a lane's work. On the host a function has done its work when it returns, so a
mark is the time. On a GPU a function only queues work: a mark is an event behind it, the next
lane's work is queued behind that event, and nobody waits but the stage that works on the host.

Nobody may free memory that another stream still reads: the allocator would give it to the next
batch on the stream that made it. So a batch holds what every stage made of it until generate's mark
has passed, and a stage that fails keeps its batch until its stream has come so far.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol, TypeAlias

import torch

__all__ = ["Clock", "Lane", "Lanes", "Mark", "lanes_of"]

Mark: TypeAlias = Any
"""A time on the host, a torch.cuda.Event on a GPU: what a lane made, its own kind understands."""

REFERENCE_SECONDS = 1.0
"""How long one reference event serves. Distances to it are float32 milliseconds: exact to 0.1 us
after a second, to 8 ms after a day."""

REFERENCE_TRIES = 3


class Lane(Protocol):
    def working(self) -> AbstractContextManager[object]:
        """What the stage's thread does its work in."""

    def mark(self) -> Mark: ...

    def go_after(self, mark: Mark) -> None:
        """Work from now on comes after another lane's mark."""

    def passed(self, mark: Mark) -> bool: ...

    def keep(self, memory: object) -> None:
        """Until the work so far is done."""


class Clock(Protocol):
    def working(self) -> AbstractContextManager[object]:
        """What the thread that reads the clock does its work in."""

    def wait_for(self, mark: Mark) -> None: ...

    def times(self, marks: Sequence[Mark]) -> list[float]:
        """When they passed, by time.perf_counter()."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """Those of a pipeline's stages. Post's work is the host's, and its thread reads the clock."""

    input: Lane
    features: Lane
    generate: Lane
    post: Lane
    clock: Clock


def lanes_of(device: torch.device) -> Lanes:
    if device.type == "cpu":
        return Lanes(HostLane(), HostLane(), HostLane(), HostLane(), HostClock())
    return Lanes(
        *(StreamLane(device), StreamLane(device), StreamLane(device)),
        *(HostLane(), DeviceClock(device)),
    )


class HostLane:
    def working(self) -> AbstractContextManager[object]:
        return nullcontext()

    def mark(self) -> float:
        return perf_counter()

    def go_after(self, mark: Mark) -> None:
        pass

    def passed(self, mark: Mark) -> bool:  # noqa: ARG002
        return True

    def keep(self, memory: object) -> None:
        pass


class StreamLane:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # What was queued before, such as the copies of the weights, comes first.
        self._stream.wait_stream(torch.cuda.current_stream(device))
        self._kept: deque[tuple[torch.cuda.Event, object]] = deque()

    def working(self) -> AbstractContextManager[object]:
        return _on_device(self._device, self._stream)

    def mark(self) -> torch.cuda.Event:
        while self._kept and self._kept[0][0].query():  # type: ignore[no-untyped-call]
            self._kept.popleft()
        # Blocking: whoever waits for it sleeps instead of keeping a core busy.
        event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def go_after(self, mark: torch.cuda.Event) -> None:
        self._stream.wait_event(mark)

    def passed(self, mark: torch.cuda.Event) -> bool:
        return bool(mark.query())  # type: ignore[no-untyped-call]

    def keep(self, memory: object) -> None:
        self._kept.append((self.mark(), memory))


class HostClock:
    def working(self) -> AbstractContextManager[object]:
        return nullcontext()

    def wait_for(self, mark: Mark) -> None:
        pass

    def times(self, marks: Sequence[float]) -> list[float]:
        return list(marks)


class DeviceClock:
    """For one thread, whose own work is the host's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with self.working():
            self._reference, self._at = self._new_reference()

    def working(self) -> AbstractContextManager[object]:
        return _on_device(self._device, self._stream)

    def wait_for(self, mark: torch.cuda.Event) -> None:
        mark.synchronize()

    def times(self, marks: Sequence[torch.cuda.Event]) -> list[float]:
        if perf_counter() - self._at > REFERENCE_SECONDS:
            self._reference, self._at = self._new_reference()
        return [self._at + self._reference.elapsed_time(mark) / 1000 for mark in marks]

    def _new_reference(self) -> tuple[torch.cuda.Event, float]:
        """An event, and when it was: of some tries the one whose time is known best.

        The stream is empty, so that nothing but the event itself is waited for.
        """
        tries: list[tuple[float, torch.cuda.Event, float]] = []
        for _ in range(REFERENCE_TRIES):
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            begin = perf_counter()
            event.record(self._stream)
            event.synchronize()
            end = perf_counter()
            tries.append((end - begin, event, (begin + end) / 2))
        _, event, at = min(tries, key=lambda each: each[0])
        return event, at


def _on_device(device: torch.device, stream: torch.cuda.Stream) -> AbstractContextManager[object]:
    stack = ExitStack()
    stack.enter_context(torch.cuda.device(device))
    stack.enter_context(torch.cuda.stream(stream))
    return stack
