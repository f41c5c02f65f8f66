"""The waiting requests: a bounded queue with two priorities that is fair to connections.

NORMAL requests start before LOW ones. Those of one priority start in rounds: in a round each
connection has one request, and the oldest goes first. So a burst on one connection does not delay
another connection's single call. Requests of one connection keep their order. A connection without
waiting requests is forgotten; its next request joins the round of the request that started last
(start-time fair queueing). Each beam profile has its own line, because a batch has one profile.

A request that finds the queue full may take the place of another one:

    a NORMAL request displaces a LOW one
    otherwise, a request displaces one of its priority, if another connection holds at least two
    more places than its own

The displaced request is the youngest one of the connection that holds most places.
"""

import math
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable
from itertools import islice, takewhile
from typing import TypeAlias

from grace.server.messages import PRIORITY_NAMES, PendingRequest, Priority, RequestState

_Entry: TypeAlias = tuple[int, int, int, PendingRequest]
"""Rank of the priority, round, arrival number, request. Arrival numbers are unique."""
_RANKS: dict[Priority, int] = {name: rank for rank, name in enumerate(PRIORITY_NAMES)}
_LOW = (_RANKS["LOW"],)  # not after any LOW entry, and after all others


class RequestQueue:
    """Not thread-safe: the scheduler uses it under its lock.

    Its lists are sorted. Even with 65,536 entries, an insertion takes microseconds.
    """

    def __init__(self, places: int) -> None:
        # requests that lost their places to others and have not been failed yet
        self.displaced: list[PendingRequest] = []
        self._places = places
        self._arrivals = 0
        self._entries: dict[PendingRequest, _Entry] = {}
        self._lines: dict[str, list[_Entry]] = {}
        self._deadlines: list[tuple[float, int, PendingRequest]] = []
        self._shares = {name: _Shares() for name in PRIORITY_NAMES}

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, request: PendingRequest) -> bool:
        """Add a request; return False if there is no place for it."""
        if len(self._entries) >= self._places and not self._displace_for(request):
            return False
        rank, turn = self._turn(request)
        self._arrivals += 1
        entry = self._entries[request] = rank, turn, self._arrivals, request
        insort(self._lines.setdefault(request.profile, []), entry)
        self._shares[request.retrieval.priority].add(request)
        if request.deadline != math.inf:
            insort(self._deadlines, (request.deadline, self._arrivals, request))
        request.state = RequestState.WAITING
        return True

    def start(self, requests: Iterable[PendingRequest]) -> None:
        """Take out requests that start together, and go on to their rounds."""
        for request in requests:
            shares = self._shares[request.retrieval.priority]
            shares.round = max(shares.round, self._entries[request][1])
            self.remove(request)

    def remove(self, request: PendingRequest) -> None:
        """Take out a request that does not start; its outcome will follow."""
        entry = self._entries.pop(request)
        line = self._lines[request.profile]
        del line[bisect_left(line, entry)]
        self._shares[request.retrieval.priority].remove(request)
        if request.deadline != math.inf:
            del self._deadlines[bisect_left(self._deadlines, (request.deadline, entry[2]))]
        request.state = RequestState.TAKEN

    def remove_all(self) -> list[PendingRequest]:
        """Take out everything, the displaced requests included."""
        waiting = list(self._entries)
        for request in waiting:
            self.remove(request)
        displaced, self.displaced = self.displaced, []
        return [*waiting, *displaced]

    def remove_expired(self, now: float, most: int) -> list[PendingRequest]:
        """Take out up to `most` requests whose deadline has passed, the earliest first."""
        first = islice(self._deadlines, most)
        expired = [request for _, _, request in takewhile(lambda each: each[0] <= now, first)]
        for request in expired:
            self.remove(request)
        return expired

    def next_deadline(self) -> float:
        return self._deadlines[0][0] if self._deadlines else math.inf

    def counts(self, priority: Priority) -> dict[str, int]:
        """Count, by beam profile, the requests of this priority and of those before it."""
        end = (_RANKS[priority] + 1,)
        return {profile: bisect_left(line, end) for profile, line in self._lines.items()}

    def counts_before(self, request: PendingRequest) -> dict[str, int]:
        """Count, by beam profile, the requests that would go before a new one."""
        rank, turn = self._turn(request)
        end = rank, turn + 1
        return {profile: bisect_left(line, end) for profile, line in self._lines.items()}

    def first(self, most: int) -> list[PendingRequest]:
        """Return the first request and those of its priority and profile that follow it."""
        line = min(filter(None, self._lines.values()), key=lambda line: line[0][:3])
        rank = line[0][0]
        return [each[3] for each in islice(line, most) if each[0] == rank]

    def low(self, profile: str, most: int) -> list[PendingRequest]:
        line = self._lines.get(profile, [])
        begin = bisect_left(line, _LOW)
        return [each[3] for each in line[begin : begin + most]]

    def _turn(self, request: PendingRequest) -> tuple[int, int]:
        """Return the rank and the round of a new request."""
        priority = request.retrieval.priority
        shares = self._shares[priority]
        youngest = shares.youngest(request.connection)
        if youngest is None:
            return _RANKS[priority], shares.round
        return _RANKS[priority], max(shares.round, self._entries[youngest][1] + 1)

    def _displace_for(self, request: PendingRequest) -> bool:
        shares, low = self._shares[request.retrieval.priority], self._shares["LOW"]
        if shares is not low and low.most():
            shares = low
        elif shares.places(request.connection) + 1 >= shares.most():
            return False
        victim = shares.youngest_of_most()
        self.remove(victim)
        self.displaced.append(victim)
        return True


class _Shares:
    """The places that each connection holds with requests of one priority."""

    def __init__(self) -> None:
        self.round = 0  # of the request that started last
        # The requests of each connection, oldest first, and the connections by their number.
        self._requests: dict[str, dict[PendingRequest, None]] = {}
        self._with_places: defaultdict[int, dict[str, None]] = defaultdict(dict)

    def add(self, request: PendingRequest) -> None:
        share = self._requests.setdefault(request.connection, {})
        if share:
            self._drop(request.connection, len(share))
        share[request] = None
        self._with_places[len(share)][request.connection] = None

    def remove(self, request: PendingRequest) -> None:
        share = self._requests[request.connection]
        self._drop(request.connection, len(share))
        del share[request]
        if share:
            self._with_places[len(share)][request.connection] = None
        else:
            del self._requests[request.connection]

    def places(self, connection: str) -> int:
        return len(self._requests.get(connection, ()))

    def youngest(self, connection: str) -> PendingRequest | None:
        share = self._requests.get(connection)
        return next(reversed(share)) if share else None

    def most(self) -> int:
        """Return the places of the connection that holds most."""
        return max(self._with_places, default=0)

    def youngest_of_most(self) -> PendingRequest:
        connection = next(iter(self._with_places[self.most()]))
        return next(reversed(self._requests[connection]))

    def _drop(self, connection: str, places: int) -> None:
        group = self._with_places[places]
        del group[connection]
        if not group:
            del self._with_places[places]
