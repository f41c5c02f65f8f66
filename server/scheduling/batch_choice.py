"""Which waiting requests start together, and which have too little time left to start.

A batch's time grows with its bucket. So a batch is made smaller for a request that has little time
left, where the others have time to spare. It is also made smaller where full batches of a smaller
bucket answer more requests a second than a larger bucket with empty rows. LOW requests take the
rows that NORMAL ones leave free, and more rows only if no NORMAL request is left behind and none
becomes late.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from grace.server.messages import PendingRequest
from grace.server.scheduling.margin import HOLD_SHARE, answer_by
from grace.server.scheduling.predictions import Backlog, Prediction, Predictions, bucket_for
from grace.server.scheduling.request_queue import RequestQueue

MOST_LATE = 64
"""Late requests that leave at one moment: the callers need the lock that is held meanwhile."""


@dataclass
class BatchChoice:
    """One choice, at one moment. `make` takes the chosen and the late requests out of the queue.

    backlog     the work under way, which the chosen batch comes after
    max_wait    seconds that a batch may be held back to fill
    starts_at   the latest time at which a batch of a prediction can form so that generate does not
                wait for it
    late        the requests that were too late to start
    held_until  when to choose again, if no request starts now
    for_generate  whether the batch is held until generate is nearly free, and not to fill
    """

    queue: RequestQueue
    predictions: Predictions
    backlog: Backlog
    buckets: tuple[int, ...]
    max_wait: float
    starts_at: Callable[[Prediction], float]
    now: float
    late: list[PendingRequest] = field(default_factory=list)
    held_until: float = math.inf
    for_generate: bool = False

    def make(self) -> list[PendingRequest]:
        """Return the requests that start together; none if the queue is empty or they are held."""
        for _ in range(MOST_LATE):
            if not len(self.queue):
                break
            first = self.queue.first(self.buckets[-1])
            start = self._in_time(first)
            if start:
                is_cut = len(start) < len(first)
                start = self._fill_up(start if is_cut else self._without_empty_rows(start))
                held_until = self.now if is_cut else self._hold(start)
                if self.now < held_until:
                    self.held_until = held_until
                    return []
                self.queue.start(start)
                return start
            # The others may start with the requests that follow, and in a smaller bucket.
            self._turn_away(_tightest(first))
        return []

    def _in_time(self, first: list[PendingRequest]) -> list[PendingRequest]:
        """Return the requests that start so that the tightest deadline is met. Return none if it
        cannot be met, or only at the cost of others.

        Under overload smaller batches would make it worse. So a batch is made smaller only if the
        waiting requests fill no more than half of the largest bucket, and those that are left
        behind have time for a full batch to go before them.
        """
        bucket = bucket_for(len(first), self.buckets)
        tightest = _tightest(first)
        if self._meets(tightest, bucket):
            return first
        if 2 * self.queue.waiting(first[0].retrieval.priority) > self.buckets[-1]:
            return []
        smaller = (each for each in reversed(self.buckets) if each < bucket)
        rows = next((each for each in smaller if self._meets(tightest, each)), None)
        if rows is None:
            return []
        by_deadline = sorted(first, key=answer_by)
        kept, left_behind = set(by_deadline[:rows]), by_deadline[rows:]
        if not self._may_wait(left_behind[0], rows):
            return []
        return [each for each in first if each in kept]

    def _without_empty_rows(self, start: list[PendingRequest]) -> list[PendingRequest]:
        """Return the first requests, which fill a smaller bucket, if the stages answer more
        requests a second that way, and the others have time for a full batch to go before them."""
        profile, rows = start[0].profile, len(start)
        bucket = bucket_for(rows, self.buckets)
        smaller = max((each for each in self.buckets if each < rows), default=0)
        if rows == bucket or not smaller:
            return start
        if start[0].retrieval.priority == "NORMAL":  # LOW requests fill empty rows
            rows = min(bucket, rows + len(self.queue.low(profile, bucket - rows)))
        whole, part = (self.predictions.predict(profile, each).pace for each in (bucket, smaller))
        if not part or smaller * whole <= rows * part:
            return start
        left_behind = _tightest(start[smaller:])
        return start[:smaller] if self._may_wait(left_behind, smaller) else start

    def _fill_up(self, start: list[PendingRequest]) -> list[PendingRequest]:
        """Add LOW requests in rows that cost the NORMAL ones nothing."""
        low = self.queue.low(start[0].profile, self.buckets[-1] + MOST_LATE)
        if start[0].retrieval.priority == "LOW" or not low:
            return start
        rows = bucket_for(len(start), self.buckets)
        if len(start) == self.queue.waiting("NORMAL"):
            tightest = _tightest(start)
            most = bucket_for(min(len(start) + len(low), self.buckets[-1]), self.buckets)
            larger = (each for each in reversed(self.buckets) if rows < each <= most)
            rows = next((each for each in larger if self._meets(tightest, each)), rows)
        filled = list(start)
        for request in low[: rows - len(start) + MOST_LATE]:
            if len(filled) == rows:
                break
            if self._meets(request, rows):
                filled.append(request)
            elif not self._meets(request, self.buckets[0]):
                self._turn_away(request)
        return filled

    def _hold(self, start: list[PendingRequest]) -> float:
        """Return until when to hold the batch back to fill: while generate has other work, and
        for `max_wait`, but not until one of it is late."""
        if len(start) == self.buckets[-1]:
            return 0.0
        profile, bucket = start[0].profile, bucket_for(len(start), self.buckets)
        starts_at = self.starts_at(self.predictions.predict(profile, bucket))
        full_at = 0.0
        if self.max_wait:
            in_time = answer_by(_tightest(start), HOLD_SHARE) - self._needed(profile, bucket)
            full_at = min(start[0].arrived + self.max_wait, in_time)
        self.for_generate = self.now < starts_at >= full_at
        return max(starts_at, full_at)

    def _meets(self, request: PendingRequest, bucket: int) -> bool:
        """Return whether a request meets its deadline in a batch of this bucket."""
        if request.deadline == math.inf:
            return True
        left = answer_by(request) - self.now
        return not self.predictions.too_late(request.profile, bucket, self.backlog, left)

    def _may_wait(self, request: PendingRequest, rows: int) -> bool:
        """Return whether a request has time for a batch of these rows, and for a full one."""
        needed = self._needed(request.profile, rows, self.buckets[-1])
        return answer_by(request) - self.now >= needed

    def _needed(self, profile: str, *buckets: int) -> float:
        """Predict the seconds to the last reply of batches that form now, one after the other."""
        backlog = self.backlog
        for bucket in buckets:
            backlog = backlog.then(self.predictions.predict(profile, bucket))
        return backlog.after

    def _turn_away(self, request: PendingRequest) -> None:
        self.queue.remove(request)
        self.late.append(request)


def _tightest(requests: Iterable[PendingRequest]) -> PendingRequest:
    return min(requests, key=answer_by)
