"""How long a batch will take, learned from those before it, and how much work is ahead of it.

A prediction is the median of the last batches of the same beam profile and bucket: a pause of the
machine, which an average would carry along for long, does not move it, and a change of pace is in
it after a few batches. What was never observed is predicted to take no time, so that nothing is
refused for want of knowledge.

A prediction that is too high could last for ever, since what it refuses is never observed again.
So one that is about to refuse a request although no batch has confirmed it for a while is forgotten
instead: the request goes in, and its batch is observed.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from server.messages import RequestBatch, Span
from server.waiting_line import bucket_for

__all__ = ["Prediction", "ServiceTimes", "WorkAhead"]

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

    def end_behind(self, ahead: float) -> float:
        """Seconds to the reply if generate is busy for so long with other batches."""
        return max(ahead, self.before) + self.generate + self.after


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

    def generate_seconds(self, waiting: Mapping[str, int], buckets: Sequence[int]) -> float:
        """Of so many requests of each profile, in batches as large as they come."""
        seconds = 0.0
        for profile, requests in waiting.items():
            full, rest = divmod(requests, buckets[-1])
            seconds += full * self.predict(profile, buckets[-1]).generate if full else 0.0
            seconds += self.predict(profile, bucket_for(rest, buckets)).generate if rest else 0.0
        return seconds

    def too_late(self, profile: str, bucket: int, ahead: float, left: float) -> bool:
        """Whether `left` seconds are too few for a batch, with `ahead` seconds of generate's work
        before it."""
        prediction = self.predict(profile, bucket)
        if left > 0 and left >= prediction.end_behind(ahead):
            return False
        decisive = left > 0 and left >= ahead
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
        median(each.before for each in recent),
        median(each.generate for each in recent),
        median(each.after for each in recent),
    )


@dataclass(slots=True)
class _Work:
    batch: RequestBatch
    generate_seconds: float
    taken: bool


class WorkAhead:
    """The batches between their forming and the end of their generation, oldest first.

    They are two at most: one that generate works on, and one that is prepared ahead of it. On a GPU
    generate takes a batch, which queues its work on the device, before the one before it has ended;
    its own time begins only then.
    """

    def __init__(self, times: ServiceTimes, clock: Clock = perf_counter) -> None:
        self._times = times
        self._clock = clock
        self._lock = threading.Lock()
        self._works: list[_Work] = []
        self._begun = 0.0  # when the oldest began, if it is taken

    def formed(self, batch: RequestBatch) -> None:
        seconds = self._times.predict(batch.profile_name, batch.bucket).generate
        with self._lock:
            self._works.append(_Work(batch, seconds, taken=False))

    def taken(self, batch: RequestBatch) -> None:
        """Generate has it."""
        with self._lock:
            for work in self._works:
                if work.batch is batch:
                    work.taken = True
                    if work is self._works[0]:
                        self._begun = self._clock()

    def ended(self, batch: RequestBatch) -> bool:
        """Its generation is over, or will not be. False if that was known."""
        with self._lock:
            for place, work in enumerate(self._works):
                if work.batch is batch:
                    del self._works[place]
                    if place == 0:
                        self._begun = self._clock()
                    return True
            return False

    def may_form(self) -> bool:
        """Whether no batch is prepared, or being prepared, ahead of generate."""
        with self._lock:
            return not self._works or (len(self._works) == 1 and self._works[0].taken)

    def needed(self, profile: str, bucket: int) -> float:
        """Seconds to the reply of a batch that forms now."""
        return self._times.predict(profile, bucket).end_behind(self.seconds())

    def too_late(self, profile: str, bucket: int, left: float, others: float = 0.0) -> bool:
        """Whether `left` seconds are too few for a batch that forms after `others` seconds' worth
        of batches that have not formed yet."""
        return self._times.too_late(profile, bucket, self.seconds() + others, left)

    def seconds(self) -> float:
        """Until generate has ended all of them, as predicted."""
        with self._lock:
            if not self._works:
                return 0.0
            return self._left_of_oldest() + sum(work.generate_seconds for work in self._works[1:])

    def seconds_until_form(self) -> float:
        """Until the next batch may form, as predicted."""
        with self._lock:
            return self._left_of_oldest() if len(self._works) > 1 else 0.0

    def _left_of_oldest(self) -> float:
        oldest = self._works[0]
        passed = self._clock() - self._begun if oldest.taken else 0.0
        return max(0.0, oldest.generate_seconds - passed)
