"""The queue's order among connections, compared with a plain list that is searched each time."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from grace.server.messages import PendingRequest, Priority, RequestState
from grace.server.scheduling.request_queue import RequestQueue
from support.pipeline_cases import request_of

PLACES = 7
MOST = 3

Steps = list[tuple[str, int, Priority, str, int]]


def request(
    connection: int, priority: Priority = "NORMAL", profile: str = "full"
) -> PendingRequest:
    made = request_of("r", profile, priority)
    made.connection = str(connection)
    return made


@dataclass
class PlainQueue:
    """The rules, each as a search through all waiting requests: (round, number, request)."""

    waiting: list[tuple[int, int, PendingRequest]] = field(default_factory=list)
    rounds: dict[str, int] = field(default_factory=lambda: {"NORMAL": 0, "LOW": 0})
    arrivals: int = 0

    def of(self, priority: str) -> list[tuple[int, int, PendingRequest]]:
        return sorted(each for each in self.waiting if each[2].retrieval.priority == priority)

    def held(self, priority: str, connection: str) -> list[tuple[int, int, PendingRequest]]:
        return [each for each in self.of(priority) if each[2].connection == connection]

    def push(self, request: PendingRequest) -> set[PendingRequest] | None:
        """Return the requests that it may displace, or None if it gets no place."""
        priority = request.retrieval.priority
        may_go: set[PendingRequest] = set()
        if len(self.waiting) == PLACES:
            victims = (
                self.of("LOW") if priority == "NORMAL" and self.of("LOW") else self.of(priority)
            )
            lower = bool(victims) and victims[0][2].retrieval.priority != priority
            held = {each[2].connection: 0 for each in victims}
            for each in victims:
                held[each[2].connection] += 1
            most = max(held.values(), default=0)
            if not lower and held.get(request.connection, 0) + 1 >= most:
                return None
            greedy = [connection for connection, places in held.items() if places == most]
            may_go = {
                max((each[1], each[2]) for each in victims if each[2].connection == connection)[1]
                for connection in greedy
            }
        return may_go

    def add(self, request: PendingRequest) -> None:
        priority = request.retrieval.priority
        held = self.held(priority, request.connection)
        first = max((each[0] + 1 for each in held), default=0)
        self.arrivals += 1
        self.waiting.append((max(self.rounds[priority], first), self.arrivals, request))

    def remove(self, request: PendingRequest) -> None:
        self.waiting = [each for each in self.waiting if each[2] is not request]

    def first(self) -> list[PendingRequest]:
        line = self.of("NORMAL") or self.of("LOW")
        profile = line[0][2].profile
        return [each[2] for each in line if each[2].profile == profile][:MOST]

    def start(self, requests: list[PendingRequest]) -> None:
        for number, _, request in list(self.waiting):
            if request in requests:
                priority = request.retrieval.priority
                self.rounds[priority] = max(self.rounds[priority], number)
                self.remove(request)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["push", "push", "push", "start", "cancel"]),
        st.integers(0, 3),
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
            new = request(connection, priority, profile)
            may_go = plain.push(new)
            before = queue.counts_before(new)
            assert queue.push(new) == (may_go is not None)
            displaced, queue.displaced = queue.displaced, []
            if may_go is None:
                continue
            assert len(displaced) == bool(may_go)
            assert set(displaced) <= may_go
            for gone in displaced:
                plain.remove(gone)
            plain.add(new)
            if not displaced:
                ahead = plain.of("NORMAL") if priority == "LOW" else []
                own = [each[2] for each in plain.of(priority)]
                ahead_of_it = [*(each[2] for each in ahead), *own[: own.index(new)]]
                for name, number in before.items():
                    assert number == sum(each.profile == name for each in ahead_of_it)
        elif plain.waiting and step == "start":
            assert queue.first(MOST) == plain.first()
            starting = plain.first()
            queue.start(starting)
            plain.start(starting)
        elif plain.waiting:
            gone = plain.waiting[place % len(plain.waiting)][2]
            queue.remove(gone)
            plain.remove(gone)
        assert len(queue) == len(plain.waiting)
    left = queue.remove_all()
    assert set(left) == {each[2] for each in plain.waiting}
    assert all(each.state is RequestState.TAKEN for each in left)
