"""Pipelines over stages that do as a test says, with real messages whose values nobody looks at."""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch

from grace.configs.generation import BeamProfile, GenerationConfig
from grace.configs.serving import BatchingConfig
from grace.index.matching.exact import MatchCounts
from grace.index.users.user_rows import UserEncoder, UserRows
from grace.kernels import UserTensors
from grace.model.definition.inputs import FeatureTensors
from grace.model.engine.feature_lookups import FeatureLookups
from grace.proto.retrieval_pb2 import RetrieveRequest, Values
from grace.server.engine.serving_pair import ServingPair
from grace.server.messages import (
    Answer,
    AnsweredBatch,
    Failure,
    FeatureBatch,
    GeneratedBatch,
    InputBatch,
    PendingRequest,
    Priority,
    RequestBatch,
    Retrieval,
    Span,
    StageName,
)
from grace.server.observe.timeline import Timeline
from grace.server.scheduling.lanes import Lanes, lanes_of
from grace.server.scheduling.pipeline import Pipeline
from grace.server.scheduling.service_times import ServiceTimes
from grace.server.stages.stages import Stages

__all__ = [
    "GENERATION",
    "PAIR",
    "Clock",
    "Outcome",
    "Recorder",
    "empty_features",
    "empty_generated",
    "empty_input",
    "make_pipeline",
    "no_answers",
    "plain_stages",
    "request_batch",
    "request_of",
    "spans_of",
    "wait_until",
]

LONG = 30.0
"""Seconds until a wait is given up: far beyond what the slowest machine needs."""

GENERATION = GenerationConfig(
    max_batch=4,
    profiles={"full": BeamProfile((1, 4), 4), "reduced": BeamProfile((1, 2), 2)},
)
PAIR = object.__new__(ServingPair)
"""No stage here looks into it."""

Outcome = Answer | Failure
Batch = TypeVar("Batch")
Result = TypeVar("Result")


@dataclass
class Clock:
    """Time that stands until a test moves it."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def request_of(
    name: str = "r",
    profile: str = "full",
    priority: Priority = "NORMAL",
    deadline: float = math.inf,
    arrived: float | None = None,
) -> PendingRequest:
    retrieval = Retrieval(
        message=RetrieveRequest(user={"name": Values(values=[name])}).SerializeToString(),
        request_id=name,
        model="",
        sid_space="",
        max_ads=5,
        profile=profile,
        priority=priority,
        exclude_ads=np.empty(0, np.int64),
        include_sids=False,
    )
    return PendingRequest(retrieval, time.perf_counter() if arrived is None else arrived, deadline)


def request_batch(
    *requests: PendingRequest, bucket: int = 4, profile: str = "full"
) -> RequestBatch:
    return RequestBatch(PAIR, profile, GENERATION.profiles[profile], bucket, requests, 0.0)


def spans_of(before: float, generate: float, after: float, begin: float = 0.0) -> tuple[Span, ...]:
    spans: list[Span] = []
    stages: tuple[tuple[StageName, float], ...] = (
        ("input", before / 2),
        ("features", before / 2),
        ("generate", generate),
        ("post", after),
    )
    for stage, seconds in stages:
        spans.append(Span(stage, begin, begin + seconds))
        begin += seconds + 1.0  # queueing, which is no stage's time
    return tuple(spans)


def empty_input(batch: RequestBatch, failures: Sequence[Failure] = ()) -> InputBatch:
    failed = {failure.request for failure in failures}
    return InputBatch(
        batch=batch,
        requests=tuple(request for request in batch.requests if request not in failed),
        failures=tuple(failures),
        ignored=(),
        user_rows=UserRows(
            object.__new__(UserEncoder), np.zeros((batch.bucket, 1), np.uint64), (), ()
        ),
        users=UserTensors(torch.zeros(batch.bucket, 1, dtype=torch.int64), ()),
        inputs=FeatureLookups(*[torch.zeros(0)] * 5),
    )


def empty_features(batch: InputBatch) -> FeatureBatch:
    return FeatureBatch(batch, FeatureTensors(None, ()))


def empty_generated(batch: FeatureBatch) -> GeneratedBatch:
    rows = batch.input.batch.bucket
    return GeneratedBatch(
        batch.input,
        torch.full((rows, 1), -1, dtype=torch.int32),
        torch.full((rows, 1), -math.inf),
        torch.zeros(rows, dtype=torch.bool),
    )


def no_answers(batch: GeneratedBatch, spans: tuple[Span, ...]) -> AnsweredBatch:
    """An empty reply for each request."""
    assert [span.stage for span in spans] == ["input", "features", "generate"]
    zeros = np.zeros(len(batch.input.requests), np.int64)
    return AnsweredBatch(
        batch.input,
        tuple(Answer(request, b"") for request in batch.input.requests),
        (),
        MatchCounts(zeros, zeros, zeros[:, None], zeros, zeros, zeros, zeros),
    )


def plain_stages(befall: Callable[[StageName, InputBatch | RequestBatch], None]) -> Stages:
    """Stages that compute nothing; each calls `befall` first, which may wait or raise."""

    def read(batch: RequestBatch) -> InputBatch:
        befall("input", batch)
        return empty_input(batch)

    def features(batch: InputBatch) -> FeatureBatch:
        befall("features", batch)
        return empty_features(batch)

    def generate(batch: FeatureBatch) -> GeneratedBatch:
        befall("generate", batch.input)
        return empty_generated(batch)

    def post(batch: GeneratedBatch, spans: tuple[Span, ...]) -> AnsweredBatch:
        befall("post", batch.input)
        return no_answers(batch, spans)

    return Stages(read, features, generate, post)


@dataclass
class Recorder:
    """Outcomes as they are told."""

    ends: list[Outcome] = field(default_factory=list)
    done: list[tuple[AnsweredBatch, tuple[Span, ...]]] = field(default_factory=list)
    deaths: list[tuple[StageName, BaseException]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ended(self, answers: Sequence[Answer], failures: Sequence[Failure]) -> None:
        with self.lock:
            self.ends += [*answers, *failures]

    def batch_done(self, answered: AnsweredBatch, spans: tuple[Span, ...]) -> None:
        self.done.append((answered, spans))

    def died(self, stage: StageName, error: BaseException) -> None:
        self.deaths.append((stage, error))

    def times_told(self) -> Counter[PendingRequest]:
        with self.lock:
            return Counter(end.request for end in self.ends)

    def reason(self, request: PendingRequest) -> str | None:
        """None for an answer."""
        (end,) = (end for end in self.ends if end.request is request)
        return end.error.reason if isinstance(end, Failure) else None

    def wait_for(self, *requests: PendingRequest) -> None:
        wait_until(lambda: self.times_told().keys() >= set(requests))


def make_pipeline(
    stages: Stages,
    recorder: Recorder,
    max_waiting: int = 100,
    max_wait_ms: float = 0.0,
    times: ServiceTimes | None = None,
    timeline: Timeline | None = None,
    lanes: Lanes | None = None,
) -> Pipeline:
    return Pipeline(
        stages,
        lambda: PAIR,
        GENERATION,
        BatchingConfig(max_waiting, max_wait_ms),
        ServiceTimes() if times is None else times,
        recorder,
        lanes_of(torch.device("cpu")) if lanes is None else lanes,
        timeline,
    )


def wait_until(true: Callable[[], bool]) -> None:
    end = time.perf_counter() + LONG
    while not true():
        assert time.perf_counter() < end, "waited too long"
        time.sleep(0.001)
