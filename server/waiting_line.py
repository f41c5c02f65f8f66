"""Where requests wait until a batch of them starts: bounded, two priorities, no dead weight.

NORMAL requests go before LOW ones, otherwise the first to come is the first to go. Into a full line
a NORMAL request comes in place of the youngest LOW one. What is cancelled leaves at once, and what
cannot be answered in time any more leaves unanswered instead of delaying others.
"""

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from configs.serving import BatchingConfig
from server.errors import Draining
from server.messages import PendingRequest, Priority

__all__ = ["Departure", "Plan", "WaitingLine", "bucket_for"]

IN_ORDER: tuple[Priority, ...] = ("NORMAL", "LOW")


class Plan(Protocol):
    """What decides when a batch forms and who is too late for it."""

    def may_form(self) -> bool: ...

    def needed(self, profile: str, bucket: int) -> float:
        """Seconds from forming to reply."""

    def too_late(self, profile: str, bucket: int, left: float) -> bool:
        """Whether so many seconds to a deadline are too few."""


@dataclass(frozen=True, slots=True)
class Departure:
    """Who leaves the line at one moment.

    requests   start together, all of one beam profile; none if only others leave
    late       have too little time left, or none
    displaced  made place for a NORMAL request
    """

    requests: tuple[PendingRequest, ...]
    late: tuple[PendingRequest, ...]
    displaced: tuple[PendingRequest, ...]


class WaitingLine:
    """Any thread may push and remove; one thread takes."""

    def __init__(
        self,
        config: BatchingConfig,
        buckets: tuple[int, ...],
        plan: Plan,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._places = config.max_waiting
        self._max_wait = config.max_wait_ms / 1000
        self._buckets = buckets
        self._plan = plan
        self._clock = clock
        self._changed = threading.Condition()
        self._lines: dict[Priority, dict[PendingRequest, None]] = {name: {} for name in IN_ORDER}
        self._counts: dict[Priority, Counter[str]] = {name: Counter() for name in IN_ORDER}
        self._displaced: list[PendingRequest] = []
        self._closed = False
        # The taker sleeps until this time, or until a request comes if it waits for one. Others
        # wake it only then: a wake-up costs the caller more than all the rest of a push.
        self._asleep_until = 0.0
        self._wants_requests = False

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def push(self, request: PendingRequest) -> bool:
        """False if there is no place for it."""
        with self._changed:
            if self._closed:
                raise Draining
            if len(self) >= self._places and not self._displace_for(request):
                return False
            self._lines[request.retrieval.priority][request] = None
            self._counts[request.retrieval.priority][request.retrieval.profile] += 1
            if self._wants_requests or self._displaced or request.deadline < self._asleep_until:
                self._changed.notify()
            return True

    def remove(self, request: PendingRequest) -> bool:
        """False if it does not wait here."""
        with self._changed:
            if request not in self._lines[request.retrieval.priority]:
                return False
            self._drop(request)
            return True

    def before(self, priority: Priority) -> Counter[str]:
        """By beam profile, how many a new request of this priority would wait behind."""
        with self._changed:
            if priority == "NORMAL":
                return self._counts["NORMAL"].copy()
            return self._counts["NORMAL"] + self._counts["LOW"]

    def take(self) -> Departure | None:
        """Waits until somebody has to leave. None once the line is closed and empty."""
        with self._changed:
            while True:
                now = self._clock()
                leaving = self._leaving(now)
                if leaving is not None:
                    return leaving
                if self._closed and not len(self):
                    return None
                seconds = self._asleep_until - now
                self._changed.wait(min(seconds, threading.TIMEOUT_MAX))

    def wake(self) -> None:
        """The plan may decide otherwise now."""
        with self._changed:
            self._changed.notify()

    def close(self) -> None:
        """Takes nobody in from now on, and holds nobody back to fill a batch."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def abandon(self) -> None:
        """Closes, and forgets who waits."""
        with self._changed:
            self._displaced.clear()
            self._drop(*self._waiting())
            self.close()

    def _displace_for(self, request: PendingRequest) -> bool:
        low = self._lines["LOW"]
        if request.retrieval.priority == "LOW" or not low:
            return False
        youngest = next(reversed(low))
        self._drop(youngest)
        self._displaced.append(youngest)
        return True

    def _leaving(self, now: float) -> Departure | None:
        """Who leaves now, or else None and until when nobody will."""
        late = tuple(request for request in self._waiting() if request.deadline <= now)
        self._drop(*late)
        requests: tuple[PendingRequest, ...] = ()
        until = min((request.deadline for request in self._waiting()), default=math.inf)
        self._wants_requests = self._plan.may_form()
        if self._wants_requests and len(self):
            start, too_late, held_until = self._pick(now)
            requests, late = start, late + too_late
            until = min(until, held_until)
        displaced = tuple(self._displaced)
        self._displaced.clear()
        if requests or late or displaced:
            self._wants_requests = False
            return Departure(requests, late, displaced)
        self._asleep_until = until
        return None

    def _pick(
        self, now: float
    ) -> tuple[tuple[PendingRequest, ...], tuple[PendingRequest, ...], float]:
        """-> who starts, who is too late for it, and until when they are held back instead"""
        late: list[PendingRequest] = []
        while len(self):
            picked = self._first_of_one_profile()
            profile, bucket = picked[0].retrieval.profile, bucket_for(len(picked), self._buckets)
            held_until = self._held_until(picked, bucket)
            if now < held_until:
                return (), tuple(late), held_until
            too_late = tuple(
                request
                for request in picked
                if request.deadline != math.inf
                and self._plan.too_late(profile, bucket, request.deadline - now)
            )
            if not too_late:
                self._drop(*picked)
                return tuple(picked), tuple(late), now
            # The others may start with those that waited behind, and in a smaller bucket.
            self._drop(*too_late)
            late += too_late
        return (), tuple(late), math.inf

    def _first_of_one_profile(self) -> list[PendingRequest]:
        picked: list[PendingRequest] = []
        for request in self._waiting():
            if not picked or request.retrieval.profile == picked[0].retrieval.profile:
                picked.append(request)
            if len(picked) == self._buckets[-1]:
                break
        return picked

    def _held_until(self, picked: list[PendingRequest], bucket: int) -> float:
        """A batch is held back to fill, but not for so long that one of it becomes too late."""
        if self._closed or not self._max_wait or len(picked) == self._buckets[-1]:
            return 0.0
        needed = self._plan.needed(picked[0].retrieval.profile, bucket)
        latest = min(request.deadline for request in picked) - needed
        return min(picked[0].arrived + self._max_wait, latest)

    def _waiting(self) -> Iterator[PendingRequest]:
        for priority in IN_ORDER:
            yield from self._lines[priority]

    def _drop(self, *requests: PendingRequest) -> None:
        for request in requests:
            retrieval = request.retrieval
            del self._lines[retrieval.priority][request]
            self._counts[retrieval.priority][retrieval.profile] -= 1


def bucket_for(requests: int, buckets: Sequence[int]) -> int:
    """The smallest that holds them."""
    return next(bucket for bucket in buckets if bucket >= requests)
