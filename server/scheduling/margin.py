"""When an answer must be ready, and by how much admission exceeds its predictions for that.

The margin follows the share of requests whose promise was broken: they were admitted, and then
their answer came too late, or they left the queue because it would have. So it covers what no
prediction sees, such as gaps between stages. It counts at admission only: counted again when a
batch forms, each rise would break more promises.
"""

import math
from collections.abc import Callable
from time import perf_counter

from grace.server.messages import PendingRequest, RequestState

RETURN_SHARE = 0.05
"""The share of the time that a caller allows which is kept for the reply's way back: the event
loop, gRPC and the network. gRPC also rounds timeouts up, by as much as one percent."""

GONE_SHARE = 0.1
"""The same of a caller who has gone. Its clock runs ahead of the server's, by the time that the
request was on its way. A caller who cancels earlier has another reason than its deadline."""

HOLD_SHARE = 0.1
"""The same while a batch is held back to fill: the thread that waits for it may wake late."""

TARGET_SHARE = 0.01
"""The share of broken promises at which the margin stays as it is."""

GAIN = 0.25
"""A batch that is late as a whole raises the margin by so much; one in time lowers it by a
hundredth of that."""

MAX_MARGIN = 0.35
"""Callers who allow a third more than is predicted are never refused by the margin. A larger one
would leave too few requests to fill batches where deadlines are about three batches long."""

HALF_LIFE = 10.0
"""Seconds. A margin that refuses every request is never lowered by one in time."""


class Margin:
    """Not thread-safe: the scheduler uses it under its lock."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._share = 0.0
        self._at = clock()

    @property
    def share(self) -> float:
        """The margin now, as a share of what is predicted."""
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
