"""The one owner of every request between `submit` and its outcome.

It has the queue, the batches under way and the predictions, and decides by all three when a batch
forms, which requests start and which are refused.

Threads: any thread may call any method. One lock guards all that is in here, and the `state` of
every request; no method calls out of this package while it holds the lock, so that no other lock is
ever taken inside it. One thread, input's, waits on the lock's condition, in `next_batch`.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from types import MappingProxyType

from grace.configs.serving import BatchingConfig
from grace.server.errors import (
    cancelled,
    displaced,
    draining,
    expired,
    overloaded,
    queue_full,
    unmeetable,
)
from grace.server.messages import (
    PRIORITY_NAMES,
    Failure,
    Outcome,
    PendingRequest,
    Priority,
    RequestState,
    Span,
)
from grace.server.scheduling.batch_choice import MOST_LATE, BatchChoice
from grace.server.scheduling.head_start import HeadStart
from grace.server.scheduling.margin import Margin, is_late
from grace.server.scheduling.predictions import Backlog, Prediction, Predictions, bucket_for
from grace.server.scheduling.pressure import Pressure
from grace.server.scheduling.request_queue import RequestQueue
from grace.server.scheduling.under_way import BatchesUnderWay, BatchUnderWay, Place

BATCHES_OF_QUEUE = 2
"""The full batches that may always wait, so that a slow engine does not idle between them."""

NO_LADDERS: Mapping[str, tuple[str, ...]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Departure:
    """What leaves the queue at one moment.

    batch     requests that start together; None if only failed ones leave
    failures  the requests that are too late or were displaced
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
        ladders: Mapping[str, tuple[str, ...]] = NO_LADDERS,
    ) -> None:
        """`ladders` has the smaller profiles, in their order, of each profile that degrades."""
        self._places = config.max_waiting
        self._max_wait = config.max_wait_ms / 1000
        self._buckets = buckets
        self._predictions = predictions
        self._clock = clock
        self._changed = threading.Condition()
        self._queue = RequestQueue(config.max_waiting)
        self._under_way = BatchesUnderWay()
        self._head_start = HeadStart()
        self._held = False  # a batch could form, but is held back
        self._just_in_time = False  # it is held until just before generate is free
        self._margin = Margin(clock)
        self._ladders = ladders
        self._target = config.target_queue_ms / 1000
        rungs = max(map(len, ladders.values()), default=0)
        self._pressure = {name: Pressure(self._target, rungs) for name in PRIORITY_NAMES}
        # NORMAL requests that left the queue, too late to start, since a batch ended.
        self._in_vain = 0
        self._in_flight = 0
        self._closed = False
        self._abandoned = False
        # When to poll again, if nothing happens before: `next_batch` sleeps until then. `submit`
        # wakes it only if needed: a wake-up costs more than the rest of `submit`.
        self.asleep_until = 0.0

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        """The requests that were submitted and have not ended."""
        return self._in_flight

    @property
    def margin(self) -> float:
        """The share of the predicted time that a request must have in addition."""
        with self._changed:
            return self._margin.share

    def sheds(self, priority: Priority) -> bool:
        with self._changed:
            return self._pressure[priority].sheds(self._clock())

    def submit(self, request: PendingRequest) -> None:
        """Take a request, or raise why it is refused."""
        with self._changed:
            if self._closed:
                raise draining()
            self._require_room(request)
            if not self._queue.push(request):
                raise queue_full(self._places, self._seconds_of_queue())
            self._in_flight += 1
            may_form = (
                self._ends_the_hold(request) if self._held else self._under_way.next_may_form()
            )
            if may_form or self._queue.displaced or request.deadline < self.asleep_until:
                self._changed.notify()

    def cancel(self, request: PendingRequest) -> bool:
        """Note that the caller has gone. True if the request still waited: it has ended, and has no
        outcome. Otherwise its outcome follows, or has been reported."""
        with self._changed:
            if request.state is RequestState.WAITING:
                self._queue.remove(request)
                self._note_if_empty(self._clock())
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
                seconds = self.asleep_until - self._clock()
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
                starts_at=self._starts_at,
                now=now,
                late=self._queue.remove_expired(now, MOST_LATE),
            )
            may_form = self._under_way.next_may_form()
            requests = choice.make() if may_form else []
            self._held = choice.held_until < math.inf
            just_in_time, self._just_in_time = self._just_in_time, choice.for_generate
            failures = [Failure(each, expired()) for each in choice.late]
            gone, self._queue.displaced = self._queue.displaced, []
            if gone:  # one advice for all: callers wait for the lock meanwhile
                retry_seconds = self._seconds_of_queue()
                failures += [Failure(each, displaced(retry_seconds)) for each in gone]
            if not requests and not failures:
                self.asleep_until = min(choice.held_until, self._queue.next_deadline())
                return None
            self._in_vain += sum(each.retrieval.priority == "NORMAL" for each in choice.late)
            if requests:
                self._note_pressure(requests[0].profile, now)
            else:
                self._note_if_empty(now)
            batch = self._formed(requests, now, held=just_in_time) if requests else None
            return Departure(batch, tuple(failures))

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
                self._note_late(batch)
                if spans:
                    self._predictions.observe(batch.profile, batch.bucket, spans)
                    self._head_start.observe(spans, held=batch.held)
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
            lost = [*self._queue.remove_all(), *self._under_way.requests()]
            self.close()
            return [request for request in lost if self._ends(request)]

    def _starts_at(self, batch: Prediction) -> float:
        """Return the latest time at which a batch can form so that generate does not wait for it.

        A closed scheduler holds nothing back: no further requests will come.
        """
        if self._closed:
            return 0.0
        return self._under_way.generate_free_at() - self._head_start.seconds(batch)

    def _ends_the_hold(self, request: PendingRequest) -> bool:
        """Return whether a new request may let the batch form that is held back."""
        may_be_late = self._max_wait > 0 and request.deadline != math.inf
        return len(self._queue) >= self._buckets[-1] or may_be_late

    def _formed(self, requests: list[PendingRequest], now: float, *, held: bool) -> BatchUnderWay:
        profile, bucket = requests[0].profile, bucket_for(len(requests), self._buckets)
        predicted = self._predictions.predict(profile, bucket)
        batch = BatchUnderWay(tuple(requests), profile, bucket, predicted, now, held=held)
        self._under_way.add(batch)
        return batch

    def _ends(self, request: PendingRequest) -> bool:
        if request.state is RequestState.ENDED:
            return False
        request.state = RequestState.ENDED
        self._in_flight -= 1
        return True

    def _wake_if_next_may_form(self) -> None:
        # The requests that were held may have been cancelled; the hold must not outlast them.
        if (len(self._queue) or self._held) and self._under_way.next_may_form():
            self._changed.notify()

    def _require_room(self, request: PendingRequest) -> None:
        """Choose the request's profile; refuse a request that would be late, or wait too long."""
        now, retrieval = self._clock(), request.retrieval
        pressure = self._pressure[retrieval.priority]
        smaller = self._ladders.get(retrieval.profile, ())[: pressure.rung(now)]
        if smaller:
            request.degraded_to = smaller[-1]
        shed_all = retrieval.priority == "LOW" and self._pressure["NORMAL"].sheds(now)
        sheds = shed_all or pressure.sheds(now)
        if math.isinf(request.deadline) and not sheds:
            return
        before = self._queue.counts_before(request)
        self._require_time(request, before, now)
        waits = self._with_waiting(Backlog(), before).after if sheds else 0.0
        if shed_all or waits > self._target_of(request.profile):
            pressure.shed(now)
            raise overloaded(self._seconds_of_queue())

    def _require_time(self, request: PendingRequest, before: dict[str, int], now: float) -> None:
        """Refuse a request that would be late, with N requests of each profile before it."""
        left, margin = request.deadline - now, 1 + self._margin.share
        if math.isinf(left):
            return
        profile, largest = request.profile, self._buckets[-1]
        full = before.get(profile, 0) // largest
        of_profile = self._queue.counts(request.retrieval.priority).get(profile, 0)
        ahead = {**before, profile: full * largest}
        backlog = self._with_waiting(self._under_way.backlog(now), ahead)
        # Requests that go after it may share its batch.
        bucket = bucket_for(min(of_profile - full * largest + 1, largest), self._buckets)
        if self._predictions.too_late(profile, bucket, backlog, left / margin):
            own = self._predictions.predict(profile, bucket)
            raise unmeetable(left, margin * backlog.then(own).after)

    def _target_of(self, profile: str) -> float:
        """Return the longest wait, in seconds, that is not too long."""
        full = self._predictions.predict(profile, self._buckets[-1]).total
        return max(self._target, BATCHES_OF_QUEUE * full)

    def _note_pressure(self, profile: str, now: float) -> None:
        """Note how long the queue is, right after a batch of this profile has left it."""
        target = self._target_of(profile)
        for priority, pressure in self._pressure.items():
            rest = self._with_waiting(Backlog(), self._queue.counts(priority))
            pressure.note(now, rest.after, target)

    def _note_if_empty(self, now: float) -> None:
        """Note the length of a queue that is empty, although no batch has just left it."""
        if not len(self._queue):
            for pressure in self._pressure.values():
                pressure.note(now, 0.0, self._target)

    def _note_late(self, batch: BatchUnderWay) -> None:
        """Learn how many of a batch, and of those that left the queue since the last, are late."""
        now = self._clock()
        late = sum(is_late(each, now) for each in batch.requests)
        in_vain, self._in_vain = self._in_vain, 0
        self._margin.observe(late + in_vain, len(batch.requests) + in_vain)

    def _seconds_of_queue(self) -> float:
        """Predict the seconds until the batches under way and all that waits have been answered."""
        backlog = self._under_way.backlog(self._clock())
        return self._with_waiting(backlog, self._queue.counts("LOW")).after

    def _with_waiting(self, backlog: Backlog, waiting: dict[str, int]) -> Backlog:
        return self._predictions.with_waiting(backlog, waiting, self._buckets)
