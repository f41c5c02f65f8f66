"""When the queue of a priority has been too long for too long: first degrade, then shed.

The queue's time is the predicted time that a new request would wait in it. What counts is the time
right after a batch has left, as in CoDel: a burst that the engine works off is no overload, a queue
that stays is one. While requests are shed, those that would wait longer than the target are
refused. So the queue stays near its target, whatever is offered: enough to keep the engine busy.
"""

import math
from dataclasses import dataclass

DEGRADE_AT = 0.5
"""The share of the target, and of the interval, beyond which requests get a smaller profile."""

CALM_SECONDS = 1.0
"""How long the queue must be empty after each batch until a larger profile is tried again."""


@dataclass(slots=True)
class _Lasting:
    """Since when something holds without a break."""

    since: float = math.inf

    def note(self, now: float, *, holds: bool) -> None:
        if not holds:
            self.since = math.inf
        elif self.since == math.inf:
            self.since = now


class Pressure:
    """Not thread-safe: the scheduler uses it under its lock, with one for each priority.

    interval  seconds for which the queue must be too long; shedding ends if none was shed for so
              long
    rungs     how many smaller profiles there are at most
    """

    def __init__(self, interval: float, rungs: int) -> None:
        self._interval = interval
        self._rungs = rungs
        self._rung = 0
        self._sheds_until = -math.inf
        self._too_long, self._crowded, self._calm = _Lasting(), _Lasting(), _Lasting()

    def note(self, now: float, seconds: float, target: float) -> None:
        """A batch has left; the rest of the queue takes so many seconds."""
        self._too_long.note(now, holds=seconds > target)
        if now - self._too_long.since >= self._interval:
            self._sheds_until = now + self._interval
        self._lower_rung(now)
        self._calm.note(now, holds=not seconds)
        self._crowded.note(now, holds=seconds > DEGRADE_AT * target)
        if now - self._crowded.since >= DEGRADE_AT * self._interval and self._rung < self._rungs:
            self._rung += 1
            self._crowded.since = now

    def rung(self, now: float) -> int:
        """Return how many profiles smaller than asked for a request gets."""
        self._lower_rung(now)
        return self._rung

    def sheds(self, now: float) -> bool:
        return now < self._sheds_until

    def shed(self, now: float) -> None:
        """A request was shed: go on, unless none is for an interval."""
        self._sheds_until = now + self._interval

    def _lower_rung(self, now: float) -> None:
        while self._rung and now - self._calm.since >= CALM_SECONDS:
            self._rung -= 1
            self._calm.since += CALM_SECONDS
