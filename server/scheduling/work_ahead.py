"""The batches under way: when the next may form, and when what forms then would be answered."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from time import perf_counter

from grace.server.messages import RequestBatch
from grace.server.scheduling.service_times import Horizon, Prediction, ServiceTimes

__all__ = ["WorkAhead"]


class _Place(Enum):
    """Where a batch is."""

    PREPARED = auto()  # or being prepared
    QUEUED = auto()  # on the device, behind another one
    GENERATE = auto()
    GENERATED = auto()  # post still has the one before it
    POST = auto()


@dataclass(slots=True)
class _Work:
    batch: RequestBatch
    seconds: Prediction
    place: _Place
    since: float


class WorkAhead:
    """From a batch's forming to its end, oldest first.

    One batch is prepared ahead of generate. On a GPU generate takes it, which queues its work on
    the device, before the one before it has ended; its own time begins only then. Where post is
    slower than generate, what waits for post would only grow old there, so that nothing forms
    behind a batch that post has not taken yet.
    """

    def __init__(self, times: ServiceTimes, clock: Callable[[], float] = perf_counter) -> None:
        self._times = times
        self._clock = clock
        self._lock = threading.Lock()
        self._works: list[_Work] = []

    def formed(self, batch: RequestBatch) -> None:
        seconds = self._times.predict(batch.profile_name, batch.bucket)
        with self._lock:
            self._works.append(_Work(batch, seconds, _Place.PREPARED, self._clock()))

    def taken(self, batch: RequestBatch) -> None:
        """Generate has it."""
        self._moves(batch, _Place.QUEUED)

    def generated(self, batch: RequestBatch) -> None:
        self._moves(batch, _Place.GENERATED)

    def posted(self, batch: RequestBatch) -> None:
        """Post has it, and it is generated."""
        self._moves(batch, _Place.POST)

    def ended(self, batch: RequestBatch) -> None:
        """Wherever it was."""
        with self._lock:
            self._works = [work for work in self._works if work.batch is not batch]
            self._begin_generating()

    def may_form(self) -> bool:
        """Whether no batch is prepared, or being prepared, ahead of generate, and none waits
        behind it."""
        with self._lock:
            places = [work.place for work in self._works if work.place is not _Place.POST]
            return places in ([], [_Place.GENERATE])

    def needed(self, profile: str, *buckets: int) -> float:
        """Seconds to the last reply of batches that form now, one behind the other."""
        horizon = self.horizon()
        for bucket in buckets:
            horizon = horizon.behind(self._times.predict(profile, bucket))
        return horizon.after

    def too_late(self, profile: str, bucket: int, left: float) -> bool:
        """Whether `left` seconds are too few for a batch that forms now."""
        return self._times.too_late(profile, bucket, self.horizon(), left)

    def horizon(self) -> Horizon:
        """Of all that has formed, as predicted."""
        before = generate = after = 0.0
        with self._lock:
            now = self._clock()
            for work in self._works:
                passed = now - work.since
                if work.place is _Place.PREPARED:
                    before += max(0.0, work.seconds.before - passed)
                    generate = max(generate, before) + work.seconds.generate
                elif work.place is _Place.QUEUED:
                    generate += work.seconds.generate
                elif work.place is _Place.GENERATE:
                    generate += max(0.0, work.seconds.generate - passed)
                in_post = passed if work.place is _Place.POST else 0.0
                after = max(after, generate) + max(0.0, work.seconds.after - in_post)
        return Horizon(before, generate, after)

    def _moves(self, batch: RequestBatch, place: _Place) -> None:
        with self._lock:
            for work in self._works:
                if work.batch is batch:
                    work.place, work.since = place, self._clock()
            self._begin_generating()

    def _begin_generating(self) -> None:
        """The oldest that generate has not ended begins, if generate has taken it."""
        for work in self._works:
            if work.place in (_Place.PREPARED, _Place.GENERATE):
                return
            if work.place is _Place.QUEUED:
                work.place, work.since = _Place.GENERATE, self._clock()
                return
