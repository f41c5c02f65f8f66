"""How late the event loop runs its timers: what a busy interpreter costs every call."""

import asyncio
import time

__all__ = ["LoopLag"]

_TICK_SECONDS = 0.05
_WINDOW_SECONDS = 2.0


class LoopLag:
    """`worst()` is of the last two to four seconds; any thread may ask."""

    def __init__(self) -> None:
        self._before = self._now = 0.0

    def worst(self) -> float:
        return max(self._before, self._now)

    async def watch(self) -> None:
        """Runs until it is cancelled."""
        window_end = time.perf_counter() + _WINDOW_SECONDS
        while True:
            due = time.perf_counter() + _TICK_SECONDS
            await asyncio.sleep(_TICK_SECONDS)
            now = time.perf_counter()
            self._now = max(self._now, now - due)
            if now >= window_end:
                self._before, self._now = self._now, 0.0
                window_end = now + _WINDOW_SECONDS
