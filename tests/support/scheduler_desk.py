"""A scheduler under a test's clock, and requests in a short notation.

A request is written as one character, LOW if it is a lower-case letter, with ' if its beam profile
is `reduced`, and @N if its deadline is N ms ahead: "01' a@250".
"""

import re
from collections.abc import Mapping, Sequence

import pytest

from grace.configs.serving import BatchingConfig
from grace.server.errors import ServiceError
from grace.server.messages import Answer, PendingRequest
from grace.server.scheduling.controller import Departure
from grace.server.scheduling.predictions import Predictions
from grace.server.scheduling.scheduler import Scheduler
from grace.server.scheduling.under_way import BatchUnderWay, Place
from support.pipeline_cases import Clock, request_of, spans_of

BUCKETS = (1, 2, 4, 7)


class Desk:
    """A scheduler and its clock."""

    def __init__(
        self, max_waiting: int = 63, max_wait_ms: float = 0.0, **ladders: tuple[str, ...]
    ) -> None:
        self.clock = Clock()
        self.predictions = Predictions(self.clock)
        config = BatchingConfig(max_waiting, max_wait_ms)
        self.scheduler = Scheduler(config, BUCKETS, self.predictions, self.clock, ladders)

    def learn(self, seconds: Mapping[int, float], profile: str = "full") -> None:
        """Batches of each bucket take so long, all of it in generate."""
        for bucket, generate in seconds.items():
            self.predictions.observe(profile, bucket, spans_of(0.0, generate, 0.0))

    def submit(self, text: str) -> list[PendingRequest]:
        requests = []
        for name, reduced, left in re.findall(r"(\w)('?)(?:@([\d.]+))?", text):
            request = request_of(
                name + reduced,
                "reduced" if reduced else "full",
                "LOW" if name.islower() else "NORMAL",
                self.clock.now + (float(left) / 1000 if left else float("inf")),
                arrived=self.clock.now,
            )
            self.scheduler.submit(request)
            requests.append(request)
        return requests

    def refusal(self, text: str) -> ServiceError:
        with pytest.raises(ServiceError) as refused:
            self.submit(text)
        return refused.value

    def needed(self, text: str = "X@0.001") -> float:
        """The seconds that an answer takes, from a trailer of a refusal."""
        return int(dict(self.refusal(text).trailers)["grace-predicted-ms"]) / 1000

    def forms(self) -> BatchUnderWay:
        departure = self.scheduler.poll()
        assert departure is not None
        assert departure.batch is not None
        assert not departure.failures
        return departure.batch

    def ends(self, batch: BatchUnderWay) -> None:
        self.scheduler.end([Answer(each, b"") for each in batch.requests], batch)

    def runs(self) -> str:
        """Let batch after batch form and end; return them, and with a minus the failed requests."""
        left = []
        while (departure := self.scheduler.poll()) is not None:
            self.scheduler.end(departure.failures)
            left += [f"-{name}" for name in failed(departure)]
            if departure.batch is not None:
                left.append("".join(names_of(departure.batch.requests)))
                self.ends(departure.batch)
        return " ".join(left)

    def occupies(self, requests: str = "X") -> BatchUnderWay:
        """One batch is in generate and one is prepared, which is returned: no other may form."""
        batches = []
        for _ in range(2):
            self.submit(requests)
            batches.append(self.forms())
            self.scheduler.advance(batches[0], Place.QUEUED)
        return batches[1]


def names_of(requests: Sequence[PendingRequest]) -> list[str]:
    return [request.retrieval.request_id for request in requests]


def failed(departure: Departure | None) -> dict[str, str]:
    """The reasons of the failures by request."""
    assert departure is not None
    return {each.request.retrieval.request_id: each.error.reason for each in departure.failures}
