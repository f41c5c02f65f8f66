"""Corrections of the controller's decisions, from how batches end and how long the queue is.

    margin      admission adds it to predictions, while admitted requests are answered too late
    head start  how long before generate is free a batch forms; longer, if generate often waits
    pressure    whether a queue has been too long for too long: the server degrades, then sheds

Not thread-safe: the scheduler uses them under its lock.
"""

import math
from collections.abc import Sequence

from grace.server.messages import PendingRequest, RequestState, Span
from grace.server.scheduling.predictions import Prediction

RETURN_SHARE = 0.05
"""The share of a caller's timeout that is kept for the reply's way back: the event loop, gRPC and
the network. gRPC also rounds timeouts up, by as much as one percent."""

GONE_SHARE = 0.1
"""The share for a caller that has cancelled. Its timeout began before the server's, by the time
that the request took to arrive. A caller that cancels earlier did not do so for its deadline."""

HOLD_SHARE = 0.1  # the share while a batch is held back to fill: the waiting thread may wake late


def answer_by(request: PendingRequest, share: float = RETURN_SHARE) -> float:
    """Return when a request must be answered so that the reply reaches its caller in time."""
    if request.deadline == math.inf:
        return math.inf
    return request.deadline - share * (request.deadline - request.arrived)


def is_late(request: PendingRequest, now: float) -> bool:
    """Return whether an answer that is ready now is too late for its caller."""
    gone = request.state is RequestState.UNWANTED
    return now > answer_by(request, GONE_SHARE if gone else RETURN_SHARE)


class Margin:
    """A share of the prediction, for delays that it does not include, such as gaps between stages.

    It follows the share of broken promises: admitted requests whose answers came too late, or that
    left the queue because their answers would have come too late. It counts only at admission. If
    it also counted when a batch forms, each rise would break more promises.
    """

    TARGET_SHARE = 0.01  # the share of broken promises at which the margin does not change

    GAIN = 0.25
    """The rise of the margin after a batch whose answers are all late. After a batch in time it
    falls by a hundredth of that."""

    MOST = 0.35
    """The margin never refuses a caller that allows 35 % more than the prediction. A larger one
    would leave too few requests to fill batches, if deadlines are about three batches long."""

    HALF_LIFE = 10.0
    """Seconds in which it halves, even if it refuses every request and sees no answer."""

    def __init__(self) -> None:
        self._share = self._at = 0.0

    def share(self, now: float) -> float:
        if not self._share:
            return 0.0
        return self._share * math.exp2((self._at - now) / self.HALF_LIFE)

    def observe(self, broken: int, requests: int, now: float) -> None:
        """Learn from N requests that were admitted and have left, some of them too late."""
        changed = self.share(now) + self.GAIN * (broken / requests - self.TARGET_SHARE)
        self._share, self._at = min(max(0.0, changed), self.MOST), now


class HeadStart:
    """The time that input and features take for a batch, and a lead.

    A batch that forms as late as possible has more requests, but it must still be ready when
    generate has ended the batch before it.
    """

    FIRST_LEAD = 0.001  # seconds

    LATE_SHARE = 0.05
    """The share of late batches that the lead aims at: it grows with more, shrinks with fewer."""

    GAIN = 0.03
    """The rise of the lead after a batch that was ready too late, as a share of generate's time."""

    IDLE_SHARE = 0.02
    """How long generate may wait between two batches, as a share of its time for the second."""

    MOST = 0.5  # the most that a batch can raise the lead to, as a share of generate's time

    KEPT = 0.99
    """The factor by which a lead beyond the most shrinks with each batch. One short batch must not
    cut what longer ones need; one very long batch must not leave a large lead for good."""

    def __init__(self) -> None:
        self._lead = self.FIRST_LEAD
        self._free_since = 0.0

    def seconds(self, batch: Prediction) -> float:
        return batch.before + self._lead

    def observe(self, spans: Sequence[Span], *, held: bool) -> None:
        """Learn from a batch that has passed all stages. `held`: it was held back for generate."""
        span = next(each for each in spans if each.stage == "generate")
        idle, seconds = span.begin - self._free_since, span.end - span.begin
        self._free_since = span.end
        if held:
            late = float(idle > self.IDLE_SHARE * seconds)
            changed = self._lead + self.GAIN * seconds * (late - self.LATE_SHARE)
            most = max(self.KEPT * self._lead, self.MOST * seconds)
            self._lead = min(max(0.0, changed), most)


class Pressure:
    """How long the queue of one priority has been too long.

    The length of a queue is the time that a new request is predicted to wait. It counts right after
    a batch has left, as in CoDel, because only a queue that stays is an overload, not a burst that
    the engine works off. It also counts when the last waiting request leaves without a batch. While
    the server sheds, it refuses requests that would wait longer than the target. So the queue stays
    near its target under any load, which keeps the engine busy. Shedding ends after an interval in
    which no request was shed.
    """

    DEGRADE_AT = 0.5  # the share of target and interval beyond which requests get a smaller profile

    CALM_SECONDS = 1.0
    """How long every batch must empty the queue before a larger profile is tried again."""

    def __init__(self, interval: float, rungs: int) -> None:
        self._interval = interval  # seconds for which the queue must be too long
        self._rungs = rungs  # the largest number of smaller profiles that any profile has
        self._rung = 0
        self._sheds_until = -math.inf
        # Since when the queue has been so without a break; infinite if it is not.
        self._too_long = self._crowded = self._calm = math.inf

    def note(self, now: float, seconds: float, target: float) -> None:
        """Note the length of the queue, in seconds, after a batch has left or as it empties."""
        self._too_long = min(self._too_long, now) if seconds > target else math.inf
        if now - self._too_long >= self._interval:
            self.shed(now)
        self._lower_rung(now)
        self._calm = math.inf if seconds else min(self._calm, now)
        crowded = seconds > self.DEGRADE_AT * target
        self._crowded = min(self._crowded, now) if crowded else math.inf
        lasts = now - self._crowded >= self.DEGRADE_AT * self._interval
        if lasts and self._rung < self._rungs:
            self._rung += 1
            self._crowded = now

    def rung(self, now: float) -> int:
        """Return by how many steps a request's profile is degraded."""
        self._lower_rung(now)
        return self._rung

    def sheds(self, now: float) -> bool:
        return now < self._sheds_until

    def shed(self, now: float) -> None:
        """Shed for another interval: the queue is too long, or a request was shed."""
        self._sheds_until = now + self._interval

    def _lower_rung(self, now: float) -> None:
        while self._rung and now - self._calm >= self.CALM_SECONDS:
            self._rung -= 1
            self._calm += self.CALM_SECONDS
