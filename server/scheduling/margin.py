"""When an answer must be ready, and the margin that admission adds to predictions.

The margin follows the share of broken promises: requests that were admitted, and whose answers
then came too late, or that left the queue because they would have. So it covers delays that no
prediction includes, such as gaps between stages. It counts only at admission. If it also counted
when a batch forms, each rise would break more promises.
"""

import math
from collections.abc import Callable
from time import perf_counter

from grace.server.messages import PendingRequest, RequestState

RETURN_SHARE = 0.05
"""The share of a caller's timeout that is kept for the reply's way back: the event loop, gRPC and
the network. gRPC also rounds timeouts up, by as much as one percent."""

GONE_SHARE = 0.1
"""The share for a caller that has cancelled. Its timeout began before the server's, by the time
that the request took to arrive. A caller that cancels earlier did not do so for its deadline."""

HOLD_SHARE = 0.1
"""The share while a batch is held back to fill: the waiting thread may wake late."""

TARGET_SHARE = 0.01
"""The share of broken promises at which the margin does not change."""

GAIN = 0.25
"""The rise of the margin after a batch whose answers are all late. After a batch in time it falls
by a hundredth of that."""

MAX_MARGIN = 0.35
"""The margin never refuses a caller that allows 35 % more than the prediction. A larger one would
leave too few requests to fill batches, if deadlines are about three batches long."""

HALF_LIFE = 10.0
"""Seconds in which the margin halves, even if it refuses every request and sees no answer."""


class Margin:
    """Not thread-safe: the scheduler uses it under its lock."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._share = 0.0
        self._at = clock()

    @property
    def share(self) -> float:
        """The margin now, as a share of the prediction."""
        if not self._share:
            return 0.0
        return self._share * math.exp2((self._at - self._clock()) / HALF_LIFE)

    def observe(self, broken: int, requests: int) -> None:
        """Learn from N requests that were admitted and have left, some of them too late."""
        changed = self.share + GAIN * (broken / requests - TARGET_SHARE)
        self._share = min(max(0.0, changed), MAX_MARGIN)
        self._at = self._clock()


def answer_by(request: PendingRequest, share: float = RETURN_SHARE) -> float:
    """Return when a request must be answered so that the reply reaches its caller in time."""
    if request.deadline == math.inf:
        return math.inf
    return request.deadline - share * (request.deadline - request.arrived)


def is_late(request: PendingRequest, now: float) -> bool:
    """Return whether an answer that is ready now is too late for its caller."""
    gone = request.state is RequestState.UNWANTED
    return now > answer_by(request, GONE_SHARE if gone else RETURN_SHARE)
