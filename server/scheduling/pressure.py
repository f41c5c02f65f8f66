"""Decide when a queue has been too long for too long: the server then degrades, and later sheds.

The length of a queue is the time that a new request is predicted to wait. It counts right after a
batch has left, as in CoDel, because only a queue that stays is an overload, not a burst that the
engine works off. It also counts when the last waiting request is cancelled or expires, because no
batch will leave then. While the server sheds, it refuses requests that would wait longer than the
target. So the queue stays near its target under any load, which keeps the engine busy.
"""

import math
from dataclasses import dataclass

DEGRADE_AT = 0.5
"""The share of target and interval beyond which requests get a smaller profile."""

CALM_SECONDS = 1.0
"""How long every batch must empty the queue before a larger profile is tried again."""


@dataclass(slots=True)
class _Lasting:
    """The time since which a condition has held without a break."""

    since: float = math.inf

    def note(self, now: float, *, holds: bool) -> None:
        if not holds:
            self.since = math.inf
        elif self.since == math.inf:
            self.since = now


class Pressure:
    """Not thread-safe: the scheduler uses it under its lock, with one for each priority.

    interval  seconds for which the queue must be too long; shedding ends after an interval in which
              no request was shed
    rungs     the largest number of smaller profiles that any profile has
    """

    def __init__(self, interval: float, rungs: int) -> None:
        self._interval = interval
        self._rungs = rungs
        self._rung = 0
        self._sheds_until = -math.inf
        self._too_long, self._crowded, self._calm = _Lasting(), _Lasting(), _Lasting()

    def note(self, now: float, seconds: float, target: float) -> None:
        """Note the length of the queue, in seconds, after a batch has left or as it empties."""
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
        """Return by how many steps a request's profile is degraded."""
        self._lower_rung(now)
        return self._rung

    def sheds(self, now: float) -> bool:
        return now < self._sheds_until

    def shed(self, now: float) -> None:
        """Note that a request was shed, which prolongs shedding by an interval."""
        self._sheds_until = now + self._interval

    def _lower_rung(self, now: float) -> None:
        while self._rung and now - self._calm.since >= CALM_SECONDS:
            self._rung -= 1
            self._calm.since += CALM_SECONDS
