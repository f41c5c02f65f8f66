"""A scheduler under a test's clock, and stories of what happens to it in a short notation.

A request is written as one character, LOW if it is a lower-case letter, with ' if its beam profile
is `reduced`, and @N if its deadline is N ms ahead: "01' a@250". A story is a line of steps, each a
method of `Desk` and its arguments: "submit 01@500; wait 0.5; leave -1 0".
"""

import re
from collections.abc import Sequence

import pytest

from grace.configs.serving import BatchingConfig
from grace.server.errors import ServiceError
from grace.server.messages import Answer, PendingRequest, Span
from grace.server.scheduling.controller import Controller
from grace.server.scheduling.predictions import BatchUnderWay, Place, Predictions
from grace.server.scheduling.scheduler import Scheduler
from support.pipeline_cases import Clock, request_of, spans_of

BUCKETS = (1, 2, 4, 7)


class Desk:
    """A scheduler and its clock."""

    batch: BatchUnderWay  # the last one that formed by itself

    def __init__(
        self, max_waiting: int = 63, max_wait_ms: float = 0.0, **ladders: tuple[str, ...]
    ) -> None:
        self.clock = Clock()
        self.predictions = Predictions(self.clock)
        config = BatchingConfig(max_waiting, max_wait_ms)
        controller = Controller(config, BUCKETS, self.predictions, ladders)
        self.scheduler = Scheduler(controller, self.clock)
        self._waiting: dict[str, PendingRequest] = {}

    def plays(self, story: str) -> None:
        for step in story.split(";"):
            name, *words = step.split()
            getattr(self, name)(*words)

    def learn(self, *seconds: str, profile: str = "full") -> None:
        """Let batches of a bucket take that long, all of it in generate: "1:0.5"."""
        for each in seconds:
            bucket, generate = each.split(":")
            self.predictions.observe(profile, int(bucket), spans_of(0.0, float(generate), 0.0))

    def learn_reduced(self, *seconds: str) -> None:
        self.learn(*seconds, profile="reduced")

    def learn_stages(self, before: str, generate: str, after: str) -> None:
        """Let batches of every bucket take that long before generate, in it and after it."""
        for bucket in BUCKETS:
            spans = spans_of(float(before), float(generate), float(after))
            self.predictions.observe("full", bucket, spans)

    def submit(self, *texts: str) -> list[PendingRequest]:
        requests = []
        for name, reduced, left in re.findall(r"(\w)('?)(?:@([\d.]+))?", " ".join(texts)):
            request = request_of(
                name + reduced,
                "reduced" if reduced else "full",
                "LOW" if name.islower() else "NORMAL",
                self.clock.now + (float(left) / 1000 if left else float("inf")),
                arrived=self.clock.now,
            )
            self.scheduler.submit(request)
            self._waiting[name + reduced] = request
            requests.append(request)
        return requests

    def refusal(self, text: str) -> ServiceError:
        with pytest.raises(ServiceError) as refused:
            self.submit(text)
        return refused.value

    def refuse(self, text: str, reason: str = "deadline_unmeetable") -> None:
        assert self.refusal(text).reason == reason

    def need(self, seconds: str, text: str = "X@0.001") -> None:
        """Compare the time that an answer takes, from a trailer of a refusal."""
        predicted = int(dict(self.refusal(text).trailers)["grace-predicted-ms"]) / 1000
        assert predicted == pytest.approx(float(seconds), abs=0.001)

    def wait(self, seconds: str) -> None:
        self.clock.now += float(seconds)

    def cancel(self, name: str, takes_back: str = "True") -> None:
        assert str(self.scheduler.cancel(self._waiting[name])) == takes_back

    def form(self, *names: str) -> BatchUnderWay:
        """Let a batch form, of these requests if they are given."""
        departure = self.scheduler.poll()
        assert departure is not None
        assert departure.batch is not None
        assert not departure.failures
        self.batch = departure.batch
        assert names_of(self.batch.requests) == list(names or names_of(self.batch.requests))
        return self.batch

    def go(self, *places: str) -> None:
        """Let the last batch that formed go to places."""
        for place in places:
            self.scheduler.advance(self.batch, Place[place])

    def end(self) -> None:
        """Let the last batch that formed end; nothing is learned from its times."""
        self._end()

    def answer(self, before: str, generate: str, after: str) -> None:
        """Let the last batch that formed end, and learn from the times of its stages."""
        seconds = float(before), float(generate), float(after)
        self._end(spans_of(*seconds, begin=self.clock.now))

    def _end(self, spans: tuple[Span, ...] = ()) -> None:
        self.scheduler.end([Answer(each, b"") for each in self.batch.requests], self.batch, spans)

    def stay(self) -> None:
        assert self.scheduler.poll() is None

    def leave(self, *expected: str) -> None:
        """Let batch after batch form and end, and compare: a minus is before failed requests."""
        left = []
        while (departure := self.scheduler.poll()) is not None:
            self.scheduler.end(departure.failures)
            left += [f"-{each.request.retrieval.request_id}" for each in departure.failures]
            if departure.batch is not None:
                left.append("".join(names_of(departure.batch.requests)))
                self.batch = departure.batch
                self.end()
        assert left == list(expected)

    def occupy(self, requests: str = "X") -> None:
        """One batch is in generate and one is prepared: no other may form."""
        self.submit(requests)
        self.form()
        self.go("QUEUED")
        ahead = self.batch
        self.submit(requests)
        self.form()
        self.scheduler.advance(ahead, Place.QUEUED)

    def close(self) -> None:
        self.scheduler.close()


def names_of(requests: Sequence[PendingRequest]) -> list[str]:
    return [request.retrieval.request_id for request in requests]
