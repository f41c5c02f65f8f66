"""The one owner of every request between `submit` and its outcome.

It has the queue, the batches under way and the predictions, and decides by all three when a batch
forms, which requests start and which are refused.

Threads: any thread may call any method. One lock guards all that is in here, and the `state` of
every request; no method calls out of this package while it holds the lock, so that no other lock is
ever taken inside it. One thread, input's, waits on the lock's condition, in `next_batch`.
"""

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from grace.configs.serving import BatchingConfig
from grace.server.errors import (
    ServiceError,
    cancelled,
    displaced,
    draining,
    expired,
    queue_full,
    unmeetable,
)
from grace.server.messages import Failure, Outcome, PendingRequest, RequestState, Span
from grace.server.scheduling.batch_choice import MOST_LATE, BatchChoice
from grace.server.scheduling.predictions import Backlog, Predictions, bucket_for
from grace.server.scheduling.request_queue import RequestQueue
from grace.server.scheduling.under_way import BatchesUnderWay, BatchUnderWay, Place


@dataclass(frozen=True, slots=True)
class Departure:
    """What leaves the queue at one moment.

    batch     requests that start together; None if only failed ones leave
    failures  of requests that are too late, or that NORMAL ones displaced
    """

    batch: BatchUnderWay | None
    failures: tuple[Failure, ...]

    @property
    def requests(self) -> tuple[PendingRequest, ...]:
        return () if self.batch is None else self.batch.requests


