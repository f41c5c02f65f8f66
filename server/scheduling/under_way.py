"""The batches under way: when the next one may form, and when their work will be done.

One batch is prepared ahead of generate, or two if requests for a full one wait. On a GPU generate
takes a batch, and queues its work on the device, before the batch ahead of it has ended; its own
time begins only then. Where post is slower than generate, a batch that waits for post would only
grow old there. So no batch forms while a batch waits for post, as far as the host knows that the
device has ended it.
"""

from dataclasses import dataclass
from enum import Enum, auto

from grace.server.messages import PendingRequest
from grace.server.scheduling.predictions import Backlog, Prediction


class Place(Enum):
    """Where a batch is."""

    INPUT = auto()  # or it waits for features
    FEATURES = auto()  # or it waits for generate
    QUEUED = auto()  # generate has taken it; the device still works on the batch ahead
    GENERATE = auto()
    GENERATED = auto()  # it waits for post
    POST = auto()


MOST_AHEAD = 2
"""The most batches that are prepared ahead of generate, if the second one is full. The threads of
input and features take turns with the interpreter. So two small batches, prepared at once, would
only delay each other."""

_AHEAD = (Place.INPUT, Place.FEATURES, Place.QUEUED)


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
    place: Place = Place.INPUT
    held: bool = False

    def left(self, now: float) -> Prediction:
        """Predict the work that is left, not counting how long it waits for other batches."""
        passed, whole = now - self.since, self.predicted
        match self.place:
            case Place.INPUT:
                return whole._replace(input=max(0.0, whole.input - passed))
            case Place.FEATURES:
                left = max(0.0, whole.features - passed)
                return whole._replace(input=0.0, features=left)
            case Place.QUEUED:
                return Prediction(generate=whole.generate, post=whole.post)
            case Place.GENERATE:
                return Prediction(generate=max(0.0, whole.generate - passed), post=whole.post)
            case Place.GENERATED:
                return Prediction(post=whole.post)
            case Place.POST:
                return Prediction(post=max(0.0, whole.post - passed))


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

    @property
    def ahead(self) -> int:
        """The batches that generate has not begun."""
        return sum(batch.place in _AHEAD for batch in self._batches)

    def next_may_form(self, *, full: bool) -> bool:
        """Return whether another batch may form. `full`: requests for a full one wait."""
        generated = any(batch.place is Place.GENERATED for batch in self._batches)
        return not generated and self.ahead < (MOST_AHEAD if full else 1)

    def backlog(self, now: float) -> Backlog:
        """Predict the work that is left."""
        backlog = Backlog()
        for batch in self._batches:
            backlog = backlog.then(batch.left(now))
        return backlog

    def _begin_generating(self, now: float) -> None:
        """Let the oldest batch that is not generated begin, if generate has taken it."""
        for batch in self._batches:
            if batch.place in (Place.INPUT, Place.FEATURES, Place.GENERATE):
                return
            if batch.place is Place.QUEUED:
                batch.place, batch.since = Place.GENERATE, now
                return
