"""The batches under way: when the next one may form, and when their work will be done.

One batch is prepared ahead of generate. Two were not faster (docs/performance.md).

On a GPU, generate queues the work of a prepared batch on the device before the previous batch has
ended. The prepared batch's generate time begins when the previous one ends. Where post is slower
than generate, a batch that waits for post would only grow old there. So no batch forms while a
generated batch waits for post.
"""

from dataclasses import dataclass
from enum import Enum, auto

from grace.server.messages import PendingRequest
from grace.server.scheduling.predictions import Backlog, Prediction


class Place(Enum):
    """Where a batch is."""

    PREPARED = auto()  # or being prepared: input, features, waiting for generate
    QUEUED = auto()  # generate has taken it; the device still works on the batch ahead
    GENERATE = auto()
    GENERATED = auto()  # it waits for post
    POST = auto()


@dataclass(slots=True, eq=False)
class BatchUnderWay:
    """Requests of one beam profile, from the moment their batch forms until all of them end.

    since  when the batch came to its place
    held   whether it formed later than it could have, because generate had other work
    """

    requests: tuple[PendingRequest, ...]
    profile: str
    bucket: int
    predicted: Prediction
    since: float
    place: Place = Place.PREPARED
    held: bool = False


class BatchesUnderWay:
    """Oldest first. Not thread-safe: the scheduler uses it under its lock."""

    def __init__(self) -> None:
        self._batches: list[BatchUnderWay] = []

    def add(self, batch: BatchUnderWay) -> None:
        self._batches.append(batch)

    def advance(self, batch: BatchUnderWay, place: Place, now: float) -> None:
        batch.place, batch.since = place, now
        self._begin_generating(now)

    def remove(self, batch: BatchUnderWay, now: float) -> None:
        """Drop a batch, wherever it is, if it is still here."""
        self._batches = [each for each in self._batches if each is not batch]
        self._begin_generating(now)

    def requests(self) -> list[PendingRequest]:
        return [request for batch in self._batches for request in batch.requests]

    def next_may_form(self) -> bool:
        """Return whether generate works on the only batch that post does not have, or on none."""
        places = [batch.place for batch in self._batches if batch.place is not Place.POST]
        return places in ([], [Place.GENERATE])

    def generate_free_at(self) -> float:
        """Predict when generate will have ended the batch that it works on, if any."""
        working = (each for each in self._batches if each.place is Place.GENERATE)
        return max((each.since + each.predicted.generate for each in working), default=0.0)

    def backlog(self, now: float) -> Backlog:
        """Predict the work that is left."""
        before = generate = after = 0.0
        for batch in self._batches:
            passed, predicted = now - batch.since, batch.predicted
            if batch.place is Place.PREPARED:
                before += max(0.0, predicted.before - passed)
                generate = max(generate, before) + predicted.generate
            elif batch.place is Place.QUEUED:
                generate += predicted.generate
            elif batch.place is Place.GENERATE:
                generate += max(0.0, predicted.generate - passed)
            in_post = passed if batch.place is Place.POST else 0.0
            after = max(after, generate) + max(0.0, predicted.after - in_post)
        return Backlog(before, generate, after)

    def _begin_generating(self, now: float) -> None:
        """Let the oldest batch that is not generated begin, if generate has taken it."""
        for batch in self._batches:
            if batch.place in (Place.PREPARED, Place.GENERATE):
                return
            if batch.place is Place.QUEUED:
                batch.place, batch.since = Place.GENERATE, now
                return
