"""A device without a GPU that does its work as late as it may: streams for a pipeline on a CPU.

Work that a stage queues on its stream runs when a thread waits for a mark after it, and no sooner.
So a stage that forgets to wait reads what has not been written yet. Queued work knows memory by
weak references: memory that is not held until then has been given away, which is a fault.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter, sleep

from torch import Tensor

from grace.server.scheduling.streams import HostStream, Streams

Work = Callable[[], object]


@dataclass(eq=False)
class Mark:
    """`at` is the time when its stream came by."""

    stream: "LazyStream"
    at: float | None = None

    def reached(self) -> None:
        self.at = perf_counter()


class LazyDevice:
    def __init__(self) -> None:
        self.faults: list[str] = []
        self._lock = threading.RLock()
        self._working = threading.local()
        self._streams = [LazyStream(self._lock, self._working) for _ in range(3)]

    def streams(self) -> Streams:
        before, middle, last = self._streams
        return Streams(before, middle, last, HostStream(), LazyClock())

    def queue(self, work: Callable[..., None], made: Tensor, *given: Tensor) -> None:
        """Queue work on the stream of the stage that calls: on what it was given, if that still
        exists, and on what it has made, which a stream gives away only after its own work."""
        weak = [weakref.ref(tensor) for tensor in given]

        def run() -> None:
            there = [tensor for reference in weak if (tensor := reference()) is not None]
            if len(there) == len(weak):
                work(made, *there)
            else:
                self.faults.append("memory was given away before it was read")

        self._working.stream.queue(run)

    def finish(self) -> None:
        for stream in self._streams:
            stream.run_to(stream.mark())


class LazyStream:
    def __init__(self, lock: threading.RLock, working: threading.local) -> None:
        self._lock = lock
        self._working = working
        self._queued: deque[Work] = deque()

    @contextmanager
    def context(self) -> Iterator[None]:
        self._working.stream = self
        yield

    def queue(self, work: Work) -> None:
        with self._lock:
            self._queued.append(work)

    def mark(self) -> Mark:
        made = Mark(self)
        self.queue(made.reached)
        return made

    def follow(self, mark: Mark) -> None:
        self.queue(lambda: mark.stream.run_to(mark))

    def passed(self, mark: Mark) -> bool:
        return mark.at is not None

    def keep(self, memory: object) -> None:
        self.queue(lambda: memory)

    def run_to(self, mark: Mark) -> None:
        with self._lock:
            while mark.at is None:
                self._queued.popleft()()


class LazyClock:
    def context(self) -> AbstractContextManager[object]:
        return nullcontext()

    def wait_for(self, mark: Mark) -> None:
        sleep(0.002)  # what the stages before do not hold is gone by now
        mark.stream.run_to(mark)

    def times(self, marks: Sequence[Mark]) -> list[float]:
        return [mark.at if mark.at is not None else 0.0 for mark in marks]
