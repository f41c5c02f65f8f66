"""How late the event loop runs its timers, and the watch that finds a loop that stands still."""

import asyncio
import math
import time
from collections.abc import Callable

from grace.server.threads import daemon_thread

MOST_BEATS = 15
"""The beats in a row without a turn of the loop after which it hangs. A relay gets as many: on a
busy machine, it may wait seconds for a processor."""


class LoopLag:
    """The delay that a busy interpreter adds to every call. Any thread may read it.

    `worst()` covers the latest one to two windows, and the timer that is due now.
    """

    def __init__(self, window_seconds: float = 2.0, tick_seconds: float = 0.05) -> None:
        self._window_seconds = window_seconds
        self._tick_seconds = tick_seconds
        self._before = self._now = 0.0
        self._due = math.inf

    def worst(self) -> float:
        return max(self._before, self._now, self.late())

    def late(self) -> float:
        """Return how late the next timer is already: how long the loop has been standing still."""
        return max(0.0, time.perf_counter() - self._due)

    async def watch(self) -> None:
        window_end = time.perf_counter() + self._window_seconds
        try:
            while True:
                self._due = time.perf_counter() + self._tick_seconds
                await asyncio.sleep(self._tick_seconds)
                now = time.perf_counter()
                self._now = max(self._now, now - self._due)
                if now >= window_end:
                    self._before, self._now = self._now, 0.0
                    window_end = now + self._window_seconds
        finally:
            self._due = math.inf  # a loop that has ended does not stand still

    def watch_for_hang(self, hangs: Callable[[], object], beat_seconds: float = 1.0) -> None:
        """Call `hangs` from another thread if the loop stands still, until `watch` ends.

        The thread counts its own beats. It has none while the whole process or the machine
        stands still, so that time does not count.
        """

        def beat() -> None:
            missed, due = 0, self._due
            while missed < MOST_BEATS:
                time.sleep(beat_seconds)
                missed, due = (missed + 1 if due == self._due else 0), self._due
                if math.isinf(due):
                    return
            hangs()

        daemon_thread("grace-watch", beat).start()
