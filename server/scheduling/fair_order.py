"""The waiting requests of one priority, in the order in which they start.

They start in rounds. In a round each connection has one request, and the oldest goes first. So a
burst on one connection does not delay another connection's single call. Requests of one connection
keep their order. A connection without waiting requests is forgotten. Its next request joins the
round of the request that started last (start-time fair queueing).

Each beam profile has a separate list, because a batch has one profile.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from typing import TypeAlias

from grace.server.messages import PendingRequest

_Entry: TypeAlias = tuple[int, int, PendingRequest]
"""Round, arrival number, request. Arrival numbers are unique."""
_Share: TypeAlias = dict[PendingRequest, None]
"""The waiting requests of one connection, oldest first."""


class FairOrder:
    """Not thread-safe: the scheduler uses it under its lock.

    Each profile's list is sorted. Even with 65,536 entries, an insertion takes microseconds.
    """

    def __init__(self) -> None:
        self._round = 0
        self._lines: dict[str, list[_Entry]] = {}
        self._entries: dict[PendingRequest, _Entry] = {}
        self._shares: dict[str, _Share] = {}
        # Connections by their number of waiting requests, to find the one with the most at once.
        self._with_places: defaultdict[int, dict[str, None]] = defaultdict(dict)
        self._most = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[PendingRequest]:
        return iter(self._entries)

    def add(self, request: PendingRequest, number: int) -> None:
        entry = self._next_round(request), number, request
        insort(self._lines.setdefault(request.profile, []), entry)
        self._entries[request] = entry
        share = self._shares.setdefault(request.connection, {})
        share[request] = None
        self._move(request.connection, len(share) - 1, len(share))
        self._most = max(self._most, len(share))

    def start(self, request: PendingRequest) -> None:
        """Remove a request whose batch starts, and advance to its round."""
        self._round = max(self._round, self._entries[request][0])
        self.remove(request)

    def remove(self, request: PendingRequest) -> None:
        entry = self._entries.pop(request)
        line = self._lines[request.profile]
        del line[bisect_left(line, entry)]
        share = self._shares[request.connection]
        places = len(share)
        del share[request]
        self._move(request.connection, places, places - 1)
        if places == self._most and places not in self._with_places:
            self._most -= 1
        if places == 1:
            del self._shares[request.connection]

    def counts(self) -> dict[str, int]:
        """Count the requests by beam profile."""
        return {profile: len(line) for profile, line in self._lines.items()}

    def counts_before(self, request: PendingRequest) -> dict[str, int]:
        """Count, by beam profile, the requests that would go before a new one."""
        end = (self._next_round(request) + 1,)
        return {profile: bisect_left(line, end) for profile, line in self._lines.items()}

    def first(self, most: int) -> list[PendingRequest]:
        """Return up to N requests of one profile, from the first of all on."""
        line = min(filter(None, self._lines.values()), key=_head)
        return [request for _, _, request in islice(line, most)]

    def first_of(self, profile: str, most: int) -> list[PendingRequest]:
        return [request for _, _, request in islice(self._lines.get(profile, ()), most)]

    def places(self, connection: str) -> int:
        return len(self._shares.get(connection, ()))

    @property
    def most_places(self) -> int:
        """The places of the connection that has most."""
        return self._most

    def youngest_of_most(self) -> PendingRequest:
        """Return the youngest request of the connection that has most places."""
        connection = next(iter(self._with_places[self._most]))
        return next(reversed(self._shares[connection]))

    def _next_round(self, request: PendingRequest) -> int:
        share = self._shares.get(request.connection)
        if share is None:
            return self._round
        youngest = next(reversed(share))
        return max(self._round, self._entries[youngest][0] + 1)

    def _move(self, connection: str, before: int, after: int) -> None:
        if before:
            group = self._with_places[before]
            del group[connection]
            if not group:
                del self._with_places[before]
        if after:
            self._with_places[after][connection] = None


def _head(line: list[_Entry]) -> tuple[int, int]:
    return line[0][:2]
