"""How long a batch will take, learned from the batches before it.

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
from statistics import median_low
from time import perf_counter

from grace.server.messages import Span

REMEMBERED = 9
"""Batches of each kind: four outliers in a row do not move their median, five do."""

MIN_PATIENCE, MAX_PATIENCE = 1.0, 10.0
"""Seconds without an observation after which a prediction refuses nothing. Between the two it is
twice the prediction, so that a slow engine has time to confirm it."""


@dataclass(frozen=True, slots=True)
class Prediction:
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
        before, generate, after = batch.before, batch.generate, batch.after
        others, slower = batches - 1, max(before, generate)
        return Backlog(
            before=self.before + batches * before,
            generate=max(
                self.before + before + others * slower,
                self.generate + others * generate,
            )
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
    prediction: Prediction = Prediction()
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
        observed.prediction = Prediction(
            median_low(each.before for each in observed.recent),
            median_low(each.generate for each in observed.recent),
            median_low(each.after for each in observed.recent),
        )
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
