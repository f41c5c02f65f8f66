"""How long a batch will take, learned from those before it.

A prediction is the lower median of the last batches of the same beam profile and bucket: a pause of
the machine, which an average would carry along for long, does not move it unless it was in more
than half of them, and a change of pace is in it after a few batches. What was never observed is
predicted to take no time, so that nothing is refused for want of knowledge.

A prediction that is too high could last for ever, since what it refuses is never observed again.
So one that is about to refuse a request although no batch has confirmed it for a while is forgotten
instead: the request goes in, and its batch is observed.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from time import perf_counter

from grace.server.messages import Span
from grace.server.scheduling.waiting_line import bucket_for

__all__ = ["Horizon", "Prediction", "ServiceTimes"]

Clock = Callable[[], float]

REMEMBERED = 9
"""Batches of each kind: four outliers in a row do not move their median, five do."""

MIN_PATIENCE, MAX_PATIENCE = 1.0, 10.0
"""Seconds without an observation after which a prediction refuses nothing; between the two, twice
what it predicts, so that a slow engine has time to confirm it."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds of a batch's stages: those before generate, generate, those after."""

    before: float
    generate: float
    after: float

    @property
    def total(self) -> float:
        return self.before + self.generate + self.after


@dataclass(frozen=True, slots=True)
class Horizon:
    """Seconds until batches have left the stages before generate, generate, and those after it."""

    before: float = 0.0
    generate: float = 0.0
    after: float = 0.0

    def behind(self, batch: Prediction, batches: int = 1) -> "Horizon":
        """With so many more, alike, behind them. A stage has one batch at a time, so all but one
        of them take only as long as the slowest stage that they go through."""
        if not batches:
            return self
        before, generate, after = batch.before, batch.generate, batch.after
        others, slower = batches - 1, max(before, generate)
        return Horizon(
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


_UNKNOWN = Prediction(0.0, 0.0, 0.0)


@dataclass(slots=True)
class _Observed:
    recent: deque[Prediction]
    prediction: Prediction
    at: float


class ServiceTimes:
    """Any thread may call it."""

    def __init__(self, clock: Clock = perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._observed: dict[tuple[str, int], _Observed] = {}

    def observe(self, profile: str, bucket: int, spans: Sequence[Span]) -> None:
        """`spans` of the four stages. The gaps between them are queueing, which is not learned."""
        seconds = dict.fromkeys(("input", "features", "generate", "post"), 0.0)
        for span in spans:
            seconds[span.stage] += span.end - span.begin
        one = Prediction(
            seconds["input"] + seconds["features"], seconds["generate"], seconds["post"]
        )
        with self._lock:
            before = self._observed.get((profile, bucket))
            recent = deque((one,), REMEMBERED) if before is None else before.recent
            if before is not None:
                recent.append(one)
            self._observed[profile, bucket] = _Observed(recent, _middle(recent), self._clock())

    def predict(self, profile: str, bucket: int) -> Prediction:
        with self._lock:
            observed = self._observed.get((profile, bucket))
            return _UNKNOWN if observed is None else observed.prediction

    def behind(self, ahead: Horizon, waiting: Mapping[str, int], buckets: Sequence[int]) -> Horizon:
        """With so many requests of each profile, in batches as large as they come."""
        for profile, requests in waiting.items():
            full, rest = divmod(requests, buckets[-1])
            if full:
                ahead = ahead.behind(self.predict(profile, buckets[-1]), full)
            if rest:
                ahead = ahead.behind(self.predict(profile, bucket_for(rest, buckets)))
        return ahead

    def too_late(self, profile: str, bucket: int, ahead: Horizon, left: float) -> bool:
        """Whether `left` seconds are too few for a batch behind those ahead."""
        if 0 < left >= ahead.behind(self.predict(profile, bucket)).after:
            return False
        decisive = 0 < left >= ahead.after
        return not (decisive and self._forget(profile, bucket))

    def _forget(self, profile: str, bucket: int) -> bool:
        """Drops a prediction that nothing has confirmed for long; True if there is none now."""
        with self._lock:
            observed = self._observed.get((profile, bucket))
            if observed is None:
                return True
            patience = min(max(MIN_PATIENCE, 2 * observed.prediction.total), MAX_PATIENCE)
            if self._clock() - observed.at <= patience:
                return False
            del self._observed[profile, bucket]
            return True


def _middle(recent: Sequence[Prediction]) -> Prediction:
    return Prediction(
        median_low(each.before for each in recent),
        median_low(each.generate for each in recent),
        median_low(each.after for each in recent),
    )
