"""The waiting requests: a bounded queue with two priorities, and an index by deadline.

NORMAL requests go before LOW ones; `fair_order.py` says which one of a priority goes first. A
request that finds the queue full may take the place of another one:

    a NORMAL request displaces a LOW one
    otherwise, a request displaces one of its priority, if another connection holds at least two
    more places than its own

The displaced request is the youngest one of the connection that holds most places.
"""

import math
from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from grace.server.messages import PRIORITY_NAMES, PendingRequest, Priority, RequestState
from grace.server.scheduling.fair_order import FairOrder

STALE_DEADLINES = 64
"""Deadlines of requests that have left the queue, beyond as many as wait, that are kept."""


class RequestQueue:
    """Not thread-safe: the scheduler uses it under its lock.

    displaced  requests that lost their places to others and have not been failed yet
    """

    def __init__(self, places: int) -> None:
        self.displaced: list[PendingRequest] = []
        self._places = places
        self._orders: dict[Priority, FairOrder] = {name: FairOrder() for name in PRIORITY_NAMES}
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
        self._order_of(request).add(request, self._arrivals)
        if request.deadline != math.inf:
            heappush(self._deadlines, (request.deadline, self._arrivals, request))
            if len(self._deadlines) > 2 * self._size + STALE_DEADLINES:
                self._deadlines = [each for each in self._deadlines if _waits(each[2])]
                heapify(self._deadlines)
        return True

    def start(self, requests: Iterable[PendingRequest]) -> None:
        """Take out requests that start together."""
        for request in requests:
            self._order_of(request).start(request)
            request.state = RequestState.TAKEN
            self._size -= 1

    def remove(self, request: PendingRequest) -> None:
        """Take out a request that does not start; its outcome will follow."""
        self._order_of(request).remove(request)
        request.state = RequestState.TAKEN
        self._size -= 1

    def remove_all(self) -> list[PendingRequest]:
        """Take out everything, the displaced requests included."""
        waiting = [request for order in self._orders.values() for request in order]
        for request in waiting:
            self.remove(request)
        displaced, self.displaced = self.displaced, []
        return [*waiting, *displaced]

    def remove_expired(self, now: float, most: int) -> list[PendingRequest]:
        """Take out up to `most` requests whose deadline has passed, the earliest first."""
        expired: list[PendingRequest] = []
        while self._deadlines and len(expired) < most:
            deadline, _, request = self._deadlines[0]
            if _waits(request) and deadline > now:
                break
            heappop(self._deadlines)
            if _waits(request):
                self.remove(request)
                expired.append(request)
        return expired

    def next_deadline(self) -> float:
        """Return a time before which no waiting request expires."""
        return self._deadlines[0][0] if self._deadlines else math.inf

    def counts(self, priority: Priority) -> dict[str, int]:
        """Count, by beam profile, the requests of this priority and of those before it."""
        counts = self._orders["NORMAL"].counts()
        return counts if priority == "NORMAL" else _sums(counts, self._orders["LOW"].counts())

    def counts_before(self, request: PendingRequest) -> dict[str, int]:
        """Count, by beam profile, the requests that would go before a new one."""
        before = self._order_of(request).counts_before(request)
        if request.retrieval.priority == "NORMAL":
            return before
        return _sums(self._orders["NORMAL"].counts(), before)

    def waiting(self, priority: Priority) -> int:
        return len(self._orders[priority])

    def first(self, most: int) -> list[PendingRequest]:
        """Return the first request and those of its priority and profile that follow it."""
        return next(filter(len, map(self._orders.__getitem__, PRIORITY_NAMES))).first(most)

    def low(self, profile: str, most: int) -> list[PendingRequest]:
        """Return the first LOW requests of a profile."""
        return self._orders["LOW"].first_of(profile, most)

    def _displace_for(self, request: PendingRequest) -> bool:
        own, low = self._order_of(request), self._orders["LOW"]
        if len(low) and own is not low:
            own = low
        elif own.places(request.connection) + 1 >= own.most_places:
            return False
        victim = own.youngest_of_most()
        self.remove(victim)
        self.displaced.append(victim)
        return True

    def _order_of(self, request: PendingRequest) -> FairOrder:
        return self._orders[request.retrieval.priority]


def _sums(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {*one, *other}}


def _waits(request: PendingRequest) -> bool:
    return request.state is RequestState.WAITING
