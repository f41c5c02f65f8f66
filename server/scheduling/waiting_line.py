"""Where requests wait until a batch of them starts: bounded, two priorities, no dead weight.

NORMAL requests go before LOW ones, otherwise the first to come is the first to go. Into a full line
a NORMAL request comes in place of the youngest LOW one. What is cancelled leaves at once, and what
cannot be answered in time any more leaves unanswered instead of delaying others.

A batch's time grows with its bucket. So for a request that has little time left a batch is made
smaller, where there is time to spare; and LOW requests take the rows that NORMAL ones leave
free, and more rows only if that leaves no NORMAL one behind and makes none late.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import islice
from time import perf_counter
from typing import Protocol, TypeAlias

from grace.configs.serving import BatchingConfig
from grace.server.messages import PendingRequest, Priority

__all__ = ["Departure", "Plan", "WaitingLine", "bucket_for"]

IN_ORDER: tuple[Priority, ...] = ("NORMAL", "LOW")

MOST_LATE = 64
"""Late requests that leave at one moment. The taker holds the lock that callers need meanwhile."""

MOST_FORGOTTEN = 64
"""Deadlines of requests that have left, beyond as many as wait, that are kept."""

_Line: TypeAlias = OrderedDict[PendingRequest, int]
"""Of one priority and beam profile, with the number that each was given when it came."""


class Plan(Protocol):
    """What decides when a batch forms and who is too late for it."""

    def may_form(self) -> bool: ...

    def needed(self, profile: str, *buckets: int) -> float:
        """Seconds to the last reply of batches that form now, one behind the other."""

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
    """Any thread may push, until it is closed, and remove; one thread takes."""

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
        self._lines: dict[Priority, dict[str, _Line]] = {name: {} for name in IN_ORDER}
        self._size = 0
        self._came = 0
        self._deadlines: list[tuple[float, int, PendingRequest]] = []  # a heap
        self._displaced: list[PendingRequest] = []
        self._closed = False
        # The taker sleeps until this time, or until a request comes if it waits for one. Others
        # wake it only then: a wake-up costs the caller more than all the rest of a push.
        self._asleep_until = 0.0
        self._wants_requests = False

    def __len__(self) -> int:
        return self._size

    def push(self, request: PendingRequest) -> bool:
        """False if there is no place for it."""
        with self._changed:
            assert not self._closed
            if self._size >= self._places and not self._displace_for(request):
                return False
            self._came += 1
            self._size += 1
            self._line_of(request)[request] = self._came
            if request.deadline != math.inf:
                self._remember_deadline(request)
            if self._wants_requests or self._displaced or request.deadline < self._asleep_until:
                self._changed.notify()
            return True

    def remove(self, request: PendingRequest) -> bool:
        """False if it does not wait here."""
        with self._changed:
            if request not in self._line_of(request):
                return False
            self._drop(request)
            return True

    def before(self, priority: Priority) -> dict[str, int]:
        """By beam profile, how many a new request of this priority would wait behind."""
        with self._changed:
            counts = {profile: len(line) for profile, line in self._lines["NORMAL"].items()}
            if priority == "LOW":
                for profile, line in self._lines["LOW"].items():
                    counts[profile] = counts.get(profile, 0) + len(line)
            return counts

    def take(self) -> Departure | None:
        """Waits until somebody has to leave. None once the line is closed and empty."""
        with self._changed:
            while True:
                now = self._clock()
                leaving = self._leaving(now)
                if leaving is not None:
                    return leaving
                if self._closed and not self._size:
                    return None
                seconds = self._asleep_until - now
                self._changed.wait(min(seconds, threading.TIMEOUT_MAX))

    def wake(self) -> None:
        """The plan may decide otherwise now."""
        with self._changed:
            self._changed.notify()

    def close(self) -> None:
        """Nobody comes from now on, and nobody is held back to fill a batch."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def abandon(self) -> None:
        """Closes, and forgets who waits."""
        with self._changed:
            for lines in self._lines.values():
                lines.clear()
            self._size = 0
            self._deadlines.clear()
            self._displaced.clear()
            self.close()

    def _displace_for(self, request: PendingRequest) -> bool:
        low = self._lines_of("LOW")
        if request.retrieval.priority == "LOW" or not low:
            return False
        line = max(low, key=_youngest_number)
        youngest = next(reversed(line))
        self._drop(youngest)
        self._displaced.append(youngest)
        return True

    def _leaving(self, now: float) -> Departure | None:
        """Who leaves now, or else None and until when nobody will."""
        late = self._expired(now)
        requests: Sequence[PendingRequest] = ()
        until = self._deadlines[0][0] if self._deadlines else math.inf
        self._wants_requests = self._plan.may_form()
        if self._wants_requests:
            requests, held_until = self._pick(now, late)
            until = min(until, held_until)
        displaced = tuple(self._displaced)
        self._displaced.clear()
        if requests or late or displaced:
            self._wants_requests = False
            return Departure(tuple(requests), tuple(late), displaced)
        self._asleep_until = until
        return None

    def _expired(self, now: float) -> list[PendingRequest]:
        late: list[PendingRequest] = []
        while self._deadlines and len(late) < MOST_LATE:
            deadline, _, request = self._deadlines[0]
            waits = request in self._line_of(request)
            if waits and deadline > now:
                break
            heappop(self._deadlines)
            if waits:
                self._drop(request)
                late.append(request)
        return late

    def _pick(
        self, now: float, late: list[PendingRequest]
    ) -> tuple[Sequence[PendingRequest], float]:
        """-> who starts, and until when nobody does; adds to `late` who is too late to start"""
        for _ in range(MOST_LATE):
            if not self._size:
                break
            picked = self._first_of_one_profile()
            start = self._in_time(picked, now)
            if start:
                all_start = len(start) == len(picked)
                start = self._filled(start, now, late)
                held_until = self._held_until(start) if all_start else now
                if now < held_until:
                    return (), held_until
                self._drop(*start)
                return start, now
            # The others may start with those that waited behind, and in a smaller bucket.
            tightest = _tightest(picked)
            self._drop(tightest)
            late.append(tightest)
        return (), math.inf

    def _first_of_one_profile(self) -> list[PendingRequest]:
        """As many as fit one batch, and of the first's priority."""
        lines = next(filter(None, map(self._lines_of, IN_ORDER)))
        line = min(lines, key=_oldest_number)
        return list(islice(line, self._buckets[-1]))

    def _in_time(self, picked: list[PendingRequest], now: float) -> list[PendingRequest]:
        """Who of them starts so that the tightest is in time; nobody if it is too late, or if
        others were for its sake.

        Under overload small batches would make it worse. So a batch is made smaller only if those
        who wait fill no more than half of the largest, and those left behind can wait for a full
        one to follow.
        """
        profile, bucket = picked[0].retrieval.profile, bucket_for(len(picked), self._buckets)
        tightest = _tightest(picked)
        if self._meets(tightest, bucket, now):
            return picked
        if 2 * self._waiting(picked[0].retrieval.priority) > self._buckets[-1]:
            return []
        smaller = (each for each in reversed(self._buckets) if each < bucket)
        rows = next((each for each in smaller if self._meets(tightest, each, now)), None)
        if rows is None:
            return []
        by_deadline = sorted(picked, key=_deadline)
        first, left_behind = set(by_deadline[:rows]), by_deadline[rows:]
        needed = self._plan.needed(profile, rows, self._buckets[-1])
        if left_behind[0].deadline - now < needed:
            return []
        return [each for each in picked if each in first]

    def _filled(
        self, start: list[PendingRequest], now: float, late: list[PendingRequest]
    ) -> list[PendingRequest]:
        """With LOW requests in rows that cost the NORMAL ones nothing."""
        first = start[0].retrieval
        low = self._lines["LOW"].get(first.profile)
        if first.priority == "LOW" or not low:
            return start
        rows = bucket_for(len(start), self._buckets)
        if len(start) == self._waiting("NORMAL"):
            tightest = _tightest(start)
            most = bucket_for(min(len(start) + len(low), self._buckets[-1]), self._buckets)
            larger = (each for each in reversed(self._buckets) if rows < each <= most)
            rows = next((each for each in larger if self._meets(tightest, each, now)), rows)
        filled = list(start)
        for request in list(islice(low, rows - len(start) + MOST_LATE)):
            if len(filled) == rows:
                break
            if self._meets(request, rows, now):
                filled.append(request)
            elif not self._meets(request, self._buckets[0], now):
                self._drop(request)
                late.append(request)
        return filled

    def _held_until(self, start: list[PendingRequest]) -> float:
        """A batch is held back to fill, but not for so long that one of it becomes too late."""
        if self._closed or not self._max_wait or len(start) == self._buckets[-1]:
            return 0.0
        bucket = bucket_for(len(start), self._buckets)
        needed = self._plan.needed(start[0].retrieval.profile, bucket)
        return min(start[0].arrived + self._max_wait, _tightest(start).deadline - needed)

    def _meets(self, request: PendingRequest, bucket: int, now: float) -> bool:
        """Whether it makes its deadline in a batch of this bucket."""
        if request.deadline == math.inf:
            return True
        left = request.deadline - now
        return not self._plan.too_late(request.retrieval.profile, bucket, left)

    def _remember_deadline(self, request: PendingRequest) -> None:
        heappush(self._deadlines, (request.deadline, self._came, request))
        if len(self._deadlines) > 2 * self._size + MOST_FORGOTTEN:
            self._deadlines = [
                each for each in self._deadlines if each[2] in self._line_of(each[2])
            ]
            heapify(self._deadlines)

    def _line_of(self, request: PendingRequest) -> _Line:
        retrieval = request.retrieval
        return self._lines[retrieval.priority].setdefault(retrieval.profile, OrderedDict())

    def _lines_of(self, priority: Priority) -> list[_Line]:
        return [line for line in self._lines[priority].values() if line]

    def _waiting(self, priority: Priority) -> int:
        return sum(map(len, self._lines[priority].values()))

    def _drop(self, *requests: PendingRequest) -> None:
        for request in requests:
            del self._line_of(request)[request]
        self._size -= len(requests)


def bucket_for(requests: int, buckets: Sequence[int]) -> int:
    """The smallest that holds them."""
    return next(bucket for bucket in buckets if bucket >= requests)


def _deadline(request: PendingRequest) -> float:
    return request.deadline


def _tightest(requests: Iterable[PendingRequest]) -> PendingRequest:
    return min(requests, key=_deadline)


def _oldest_number(line: _Line) -> int:
    return next(iter(line.values()))


def _youngest_number(line: _Line) -> int:
    return next(reversed(line.values()))
