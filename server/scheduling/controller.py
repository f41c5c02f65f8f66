"""The one controller: it decides when a batch forms, which requests it has, and which may wait.

It decides by what waits, what is under way, and what batches of each kind are predicted to take,
and corrects itself by the margin, the head start and the pressure of `feedback.py`.

A batch's time grows with its bucket. So the controller makes a batch smaller in two cases: one
request has little time left and the others can wait, or full batches of a smaller bucket answer
more requests a second than a larger bucket with empty rows.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from grace.configs.serving import BatchingConfig
from grace.server.errors import displaced, expired, overloaded, queue_full, unmeetable
from grace.server.messages import PRIORITY_NAMES, Failure, PendingRequest, Span
from grace.server.scheduling.feedback import (
    HOLD_SHARE,
    HeadStart,
    Margin,
    Pressure,
    answer_by,
    is_late,
)
from grace.server.scheduling.predictions import Backlog, BatchesUnderWay, BatchUnderWay, Predictions
from grace.server.scheduling.request_queue import RequestQueue

BATCHES_OF_QUEUE = 2
"""The full batches that may always wait, so that a slow engine does not idle between them."""

MOST_LATE = 64
"""The most late requests that leave at one moment: callers wait for the lock meanwhile."""


@dataclass(frozen=True, slots=True)
class Departure:
    """What leaves the queue at one moment."""

    batch: BatchUnderWay | None  # requests that start together; None if only failed ones leave
    failures: tuple[Failure, ...]  # the requests that are too late or were displaced


@dataclass(slots=True)
class _Moment:
    """A decision about what leaves now."""

    now: float
    backlog: Backlog  # the work under way, which the next batch comes after
    late: list[PendingRequest]  # the requests that are too late to start
    held_until: float = math.inf  # when to decide again, if the batch is held back


class Controller:
    """Not thread-safe: the scheduler uses it under its lock."""

    def __init__(
        self,
        config: BatchingConfig,
        buckets: tuple[int, ...],
        predictions: Predictions,
        ladders: Mapping[str, tuple[str, ...]],
    ) -> None:
        """`ladders` has the smaller profiles, in their order, of each profile that degrades."""
        self.queue = RequestQueue(config.max_waiting)  # the waiting requests
        self.under_way = BatchesUnderWay()  # the batches that have formed and not ended
        self.closed = False  # no further requests will come, so nothing is held back
        self.held = False  # whether a batch could form, but is held back
        self.asleep_until = 0.0  # when to decide again, if nothing happens before
        self._places = config.max_waiting
        self._max_wait = config.max_wait_ms / 1000
        self._target = config.target_queue_ms / 1000
        self._buckets = buckets
        self._predictions = predictions
        self._ladders = ladders
        rungs = max(map(len, ladders.values()), default=0)
        self.pressure = {name: Pressure(self._target, rungs) for name in PRIORITY_NAMES}
        self.margin = Margin()
        self._head_start = HeadStart()
        self._just_in_time = False  # a batch is held until just before generate is free
        self._in_vain = 0  # NORMAL requests that left, too late to start, since a batch ended

    # A request comes or goes.

    def admit(self, request: PendingRequest, now: float) -> None:
        """Choose the request's profile and let it wait. Raise a ServiceError if it would be late or
        wait too long, or if the queue is full."""
        retrieval = request.retrieval
        pressure = self.pressure[retrieval.priority]
        smaller = self._ladders.get(retrieval.profile, ())[: pressure.rung(now)]
        if smaller:
            request.degraded_to = smaller[-1]
        shed_all = retrieval.priority == "LOW" and self.pressure["NORMAL"].sheds(now)
        sheds = shed_all or pressure.sheds(now)
        if sheds or request.deadline < math.inf:
            before = self.queue.counts_before(request)
            self._require_time(request, before, now)
            waits = self._with_waiting(Backlog(), before).after if sheds else 0.0
            if shed_all or waits > self._target_of(request.profile):
                pressure.shed(now)
                raise overloaded(retry_seconds=self._seconds_of_queue(now))
        if not self.queue.push(request):
            raise queue_full(self._places, self._seconds_of_queue(now))

    def may_leave(self, request: PendingRequest) -> bool:
        """Return whether something may leave earlier now that this request waits."""
        if self.held:
            may_be_late = self._max_wait > 0 and request.deadline < math.inf
            may_form = may_be_late or len(self.queue) >= self._buckets[-1]
        else:
            may_form = self.under_way.next_may_form()
        return may_form or len(self.queue.displaced) > 0 or request.deadline < self.asleep_until

    def withdraw(self, request: PendingRequest, now: float) -> None:
        """Drop a waiting request whose caller has gone."""
        self.queue.remove(request)
        self._note_if_empty(now)

    def _require_time(self, request: PendingRequest, before: dict[str, int], now: float) -> None:
        """Refuse a request that would be late, with N requests of each profile before it."""
        left, margin = request.deadline - now, 1 + self.margin.share(now)
        if math.isinf(left):
            return
        profile, largest = request.profile, self._buckets[-1]
        full = before.get(profile, 0) // largest
        of_profile = self.queue.counts(request.retrieval.priority).get(profile, 0)
        ahead = {**before, profile: full * largest}
        backlog = self._with_waiting(self.under_way.backlog(now), ahead)
        # Requests that go after it may share its batch.
        bucket = self._bucket_for(min(of_profile - full * largest + 1, largest))
        if self._predictions.too_late(profile, bucket, backlog, left / margin):
            own = self._predictions.predict(profile, bucket)
            raise unmeetable(left, margin * backlog.then(own).after)

    # A batch forms.

    def depart(self, now: float) -> Departure | None:
        """Return what leaves the queue at this moment. None if nothing does."""
        at = _Moment(now, self.under_way.backlog(now), self.queue.remove_expired(now, MOST_LATE))
        just_in_time, self._just_in_time = self._just_in_time, False
        start = self._choose(at) if self.under_way.next_may_form() else []
        self.held = at.held_until < math.inf
        failures = [Failure(each, expired()) for each in at.late]
        gone, self.queue.displaced = self.queue.displaced, []
        if gone:  # one retry time for all: callers wait for the lock meanwhile
            retry_seconds = self._seconds_of_queue(now)
            failures += [Failure(each, displaced(retry_seconds=retry_seconds)) for each in gone]
        if not start and not failures:
            self.asleep_until = min(at.held_until, self.queue.next_deadline())
            return None
        self._in_vain += sum(each.retrieval.priority == "NORMAL" for each in at.late)
        if not start:
            self._note_if_empty(now)
            return Departure(None, tuple(failures))
        profile, bucket = start[0].profile, self._bucket_for(len(start))
        self._note_pressure(self._target_of(profile), now)
        predicted = self._predictions.predict(profile, bucket)
        batch = BatchUnderWay(tuple(start), profile, bucket, predicted, now, held=just_in_time)
        self.under_way.add(batch)
        return Departure(batch, tuple(failures))

    def _choose(self, at: _Moment) -> list[PendingRequest]:
        """Take out the requests that start together, and the late ones before them. Return none if
        the queue is empty or the batch is held back."""
        for _ in range(MOST_LATE):
            if not len(self.queue):
                break
            first = self.queue.first(self._buckets[-1])
            start = self._in_time(first, at)
            if start:
                is_cut = len(start) < len(first)
                start = self._fill_up(start if is_cut else self._without_empty_rows(start, at), at)
                held_until = at.now if is_cut else self._hold_until(start, at)
                if at.now < held_until:
                    at.held_until = held_until
                    return []
                self.queue.start(start)
                return start
            # The others may start with the requests that follow, and in a smaller bucket.
            self._turn_away(_tightest(first), at)
        return []

    def _in_time(self, first: list[PendingRequest], at: _Moment) -> list[PendingRequest]:
        """Return the requests to start, few enough to meet the tightest deadline. Return none if it
        cannot be met, or only at the cost of others.

        Smaller batches would make an overload worse. So a batch is made smaller only if the
        waiting requests fill no more than half of the largest bucket, and those that are left
        behind have time for a full batch to go before them.
        """
        bucket, tightest = self._bucket_for(len(first)), _tightest(first)
        if self._meets(tightest, bucket, at):
            return first
        waiting = sum(self.queue.counts(first[0].retrieval.priority).values())
        if 2 * waiting > self._buckets[-1]:
            return []
        smaller = (each for each in reversed(self._buckets) if each < bucket)
        rows = next((each for each in smaller if self._meets(tightest, each, at)), None)
        if rows is None:
            return []
        by_deadline = sorted(first, key=answer_by)
        kept, left_behind = set(by_deadline[:rows]), by_deadline[rows:]
        if not self._may_wait(left_behind[0], rows, at):
            return []
        return [each for each in first if each in kept]

    def _without_empty_rows(self, start: list[PendingRequest], at: _Moment) -> list[PendingRequest]:
        """Return the first requests, which fill a smaller bucket, if the stages answer more
        requests a second that way, and the others have time for a full batch to go before them."""
        profile, rows = start[0].profile, len(start)
        bucket = self._bucket_for(rows)
        smaller = max((each for each in self._buckets if each < rows), default=0)
        if rows == bucket or not smaller:
            return start
        if start[0].retrieval.priority == "NORMAL":  # LOW requests fill empty rows
            rows = min(bucket, rows + len(self.queue.low(profile, bucket - rows)))
        whole, part = (self._predictions.predict(profile, each).pace for each in (bucket, smaller))
        if not part or smaller * whole <= rows * part:
            return start
        left_behind = _tightest(start[smaller:])
        return start[:smaller] if self._may_wait(left_behind, smaller, at) else start

    def _fill_up(self, start: list[PendingRequest], at: _Moment) -> list[PendingRequest]:
        """Add LOW requests in rows that NORMAL ones leave free, and in more rows only if no NORMAL
        request is left behind and none becomes late."""
        low = self.queue.low(start[0].profile, self._buckets[-1] + MOST_LATE)
        if start[0].retrieval.priority == "LOW" or not low:
            return start
        rows = self._bucket_for(len(start))
        if len(start) == sum(self.queue.counts("NORMAL").values()):
            tightest = _tightest(start)
            most = self._bucket_for(min(len(start) + len(low), self._buckets[-1]))
            larger = (each for each in reversed(self._buckets) if rows < each <= most)
            rows = next((each for each in larger if self._meets(tightest, each, at)), rows)
        filled = list(start)
        for request in low[: rows - len(start) + MOST_LATE]:
            if len(filled) == rows:
                break
            if self._meets(request, rows, at):
                filled.append(request)
            elif not self._meets(request, self._buckets[0], at):
                self._turn_away(request, at)
        return filled

    def _hold_until(self, start: list[PendingRequest], at: _Moment) -> float:
        """Return until when to hold the batch back to fill: while generate has other work, and
        for the configured wait, but not until one of its requests is late."""
        if self.closed or len(start) == self._buckets[-1]:
            return 0.0
        profile, bucket = start[0].profile, self._bucket_for(len(start))
        head_start = self._head_start.seconds(self._predictions.predict(profile, bucket))
        prepared_at = self.under_way.generate_free_at() - head_start
        full_at = 0.0
        if self._max_wait:
            in_time = answer_by(_tightest(start), HOLD_SHARE) - self._needed(profile, at, bucket)
            full_at = min(start[0].arrived + self._max_wait, in_time)
        self._just_in_time = at.now < prepared_at >= full_at
        return max(prepared_at, full_at)

    def _meets(self, request: PendingRequest, bucket: int, at: _Moment) -> bool:
        """Return whether a request meets its deadline in a batch of this bucket."""
        if request.deadline == math.inf:
            return True
        left = answer_by(request) - at.now
        return not self._predictions.too_late(request.profile, bucket, at.backlog, left)

    def _may_wait(self, request: PendingRequest, rows: int, at: _Moment) -> bool:
        """Return whether a request has time for a batch of these rows, and for a full one."""
        needed = self._needed(request.profile, at, rows, self._buckets[-1])
        return answer_by(request) - at.now >= needed

    def _needed(self, profile: str, at: _Moment, *buckets: int) -> float:
        """Predict the seconds to the last reply of batches that form now, one after the other."""
        backlog = at.backlog
        for bucket in buckets:
            backlog = backlog.then(self._predictions.predict(profile, bucket))
        return backlog.after

    def _turn_away(self, request: PendingRequest, at: _Moment) -> None:
        self.queue.remove(request)
        at.late.append(request)

    # A batch ends.

    def end(self, batch: BatchUnderWay, spans: Sequence[Span], now: float) -> None:
        """Drop a batch, wherever it is. Learn how many of its requests are late, and how many left
        the queue, too late to start, since the last batch ended. Learn from its spans, too, if it
        has passed all stages."""
        late = sum(is_late(each, now) for each in batch.requests)
        in_vain, self._in_vain = self._in_vain, 0
        self.margin.observe(late + in_vain, len(batch.requests) + in_vain, now)
        if spans:
            self._predictions.observe(batch.profile, batch.bucket, spans)
            self._head_start.observe(spans, held=batch.held)
        self.under_way.remove(batch, now)

    # How long the queue is.

    def _note_pressure(self, target: float, now: float) -> None:
        for priority, pressure in self.pressure.items():
            rest = self._with_waiting(Backlog(), self.queue.counts(priority))
            pressure.note(now, rest.after, target)

    def _note_if_empty(self, now: float) -> None:
        """Note that the queue is empty, if its last request has left it without a batch."""
        if not len(self.queue):
            self._note_pressure(self._target, now)

    def _target_of(self, profile: str) -> float:
        """Return the longest wait, in seconds, that is not too long."""
        full = self._predictions.predict(profile, self._buckets[-1]).total
        return max(self._target, BATCHES_OF_QUEUE * full)

    def _seconds_of_queue(self, now: float) -> float:
        """Predict the seconds until the batches under way and all that waits have been answered."""
        return self._with_waiting(self.under_way.backlog(now), self.queue.counts("LOW")).after

    def _with_waiting(self, backlog: Backlog, waiting: Mapping[str, int]) -> Backlog:
        """Add the waiting requests, N of each profile, in batches as large as can be."""
        for profile, requests in waiting.items():
            full, rest = divmod(requests, self._buckets[-1])
            if full:
                backlog = backlog.then(self._predictions.predict(profile, self._buckets[-1]), full)
            if rest:
                backlog = backlog.then(self._predictions.predict(profile, self._bucket_for(rest)))
        return backlog

    def _bucket_for(self, requests: int) -> int:
        """Return the smallest bucket that holds N requests."""
        return next(bucket for bucket in self._buckets if bucket >= requests)


def _tightest(requests: Iterable[PendingRequest]) -> PendingRequest:
    return min(requests, key=answer_by)
