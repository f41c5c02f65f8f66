"""The waiting requests: a bounded queue with two priorities, and an index by deadline.

NORMAL requests go before LOW ones; within a priority the first to come is the first to go. Each
beam profile has its own line, because a batch has one profile. A NORMAL request that finds the
queue full takes the place of the youngest LOW one.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TypeAlias

from grace.server.messages import PendingRequest, Priority, RequestState

IN_ORDER: tuple[Priority, ...] = ("NORMAL", "LOW")

STALE_DEADLINES = 64
"""Deadlines of requests that have left the queue, beyond as many as wait, that are kept."""

_Line: TypeAlias = OrderedDict[PendingRequest, int]
"""The requests of one priority and profile, each with its number in the order of arrival."""


class RequestQueue:
    """Not thread-safe: the scheduler uses it under its lock.

    displaced  requests that lost their places to NORMAL ones and have not been failed yet
    """

    def __init__(self, places: int) -> None:
        self.displaced: list[PendingRequest] = []
        self._places = places
        self._lines: dict[Priority, dict[str, _Line]] = {name: {} for name in IN_ORDER}
        self._size = 0
        self._arrivals = 0
        self._deadlines: list[tuple[float, int, PendingRequest]] = []  # a heap

    def __len__(self) -> int:
        return self._size

    def push(self, request: PendingRequest) -> bool:
        """Add a request; return False if there is no place for it."""
        if self._size >= self._places and not self._displace_for(request):
            return False
        self._arrivals += 1
        self._size += 1
        request.state = RequestState.WAITING
        self._line_of(request)[request] = self._arrivals
        if request.deadline != math.inf:
            heappush(self._deadlines, (request.deadline, self._arrivals, request))
            if len(self._deadlines) > 2 * self._size + STALE_DEADLINES:
                self._deadlines = [each for each in self._deadlines if _waits(each[2])]
                heapify(self._deadlines)
        return True

    def take(self, requests: Iterable[PendingRequest]) -> None:
        """Take requests out; their outcomes will follow."""
        for request in requests:
            del self._line_of(request)[request]
            request.state = RequestState.TAKEN
            self._size -= 1

    def take_all(self) -> list[PendingRequest]:
        """Take out everything, the displaced requests included."""
        lines = (line for profiles in self._lines.values() for line in profiles.values())
        waiting = [request for line in lines for request in line]
        self.take(waiting)
        displaced, self.displaced = self.displaced, []
        return [*waiting, *displaced]

    def take_expired(self, now: float, most: int) -> list[PendingRequest]:
        """Take out up to `most` requests whose deadline has passed, the earliest first."""
        expired: list[PendingRequest] = []
        while self._deadlines and len(expired) < most:
            deadline, _, request = self._deadlines[0]
            if _waits(request) and deadline > now:
                break
            heappop(self._deadlines)
            if _waits(request):
                self.take((request,))
                expired.append(request)
        return expired

    def next_deadline(self) -> float:
        """Return a time before which no waiting request expires."""
        return self._deadlines[0][0] if self._deadlines else math.inf

    def counts(self, priority: Priority) -> dict[str, int]:
        """Count, by beam profile, the requests that go before a new one of this priority."""
        counts = {profile: len(line) for profile, line in self._lines["NORMAL"].items()}
        if priority == "LOW":
            for profile, line in self._lines["LOW"].items():
                counts[profile] = counts.get(profile, 0) + len(line)
        return counts

    def waiting(self, priority: Priority) -> int:
        return sum(map(len, self._lines[priority].values()))

    def first(self, most: int) -> list[PendingRequest]:
        """Return the first request and those of its priority and profile that follow it."""
        lines = next(filter(None, map(self._lines_of, IN_ORDER)))
        line = min(lines, key=_oldest_number)
        return list(islice(line, most))

    def low(self, profile: str, most: int) -> list[PendingRequest]:
        """Return the first LOW requests of a profile."""
        return list(islice(self._lines["LOW"].get(profile, ()), most))

    def _displace_for(self, request: PendingRequest) -> bool:
        low = self._lines_of("LOW")
        if request.retrieval.priority == "LOW" or not low:
            return False
        line = max(low, key=_youngest_number)
        youngest = next(reversed(line))
        self.take((youngest,))
        self.displaced.append(youngest)
        return True

    def _line_of(self, request: PendingRequest) -> _Line:
        retrieval = request.retrieval
        return self._lines[retrieval.priority].setdefault(retrieval.profile, OrderedDict())

    def _lines_of(self, priority: Priority) -> list[_Line]:
        return [line for line in self._lines[priority].values() if line]


def _waits(request: PendingRequest) -> bool:
    return request.state is RequestState.WAITING


def _oldest_number(line: _Line) -> int:
    return next(iter(line.values()))


def _youngest_number(line: _Line) -> int:
    return next(reversed(line.values()))
