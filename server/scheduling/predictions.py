"""When batches will be done: how long each kind takes, and where those under way are.

A prediction is the lower median of the last batches of the same beam profile and bucket. A pause
of the machine does not move it unless it was in more than half of them; a new pace takes over after
a few batches. A kind that was never observed is predicted to take no time, and refuses nothing.

A prediction that is too high could last for ever, since the requests that it refuses are never
observed. So a prediction that is about to refuse a request, and that no batch has confirmed for a
while, is forgotten instead: the request goes in, and its batch is observed.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from statistics import median_low
from time import perf_counter
from typing import NamedTuple

from grace.server.messages import PendingRequest, Span

REMEMBERED = 9  # batches of each kind: four outliers in a row do not move their median, five do

MIN_PATIENCE, MAX_PATIENCE = 1.0, 10.0
"""Seconds without an observation after which a prediction refuses nothing. Between the two it is
twice the prediction, so that a slow engine has time to confirm it."""


class Prediction(NamedTuple):
    """The seconds that a batch spends before generate, in generate, and after it."""

    before: float = 0.0
    generate: float = 0.0
    after: float = 0.0

    @property
    def total(self) -> float:
        return self.before + self.generate + self.after

    @property
    def pace(self) -> float:
        """The seconds from batch to batch, where one follows the other: the slowest stage's."""
        return max(self.before, self.generate, self.after)


@dataclass(frozen=True, slots=True)
class Backlog:
    """The seconds until the batches ahead have left the stages before generate, generate, and the
    stages after it."""

    before: float = 0.0
    generate: float = 0.0
    after: float = 0.0

    def then(self, batch: Prediction, batches: int = 1) -> "Backlog":
        """Add one batch or more of a kind to the end. A stage has one batch at a time, so all but
        one of them take only as long as the slowest stage that they go through."""
        before, generate, after = batch
        others, slower = batches - 1, max(before, generate)
        return Backlog(
            before=self.before + batches * before,
            generate=max(self.before + before + others * slower, self.generate + others * generate)
            + generate,
            after=max(
                self.before + before + generate + others * max(slower, after),
                self.generate + generate + others * max(generate, after),
                self.after + others * after,
            )
            + after,
        )


@dataclass(slots=True)
class _Observed:
    """One kind of batch. `at` is when the last one was observed."""

    recent: deque[Prediction] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    prediction: Prediction = field(default_factory=Prediction)
    at: float = 0.0


class Predictions:
    """Not thread-safe: warm-up uses it first, and then the scheduler under its lock."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._observed: defaultdict[tuple[str, int], _Observed] = defaultdict(_Observed)

    def observe(self, profile: str, bucket: int, spans: Sequence[Span]) -> None:
        """Learn from the spans of all stages. The gaps between them are waiting, not learned."""
        seconds = {span.stage: span.end - span.begin for span in spans}
        before = seconds["input"] + seconds["features"]
        observed = self._observed[profile, bucket]
        observed.recent.append(Prediction(before, seconds["generate"], seconds["post"]))
        observed.prediction = Prediction(*map(median_low, zip(*observed.recent, strict=True)))
        observed.at = self._clock()

    def predict(self, profile: str, bucket: int) -> Prediction:
        observed = self._observed.get((profile, bucket))
        return Prediction() if observed is None else observed.prediction

    def too_late(self, profile: str, bucket: int, backlog: Backlog, left: float) -> bool:
        """Return whether `left` seconds are too few for a batch that comes after the backlog."""
        if 0 < left >= backlog.then(self.predict(profile, bucket)).after:
            return False
        if not 0 < left >= backlog.after:
            return True
        observed = self._observed.get((profile, bucket))
        if observed is not None:
            patience = min(max(MIN_PATIENCE, 2 * observed.prediction.total), MAX_PATIENCE)
            if self._clock() - observed.at <= patience:
                return True
            del self._observed[profile, bucket]  # no batch has confirmed it for long
        return False


class Place(Enum):
    PREPARED = auto()  # or being prepared: input, features, waiting for generate
    QUEUED = auto()  # generate has taken it; the device still works on the batch ahead
    GENERATE = auto()
    GENERATED = auto()  # it waits for post
    POST = auto()


@dataclass(slots=True, eq=False)
class BatchUnderWay:
    """Requests of one beam profile, from the moment their batch forms until all of them end."""

    requests: tuple[PendingRequest, ...]
    profile: str
    bucket: int
    predicted: Prediction
    since: float  # when the batch came to its place
    place: Place = Place.PREPARED
    # whether it formed later than it could have, because generate had other work
    held: bool = False


class BatchesUnderWay:
    """Oldest first. Not thread-safe: the scheduler uses it under its lock.

    One batch is prepared ahead of generate. Two were not faster (docs/performance.md).

    On a GPU, generate queues the work of a prepared batch on the device before the previous batch
    has ended. The prepared batch's generate time begins when the previous one ends. Where post is
    slower than generate, a batch that waits for post would only grow old there. So no batch forms
    while a generated batch waits for post.
    """

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
