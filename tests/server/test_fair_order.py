"""The queue's order among connections, compared with a plain list that is searched each time."""

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from grace.server.messages import PRIORITY_NAMES, PendingRequest, Priority, RequestState
from grace.server.scheduling.request_queue import RequestQueue
from support.pipeline_cases import request_of

PLACES = 7
MOST = 3

Steps = list[tuple[str, str, Priority, str, int]]


@dataclass
class PlainQueue:
    """The rules, each as a search through all waiting requests, the oldest first."""

    waiting: list[PendingRequest] = field(default_factory=list)
    rounds: dict[PendingRequest, int] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PRIORITY_NAMES, 0))

    def of(self, priority: str, connection: str | None = None) -> list[PendingRequest]:
        return [
            each
            for each in self.waiting
            if each.retrieval.priority == priority and connection in (None, each.connection)
        ]

    def line(self) -> list[PendingRequest]:
        """All requests in the order in which they start."""
        order = {"NORMAL": 0, "LOW": 1}
        return sorted(
            self.waiting, key=lambda each: (order[each.retrieval.priority], self.rounds[each])
        )

    def may_go(self, new: PendingRequest) -> set[PendingRequest]:
        """Return the requests that a new one may displace; it gets no place if there is none."""
        priority, low = new.retrieval.priority, self.of("LOW")
        takes_low = priority == "NORMAL" and len(low) > 0
        places = Counter(each.connection for each in (low if takes_low else self.of(priority)))
        most = max(places.values(), default=0)
        if not takes_low and places[new.connection] + 1 >= most:
            return set()
        greedy = [connection for connection, number in places.items() if number == most]
        return {self.of("LOW" if takes_low else priority, each)[-1] for each in greedy}

    def add(self, new: PendingRequest) -> None:
        priority = new.retrieval.priority
        own = [self.rounds[each] + 1 for each in self.of(priority, new.connection)]
        self.rounds[new] = max(self.begun[priority], *own, 0)
        self.waiting.append(new)

    def first(self) -> list[PendingRequest]:
        line = self.line()
        first = line[0].retrieval
        same = [each for each in line if each.retrieval.priority == first.priority]
        return [each for each in same if each.profile == first.profile][:MOST]

    def start(self, requests: list[PendingRequest]) -> None:
        for each in requests:
            priority = each.retrieval.priority
            self.begun[priority] = max(self.begun[priority], self.rounds[each])
            self.waiting.remove(each)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["push", "push", "push", "start", "cancel"]),
        st.sampled_from("0123"),
        st.sampled_from(["NORMAL", "NORMAL", "LOW"]),
        st.sampled_from(["full", "full", "reduced"]),
        st.integers(0, PLACES - 1),
    ),
    min_size=40,  # shorter ones rarely fill the queue
    max_size=80,
)


@settings(max_examples=50)
@given(STEPS)
def test_requests_go_in_rounds_of_their_connections(steps: Steps) -> None:
    queue, plain = RequestQueue(PLACES), PlainQueue()
    for step, connection, priority, profile, place in steps:
        if step == "push":
            new = request_of("r", profile, priority)
            new.connection = connection
            is_full = len(plain.waiting) == PLACES
            may_go = plain.may_go(new) if is_full else set()
            before = queue.counts_before(new)
            taken = queue.push(new)
            assert taken == (not is_full or len(may_go) > 0)
            displaced, queue.displaced = queue.displaced, []
            assert len(displaced) == (is_full and taken)
            assert may_go.issuperset(displaced)
            for gone in displaced:
                plain.waiting.remove(gone)
            if taken:
                plain.add(new)
            if not is_full:
                line = plain.line()
                ahead = Counter(each.profile for each in line[: line.index(new)])
                assert ahead == {name: number for name, number in before.items() if number}
        elif plain.waiting and step == "start":
            starting = plain.first()
            assert queue.first(MOST) == starting
            queue.start(starting)
            plain.start(starting)
        elif plain.waiting:
            gone = plain.waiting.pop(place % len(plain.waiting))
            queue.remove(gone)
        assert len(queue) == len(plain.waiting)
    left = queue.remove_all()
    assert set(left) == set(plain.waiting)
    assert all(each.state is RequestState.TAKEN for each in left)