class Scheduler:
    def __init__(
        self,
        config: BatchingConfig,
        buckets: tuple[int, ...],
        predictions: Predictions,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._places = config.max_waiting
        self._max_wait = config.max_wait_ms / 1000
        self._buckets = buckets
        self._predictions = predictions
        self._clock = clock
        self._changed = threading.Condition()
        self._queue = RequestQueue(config.max_waiting)
        self._under_way = BatchesUnderWay()
        self._in_flight = 0
        self._closed = False
        self._abandoned = False
        # The time until which `next_batch` sleeps. A caller wakes it only if it matters: a wake-up
        # costs more than all the rest of `submit`.
        self._asleep_until = 0.0

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        """The requests that were submitted and have not ended."""
        return self._in_flight

    def submit(self, request: PendingRequest) -> None:
        """Take a request, or raise why it is refused."""
        with self._changed:
            if self._closed:
                raise draining()
            self._require_time(request)
            if not self._queue.push(request):
                raise queue_full(self._places, self._seconds_of_queue())
            self._in_flight += 1
            if (
                self._under_way.next_may_form()
                or self._queue.displaced
                or request.deadline < self._asleep_until
            ):
                self._changed.notify()

    def cancel(self, request: PendingRequest) -> bool:
        """Note that the caller has gone. True if the request still waited: it has ended, and has no
        outcome. Otherwise its outcome follows, or has been reported."""
        with self._changed:
            if request.state is RequestState.WAITING:
                self._queue.take((request,))
                if self._closed:
                    self._changed.notify()  # the queue may be empty, which ends `next_batch`
                return self._ends(request)
            if request.state is RequestState.TAKEN:
                request.state = RequestState.UNWANTED
            return False

    def next_batch(self) -> Departure | None:
        """Wait until requests leave the queue. None once it is closed and empty."""
        with self._changed:
            while True:
                departure = self.poll()
                if departure is not None:
                    return departure
                if self._closed and not len(self._queue):
                    return None
                seconds = self._asleep_until - self._clock()
                self._changed.wait(max(0.0, min(seconds, threading.TIMEOUT_MAX)))

    def poll(self) -> Departure | None:
        """Return what leaves the queue at this moment. None if nothing does."""
        with self._changed:
            now = self._clock()
            choice = BatchChoice(
                queue=self._queue,
                predictions=self._predictions,
                backlog=self._under_way.backlog(now),
                buckets=self._buckets,
                max_wait=0.0 if self._closed else self._max_wait,
                now=now,
                late=self._queue.take_expired(now, MOST_LATE),
            )
            may_form = self._under_way.next_may_form()
            requests = choice.make() if may_form else []
            failures = [Failure(each, self._why_late(each, choice)) for each in choice.late]
            gone, self._queue.displaced = self._queue.displaced, []
            if gone:  # one advice for all: callers wait for the lock meanwhile
                retry_seconds = self._seconds_of_queue()
                failures += [Failure(each, displaced(retry_seconds)) for each in gone]
            if not requests and not failures:
                self._asleep_until = min(choice.held_until, self._queue.next_deadline())
                return None
            return Departure(self._formed(requests, now) if requests else None, tuple(failures))

    def advance(self, batch: BatchUnderWay, place: Place) -> None:
        """Note where a batch is: the next one may form earlier, or is predicted otherwise."""
        with self._changed:
            self._under_way.advance(batch, place, self._clock())
            self._wake_if_next_may_form()

    def unwanted(self, requests: Sequence[PendingRequest]) -> list[Failure]:
        """Return a failure for each request if no caller waits for any of them any more: all were
        cancelled, or their deadlines have passed. Otherwise return none."""
        with self._changed:
            now = self._clock()
            if any(each.deadline > now and each.state is RequestState.TAKEN for each in requests):
                return []
            return [
                Failure(each, expired() if each.deadline <= now else cancelled())
                for each in requests
            ]

    def end(
        self,
        outcomes: Sequence[Outcome],
        batch: BatchUnderWay | None = None,
        spans: Sequence[Span] = (),
    ) -> list[Outcome]:
        """End requests, and their batch if it is given; learn from its spans if it has passed all
        stages. Return the outcomes to pass on: those of requests that had not ended before, as
        they have after `abandon`."""
        with self._changed:
            if batch is not None:
                if spans:
                    self._predictions.observe(batch.profile, batch.bucket, spans)
                self._under_way.remove(batch, self._clock())
                self._wake_if_next_may_form()
            return [outcome for outcome in outcomes if self._ends(outcome.request)]

    def close(self) -> None:
        """Take no more requests, and hold no batch back. What was taken is finished."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def abandon(self) -> list[PendingRequest] | None:
        """Close, end every request, and return them. None if this has been called before."""
        with self._changed:
            if self._abandoned:
                return None
            self._abandoned = True
            lost = [*self._queue.take_all(), *self._under_way.requests()]
            self.close()
            return [request for request in lost if self._ends(request)]

    def _formed(self, requests: list[PendingRequest], now: float) -> BatchUnderWay:
        profile, bucket = requests[0].retrieval.profile, bucket_for(len(requests), self._buckets)
        predicted = self._predictions.predict(profile, bucket)
        batch = BatchUnderWay(tuple(requests), profile, bucket, predicted, now)
        self._under_way.add(batch)
        return batch

    def _ends(self, request: PendingRequest) -> bool:
        if request.state is RequestState.ENDED:
            return False
        request.state = RequestState.ENDED
        self._in_flight -= 1
        return True

    def _wake_if_next_may_form(self) -> None:
        if len(self._queue) and self._under_way.next_may_form():
            self._changed.notify()

    def _require_time(self, request: PendingRequest) -> None:
        """Refuse a request that would be late in the last batch of its profile, as things are."""
        now, retrieval = self._clock(), request.retrieval
        left = request.deadline - now
        if math.isinf(left):
            return
        waiting = self._queue.counts(retrieval.priority)
        full, same_batch = divmod(waiting.pop(retrieval.profile, 0), self._buckets[-1])
        waiting[retrieval.profile] = full * self._buckets[-1]
        backlog = self._with_waiting(self._under_way.backlog(now), waiting)
        bucket = bucket_for(same_batch + 1, self._buckets)
        if self._predictions.too_late(retrieval.profile, bucket, backlog, left):
            own = self._predictions.predict(retrieval.profile, bucket)
            raise unmeetable(left, backlog.then(own).after)

    def _seconds_of_queue(self) -> float:
        """Predict the seconds until the batches under way and all that waits have been answered."""
        backlog = self._under_way.backlog(self._clock())
        return self._with_waiting(backlog, self._queue.counts("LOW")).after

    def _with_waiting(self, backlog: Backlog, waiting: dict[str, int]) -> Backlog:
        return self._predictions.with_waiting(backlog, waiting, self._buckets)

    def _why_late(self, request: PendingRequest, choice: BatchChoice) -> ServiceError:
        if request.deadline <= choice.now:
            return expired()
        alone = self._predictions.predict(request.retrieval.profile, self._buckets[0])
        return unmeetable(request.deadline - choice.now, choice.backlog.then(alone).after)
