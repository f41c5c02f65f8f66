"""The one owner of every request between `submit` and its outcome.

The controller decides; the scheduler guards it, and reports that every request ended, once.

Threads: any thread may call any method. One lock guards all that is in here, and the `state` of
every request; no method calls out of this package while it holds the lock, so that no other lock is
ever taken inside it. One thread, input's, waits on the lock's condition, in `next_batch`.
"""

import threading
from collections.abc import Callable, Sequence

from grace.server.errors import cancelled, draining, expired
from grace.server.messages import Failure, Outcome, PendingRequest, Priority, RequestState, Span
from grace.server.scheduling.controller import Controller, Departure
from grace.server.scheduling.predictions import BatchUnderWay, Place


class Scheduler:
    def __init__(self, controller: Controller, clock: Callable[[], float]) -> None:
        self._controller = controller
        self._clock = clock
        self._changed = threading.Condition()
        self.in_flight = 0  # the requests that were submitted and have not ended
        self._abandoned = False

    @property
    def waiting(self) -> int:
        return len(self._controller.queue)

    @property
    def asleep_until(self) -> float:
        """When to poll again, if nothing happens before: `next_batch` sleeps until then."""
        return self._controller.asleep_until

    @property
    def margin(self) -> float:
        """The share of the predicted time that a request must have in addition."""
        with self._changed:
            return self._controller.margin.share(self._clock())

    def sheds(self, priority: Priority) -> bool:
        with self._changed:
            return self._controller.pressure[priority].sheds(self._clock())

    def submit(self, request: PendingRequest) -> None:
        """Take a request, or raise why it is refused."""
        with self._changed:
            if self._controller.closed:
                raise draining()
            self._controller.admit(request, self._clock())
            self.in_flight += 1
            # Only if needed: a wake-up costs more than the rest of this method.
            if self._controller.may_leave(request):
                self._changed.notify()

    def cancel(self, request: PendingRequest) -> bool:
        """Note that the caller has gone. True if the request still waited: it has ended, and has no
        outcome. Otherwise its outcome follows, or has been reported."""
        with self._changed:
            if request.state is RequestState.WAITING:
                self._controller.withdraw(request, self._clock())
                if self._controller.closed:
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
                if self._controller.closed and not self.waiting:
                    return None
                seconds = self.asleep_until - self._clock()
                self._changed.wait(max(0.0, min(seconds, threading.TIMEOUT_MAX)))

    def poll(self) -> Departure | None:
        with self._changed:
            return self._controller.depart(self._clock())

    def advance(self, batch: BatchUnderWay, place: Place) -> None:
        """Note where a batch is: the next one may form earlier, or is predicted otherwise."""
        with self._changed:
            self._controller.under_way.advance(batch, place, self._clock())
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
                self._controller.end(batch, spans, self._clock())
                self._wake_if_next_may_form()
            return [outcome for outcome in outcomes if self._ends(outcome.request)]

    def close(self) -> None:
        """Take no more requests, and hold no batch back. What was taken is finished."""
        with self._changed:
            self._controller.closed = True
            self._changed.notify()

    def abandon(self) -> list[PendingRequest] | None:
        """Close, end every request, and return them. None if this has been called before."""
        with self._changed:
            if self._abandoned:
                return None
            self._abandoned = True
            lost = self._controller.queue.remove_all()
            lost += self._controller.under_way.requests()
            self.close()
            return [request for request in lost if self._ends(request)]

    def _ends(self, request: PendingRequest) -> bool:
        if request.state is RequestState.ENDED:
            return False
        request.state = RequestState.ENDED
        self.in_flight -= 1
        return True

    def _wake_if_next_may_form(self) -> None:
        # The requests that were held may have been cancelled; the hold must not outlast them.
        controller = self._controller
        if (self.waiting or controller.held) and controller.under_way.next_may_form():
            self._changed.notify()
