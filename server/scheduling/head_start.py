"""The head start of a batch: the time from its forming until generate is free.

A batch that forms as late as possible has more requests. It must still be ready when generate has
ended the batch before it. So the head start is the time that input and features take, plus a
margin. The margin grows if generate often waits for batches, and shrinks if it seldom does.
"""

from collections.abc import Sequence

from grace.server.messages import Span
from grace.server.scheduling.predictions import Prediction

FIRST_MARGIN = 0.001
"""Seconds."""

LATE_SHARE = 0.05
"""The share of late batches that the margin aims at. With more it grows, with fewer it shrinks."""

GAIN = 0.03
"""The rise of the margin after a batch that was ready too late, as a share of generate's time."""

IDLE_SHARE = 0.02
"""How long generate may wait between two batches, as a share of its time for the second."""

MAX_SHARE = 0.5
"""The most that a batch can raise the margin to, as a share of generate's time."""

KEPT = 0.99
"""The factor by which a margin beyond the most shrinks with each batch. One short batch must not
cut what longer ones need; one very long batch must not leave a large margin for good."""


class HeadStart:
    """Not thread-safe: the scheduler uses it under its lock."""

    def __init__(self) -> None:
        self._margin = FIRST_MARGIN
        self._free_since = 0.0

    def seconds(self, batch: Prediction) -> float:
        """Return the head start of a batch with this prediction."""
        return batch.before + self._margin

    def observe(self, spans: Sequence[Span], *, held: bool) -> None:
        """Learn from a batch that has passed all stages. `held`: it was held back for generate."""
        span = next(each for each in spans if each.stage == "generate")
        idle, seconds = span.begin - self._free_since, span.end - span.begin
        self._free_since = span.end
        if held:
            late = float(idle > IDLE_SHARE * seconds)
            changed = self._margin + GAIN * seconds * (late - LATE_SHARE)
            most = max(KEPT * self._margin, MAX_SHARE * seconds)
            self._margin = min(max(0.0, changed), most)
