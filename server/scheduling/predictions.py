"""How long a batch will take, learned from the batches before it.

A prediction is the lower median of the last batches of the same beam profile and bucket. A pause
of the machine does not move it unless it was in more than half of them; a new pace takes over after
a few batches. A kind that was never observed is predicted to take no time, and refuses nothing.

A prediction that is too high could last for ever, since the requests that it refuses are never
observed. So a prediction that is about to refuse a request, and that no batch has confirmed for a
while, is forgotten instead: the request goes in, and its batch is observed.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from time import perf_counter
from typing import NamedTuple

from grace.server.messages import STAGE_NAMES, Span

REMEMBERED = 9
"""Batches of each kind: four outliers in a row do not move their median, five do."""

MIN_PATIENCE, MAX_PATIENCE = 1.0, 10.0
"""Seconds without an observation after which a prediction refuses nothing. Between the two it is
twice the prediction, so that a slow engine has time to confirm it."""


def bucket_for(requests: int, buckets: Sequence[int]) -> int:
    """Return the smallest bucket that holds N requests."""
    return next(bucket for bucket in buckets if bucket >= requests)


class Prediction(NamedTuple):
    """The seconds that a batch spends in each stage."""

    input: float = 0.0
    features: float = 0.0
    generate: float = 0.0
    post: float = 0.0

    @property
    def total(self) -> float:
        return sum(self)

    @property
    def pace(self) -> float:
        """The seconds from batch to batch, where one follows the other: the slowest stage's."""
        return max(self)


class Backlog(NamedTuple):
    """The seconds until the batches ahead have left each stage."""

    input: float = 0.0
    features: float = 0.0
    generate: float = 0.0
    post: float = 0.0

    def then(self, batch: Prediction, batches: int = 1) -> "Backlog":
        """Add N batches of one kind to the end. A stage has one batch at a time.

        From the stage in which the first of them waits for the batches ahead, it goes through
        without a pause. The last one leaves later by the slowest of those stages, N - 1 times.
        """
        if not batches:
            return self
        ends = [0.0] * len(batch)
        for first, end in enumerate(self):
            slowest = 0.0
            for stage in range(first, len(batch)):
                end += batch[stage]
                slowest = max(slowest, batch[stage])
                ends[stage] = max(ends[stage], end + (batches - 1) * slowest)
        return Backlog(*ends)


@dataclass(slots=True)
class _Observed:
    recent: deque[Prediction]
    prediction: Prediction
    at: float


class Predictions:
    """Not thread-safe: warm-up uses it first, and then the scheduler under its lock."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._observed: dict[tuple[str, int], _Observed] = {}

    def observe(self, profile: str, bucket: int, spans: Sequence[Span]) -> None:
        """Learn from the spans of all stages. The gaps between them are waiting, not learned."""
        seconds = {span.stage: span.end - span.begin for span in spans}
        observed = self._observed.get((profile, bucket))
        recent = deque[Prediction](maxlen=REMEMBERED) if observed is None else observed.recent
        recent.append(Prediction(*(seconds[stage] for stage in STAGE_NAMES)))
        middle = Prediction(*map(median_low, zip(*recent, strict=True)))
        self._observed[profile, bucket] = _Observed(recent, middle, self._clock())

    def predict(self, profile: str, bucket: int) -> Prediction:
        observed = self._observed.get((profile, bucket))
        return Prediction() if observed is None else observed.prediction

    def with_waiting(
        self, backlog: Backlog, waiting: Mapping[str, int], buckets: Sequence[int]
    ) -> Backlog:
        """Add the waiting requests, N of each profile, in batches as large as can be."""
        for profile, requests in waiting.items():
            full, rest = divmod(requests, buckets[-1])
            if full:
                backlog = backlog.then(self.predict(profile, buckets[-1]), full)
            if rest:
                backlog = backlog.then(self.predict(profile, bucket_for(rest, buckets)))
        return backlog

    def too_late(self, profile: str, bucket: int, backlog: Backlog, left: float) -> bool:
        """Return whether `left` seconds are too few for a batch that comes after the backlog."""
        if 0 < left >= backlog.then(self.predict(profile, bucket)).post:
            return False
        decisive = 0 < left >= backlog.post
        return not (decisive and self._forget(profile, bucket))

    def _forget(self, profile: str, bucket: int) -> bool:
        """Drop a prediction that no batch has confirmed for long; return whether none is left."""
        observed = self._observed.get((profile, bucket))
        if observed is None:
            return True
        patience = min(max(MIN_PATIENCE, 2 * observed.prediction.total), MAX_PATIENCE)
        if self._clock() - observed.at <= patience:
            return False
        del self._observed[profile, bucket]
        return True
