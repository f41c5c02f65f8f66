"""A device without a GPU that does its work as late as it may: lanes for a pipeline on a CPU.

What a stage queues on its stream runs when somebody waits for a mark behind it, and no sooner, so
that whoever forgets to wait reads what nobody has written yet. Queued work knows memory by weak
references: memory that nobody holds until then has been given away, which is a fault.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter, sleep

from torch import Tensor

from grace.server.scheduling.lanes import HostLane, Lanes

__all__ = ["LazyDevice"]

Work = Callable[[], object]


@dataclass(eq=False)
class Mark:
    """`at` is the time when its stream came by."""

    stream: "Stream"
    at: float | None = None

    def reached(self) -> None:
        self.at = perf_counter()


class LazyDevice:
    def __init__(self) -> None:
        self.faults: list[str] = []
        self._lock = threading.RLock()
        self._working = threading.local()
        self._streams = [Stream(self._lock, self._working) for _ in range(3)]

    def lanes(self) -> Lanes:
        before, middle, last = self._streams
        return Lanes(before, middle, last, HostLane(), LazyClock(self._lock))

    def queue(self, work: Callable[..., None], made: Tensor, *given: Tensor) -> None:
        """On the stream of the stage that calls: `work` on what it was given, if that is still
        there, and on what it has made, which a stream gives away only behind its own work."""
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


class Stream:
    """A lane."""

    def __init__(self, lock: threading.RLock, working: threading.local) -> None:
        self._lock = lock
        self._working = working
        self._queued: deque[Work] = deque()

    @contextmanager
    def working(self) -> Iterator[None]:
        self._working.stream = self
        yield

    def queue(self, work: Work) -> None:
        with self._lock:
            self._queued.append(work)

    def mark(self) -> Mark:
        made = Mark(self)
        self.queue(made.reached)
        return made

    def go_after(self, mark: Mark) -> None:
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
    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock

    def working(self) -> AbstractContextManager[object]:
        return nullcontext()

    def wait_for(self, mark: Mark) -> None:
        sleep(0.002)  # what the stages before do not hold is gone by now
        mark.stream.run_to(mark)

    def times(self, marks: Sequence[Mark]) -> list[float]:
        return [mark.at if mark.at is not None else 0.0 for mark in marks]
